"""A manual clock."""

from ratelimit_mw.core.limit import check_seconds


class Clock:
    """A clock that moves only when set: `clock = Clock(); store = MemoryStore(clock=clock); clock.advance(1.5)`.

    It counts seconds, from `start`. Assign `now` to set it, forward or back.
    """

    def __init__(self, start: float = 1_000_000_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def advance(self, by: float) -> None:
        """Move forward by `by` seconds, 0 or more. Raises `ConfigError` for anything else."""
        # whole microseconds, as in the algorithms: a sum of floats would drift
        self.now = round(self.now * 1e6 + check_seconds("by", by) * 1e6) / 1e6
