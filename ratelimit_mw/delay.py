"""What the limits share that can hold a request back: how long it may be, and how long a wait is.

Such a limit counts time in ticks; `ticks` begins with the microseconds in a clock tick and the ticks in one of those.
"""

from typing import ClassVar

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.kept import cached_property
from ratelimit_mw.limit import EXACT, LONGEST, MICROSECONDS, Limit
from ratelimit_mw.ticks import ceil_div

Outcome = tuple[bool, float, float]
"""allowed, retry_after and delay (both in seconds) of a decision."""


class DelayLimit(Limit, frozen=True, kw_only=True):
    """A limit that can admit a request that is then to be held back: it has a `max_delay`, in seconds."""

    ticks: ClassVar[tuple[int, ...]]
    """Of the instance: the numbers that the algorithm and its Lua twin compute with."""
    longest_ticks: ClassVar[int] = EXACT // 2  # of a delay; beyond, sums would no longer be exact

    def delay_ticks(self, max_delay: int | None) -> int:
        """See `Limit.delay_ticks`. Raises `ConfigError` beyond `longest_ticks`."""
        if max_delay is None:
            return self._own_delay_ticks
        clock, drain, *_ = self.ticks
        over = max_delay // clock * drain
        if over > self.longest_ticks:
            raise ConfigError(
                f"max_delay: found {max_delay / MICROSECONDS} seconds, allowed are {self._exactly}: beyond, "
                f"{self.notation} would not be exact"
            )
        return over

    @property
    def longest_delay(self) -> float:
        """See `Limit.longest_delay`."""
        return min(LONGEST, self._exactly)

    @property
    def _exactly(self) -> float:
        clock, drain, *_ = self.ticks
        return self.longest_ticks // drain * clock / MICROSECONDS

    @cached_property
    def _own_delay_ticks(self) -> int:
        return self.delay_ticks(self.patience_us)

    def wait(self, now: int, ticks: int) -> int:
        """Microseconds until so many ticks, more than 0, have passed."""
        clock, drain, *_ = self.ticks
        return ceil_div(ticks, drain) * clock - now % clock
