"""Ban: so many refusals in a window, and everything is refused for a while. Its Lua twin is `ban.lua`.

It counts what other limits refuse, as a charge of role `penalty`; the setting `penalty` makes one. Rack::Attack calls
it fail2ban and allow2ban.
"""

from collections.abc import Iterable
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, MICROSECONDS, Decision, Limit, check_seconds, microseconds
from ratelimit_mw.core.memo import cached_property


class BanState(Struct, frozen=True, gc=False):
    """What was refused in a window, and the ban that followed."""

    count: int  # refusals
    start: int  # microseconds: the first of them
    until: int = 0  # microseconds; 0 while no ban runs


class Ban(Limit, frozen=True, kw_only=True):
    """Admits while no ban runs; the `quota`-th refusal in a window from the first one starts one, of `ban` seconds.

    `Ban(10, 60, ban=900)`: ten refusals within a minute, and the next quarter of an hour is refused. What it refuses
    itself neither counts nor makes it longer; when it is over, counting begins anew. `ban`: seconds, more than 0 and at
    most a hundred years. Raises `ConfigError` for anything else, and for a quota of 2**52 or more.
    """

    ban: float

    algorithm: ClassVar[str] = "ban"
    ban_us: ClassVar[int]
    """Of the instance: the ban in whole microseconds."""

    def __post_init__(self) -> None:
        self.__dict__["ban_us"] = microseconds(check_seconds("ban", self.ban))
        if not self.ban_us:
            raise ConfigError(f"ban: got {self.ban!r} seconds, expected one microsecond to a hundred years")
        super().__post_init__()
        if self.quota >= MAX_EXACT_INT // 2:
            raise ConfigError(f"quota {self.quota} is too large to count exactly: it must stay below 2**52")

    @property
    def max_wait(self) -> float:
        """Seconds until it admits again, at most: the ban."""
        return self.ban

    def decide(
        self, state: BanState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, BanState | None]:
        count, start, until = self._current_ban(state, now)
        rest, retry, reset = self.ban_us, 0, 0
        if until:
            rest = until - now
            retry = rest if cost else 0
            if (
                state is not None and cost and state.until != until
            ):  # else the lock-out would last until that time comes
                state = BanState(count, start, until)
        elif cost:
            count = min(count + cost, self.quota)
            until = now + self.ban_us if count == self.quota else 0
            state = BanState(count, start, until)
        if until:
            reset = until - now
        elif count:
            reset = start + self.window_us - now
        return Decision(
            not retry,
            self.quota,
            self.quota - count,
            retry / MICROSECONDS,
            rest / MICROSECONDS,
            reset / MICROSECONDS,
            0.0,
            now,
        ), state

    def settle(self, state: BanState | None, now: int, delta: int, at: int) -> BanState | None:
        count, start, until = self._current_ban(state, now)
        if delta > 0 and not until:
            count = min(count + delta, self.quota)
            return BanState(count, start, now + self.ban_us if count == self.quota else 0)
        if delta >= 0 or at < (
            until - self.ban_us if until else start
        ):  # what was refused before the ban began is gone
            return state
        count += delta
        return BanState(count, start) if count > 0 and now - start < self.window_us else None

    def expires(self, state: BanState) -> int:
        return state.until or state.start + self.window_us

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        return self.window_us, self.quota, self.ban_us

    def _format_notation(self, names: Iterable[str]) -> str:
        is_whole_seconds = self.ban_us % MICROSECONDS == 0
        length = f"{self.ban_us // MICROSECONDS}s" if is_whole_seconds else f"{self.ban_us}us"
        return super()._format_notation(names).replace(" using ", f" ban {length} using ")

    def _current_ban(self, state: BanState | None, now: int) -> tuple[int, int, int]:
        """Count, start and end of the ban, 0 if none runs; a clock that stepped back makes no ban longer."""
        if state is None:
            return 0, now, 0
        if state.until:
            if state.until <= now:
                return 0, now, 0
            return self.quota, min(state.start, now), min(state.until, now + self.ban_us)
        if now - state.start >= self.window_us:
            return 0, now, 0
        return state.count, min(state.start, now), 0
