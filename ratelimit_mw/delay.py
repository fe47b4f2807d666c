"""What the limits share that can hold a request back: how long it may be, and how long a wait is.

Such a limit counts time in ticks; `ticks` begins with the microseconds in a clock tick and the ticks in one of those.
"""

from typing import ClassVar

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.kept import cached_property
from ratelimit_mw.limit import MAX_EXACT_INT, MAX_SECONDS, MICROSECONDS, Limit
from ratelimit_mw.ticks import ceil_div

Admission = tuple[bool, float, float]
"""allowed, retry_after and delay (both in seconds) of a decision."""


class DelayableLimit(Limit, frozen=True, kw_only=True):
    """A limit that can admit a request that is then to be held back: it has a `max_delay`, in seconds."""

    ticks: ClassVar[tuple[int, ...]]
    """Of the instance: the numbers that the algorithm and its Lua twin compute with."""
    max_ticks: ClassVar[int] = MAX_EXACT_INT // 2  # of a delay; beyond, sums would no longer be exact

    def delay_ticks(self, max_delay: int | None) -> int:
        """See `Limit.delay_ticks`. Raises `ConfigError` beyond `max_ticks`."""
        if max_delay is None:
            return self._max_delay_ticks
        clock, drain, *_ = self.ticks
        over = max_delay // clock * drain
        if over > self.max_ticks:
            raise ConfigError(
                f"max_delay: found {max_delay / MICROSECONDS} seconds, allowed are {self._max_exact_delay}: beyond, "
                f"{self.notation} would not be exact"
            )
        return over

    @property
    def max_delay_limit(self) -> float:
        """See `Limit.max_delay_limit`."""
        return min(MAX_SECONDS, self._max_exact_delay)

    @property
    def _max_exact_delay(self) -> float:
        clock, drain, *_ = self.ticks
        return self.max_ticks // drain * clock / MICROSECONDS

    @cached_property
    def _max_delay_ticks(self) -> int:
        return self.delay_ticks(self.effective_max_delay_us)

    def wait(self, now: int, ticks: int) -> int:
        """Microseconds until so many ticks, more than 0, have passed."""
        clock, drain, *_ = self.ticks
        return ceil_div(ticks, drain) * clock - now % clock
