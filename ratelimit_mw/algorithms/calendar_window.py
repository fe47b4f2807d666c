"""Calendar window: one counter per calendar period of a time zone. The Lua implementation is `calendar_window.lua`.

A state has the time of the first hit, and counts in the period with this time. So a state names no period, and another
version of the time zone database moves no units.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import force_setattr

from ratelimit_mw.algorithms.calendar_periods import (
    Bounds,
    Period,
    Weekday,
    bounds_of,
    checked_start,
    longest,
    name_of,
    period_of,
    zone_of,
)
from ratelimit_mw.algorithms.fixed_window import FixedWindow, WindowState
from ratelimit_mw.core.limit import MICROSECONDS, Limit

_SMALL_STEP: Final = 60 * MICROSECONDS  # microseconds that a clock may step back; Lua has it, too
_MOST_STEP: Final = 3 * 3600  # seconds that a zone puts its clock back: Antarctica/Troll 2 hours, in others once 3
_KEPT_PERIODS: Final = 8  # stored states are mostly from the last few periods


class CalendarWindow(FixedWindow, frozen=True, kw_only=True):
    """Admits while the units of the calendar period plus the cost are at most `quota`.

    `CalendarWindow(10000, "month", zone="Europe/Berlin", start=15)`. The second argument is the period: minute, hour,
    day, week, month, quarter or year. `zone`: a name of the IANA database, by default UTC. `start`: the first day of a
    month, from 1 to 31 (or the last day of a shorter month), or the first weekday of a week, such as `"sunday"`.
    `window` is the longest length of the period in seconds, where clocks change by an hour. Raises `ConfigError` for
    other values, and for a quota of 2**52 or more.

    If the clock steps back over the begin of a period by less than a minute, the new period goes on. Otherwise a clock
    that steps back and forth would give clients the quota of a period twice.
    """

    zone: str = "UTC"
    start: int | str | None = None

    algorithm: ClassVar[str] = "calendar_window"
    words: ClassVar[tuple[str, ...]] = ("zone", "start")
    uses_wall_time: ClassVar[bool] = True
    period: ClassVar[Period]
    """Instance value: the name of the period."""

    if TYPE_CHECKING:

        def __init__(
            self,
            quota: int,
            window: Period | float,
            *,
            zone: str = "UTC",
            start: int | Weekday | None = None,
            name: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        period, zone = period_of(self.window), zone_of(self.zone)
        self.__dict__["period"] = period
        force_setattr(self, "window", longest(period, zone))
        force_setattr(self, "zone", name_of(zone))
        force_setattr(self, "start", checked_start(period, self.start))
        self.__dict__["_periods"] = ()
        super().__post_init__()

    @property
    def has_fixed_length(self) -> bool:
        """Whether all periods have the same length."""
        return self.zone == "UTC" and self.period not in ("month", "quarter", "year")

    @property
    def max_per_window(self) -> int:
        return (2 if self.has_fixed_length else 3) * self.quota

    @property
    def max_wait(self) -> float:
        return self.window + (0 if self.has_fixed_length else _MOST_STEP) + _SMALL_STEP / MICROSECONDS

    def expires(self, state: WindowState) -> int:
        return self.period_at(state.start)[1]

    def period_at(self, instant: int) -> Bounds:
        """Return begin and end of the period with this instant, in microseconds."""
        periods: tuple[Bounds, ...] = self.__dict__["_periods"]
        for period in periods:
            if period[0] <= instant < period[1]:
                return period
        found = bounds_of(self.period, zone_of(self.zone), self.start, instant)
        self.__dict__["_periods"] = (found, *periods[: _KEPT_PERIODS - 1])
        return found

    def window_at(self, now: int) -> float:
        """See `Limit.window_at`."""
        begin, end = self.period_at(now)
        return (end - begin) // MICROSECONDS  # whole seconds, as all changes of clocks

    @property
    def numbers(self) -> tuple[int, ...]:
        """None: they depend on the time, see `script_at`."""
        return ()

    def script_at(self, now: int) -> tuple[str, tuple[int, ...]]:
        """See `Limit.script_at`. The server may be in the period before or after that of `now`."""
        if not self.quota:
            return self.script
        begin, end = self.period_at(now)
        before, following = self.period_at(begin - 1)[0], self.period_at(end)[1]
        return self.algorithm, (max(1, before), self.quota, max(1, begin), end, following, 1)

    def continued(self, old: Limit, state: WindowState, now: int) -> WindowState | None:
        """See `takeover.Counting.continued`."""
        return state if isinstance(old, CalendarWindow) and old.period_at(now) == self.period_at(now) else None

    def _current_window(self, state: WindowState | None, now: int) -> tuple[int, int, int]:
        """Return count, start and end of the period. A clock that steps back does not end it."""
        later = 0 if state is None else state.start - now
        begin, end = self.period_at(now + later if 0 < later <= _SMALL_STEP else now)
        if state is None or state.start < begin:
            return 0, now, end
        return state.count, state.start if now < begin else min(state.start, now), end

    @property
    def start_text(self) -> str:
        """The words of the notation for the first day of a period, such as `from 15`; empty for the default."""
        return "" if self.start in (None, 1, "monday") else f"from {self.start}"

    def _format_notation(self, names: Iterable[str]) -> str:
        zone = f" in {self.zone}" if "zone" in names and self.zone != "UTC" else ""
        start = f" {self.start_text}" if self.start_text else ""
        return f"{self.quota}/{self.period}{zone}{start} using {self.algorithm}"
