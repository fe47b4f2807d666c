"""A clock told by hand."""

from ratelimit_mw.core.limit import check_seconds


class Clock:
    """Stands still until told otherwise: `clock = Clock(); store = MemoryStore(clock=clock); clock.advance(1.5)`.

    Seconds, from `start`. Assign `now` to set it, backwards too.
    """

    def __init__(self, start: float = 1_000_000_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        """Now, in seconds."""
        return self.now

    def advance(self, by: float) -> None:
        """Move on by so many seconds, 0 or more. Raises `ConfigError` for anything else."""
        # whole microseconds, as everywhere inside: a sum of floats would drift
        self.now = round(self.now * 1e6 + check_seconds("by", by) * 1e6) / 1e6
