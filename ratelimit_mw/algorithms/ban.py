"""Ban: refuses everything for a while after too many refusals. The Lua implementation is `ban.lua`.

It counts the refusals of other limits. The setting `penalty` creates its charge, which has the role `penalty`.
Rack::Attack calls this fail2ban and allow2ban.
"""

from collections.abc import Iterable
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, MICROSECONDS, Decision, Limit, check_seconds, microseconds


class BanState(Struct, frozen=True, gc=False, array_like=True):
    """The refusals in a window, and the ban that followed."""

    count: int  # refusals
    start: int  # microseconds; the instant of the first one
    until: int = 0  # microseconds; 0 without a ban


class Ban(Limit, frozen=True, kw_only=True):
    """Refuses during a ban of `ban` seconds. The `quota`-th refusal in a window starts the ban.

    `Ban(10, 60, ban=900)`: ten refusals within a minute cause a ban of 15 minutes. The window starts at its first
    refusal. Requests that the ban refuses do not count, and do not prolong it. After the ban, counting restarts at 0.
    `ban`: seconds, more than 0 and at most 100 years. Raises `ConfigError` for other values, and for a quota of 2**52
    or more.
    """

    ban: float

    algorithm: ClassVar[str] = "ban"
    min_quota: ClassVar[int] = 1
    ban_us: ClassVar[int]
    """Instance value: the ban in whole microseconds."""

    def __post_init__(self) -> None:
        self.__dict__["ban_us"] = microseconds(check_seconds("ban", self.ban))
        if not self.ban_us:
            raise ConfigError(
                f"ban: got {self.ban!r} seconds, expected one microsecond to a hundred years", code="RL-014"
            )
        super().__post_init__()
        if self.quota >= MAX_EXACT_INT // 2:
            raise ConfigError(
                f"quota {self.quota} is too large to count exactly: it must stay below 2**52", code="RL-013"
            )

    @property
    def max_wait(self) -> float:
        """Longest wait until it admits again, in seconds: the ban."""
        return self.ban

    def decide(
        self, state: BanState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, BanState | None]:
        count, start, ban_end = self._current_ban(state, now)
        rest, retry, reset = self.ban_us, 0, 0
        if ban_end:
            rest = ban_end - now
            retry = rest if cost else 0
            if state is not None and cost and state.until != ban_end:
                # the clock stepped back: the old state would ban for longer than `ban`
                state = BanState(count, start, ban_end)
        elif cost:
            count = min(count + cost, self.quota)
            ban_end = now + self.ban_us if count == self.quota else 0
            state = BanState(count, start, ban_end)
        if ban_end:
            reset = ban_end - now
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
        count, start, ban_end = self._current_ban(state, now)
        if delta > 0 and not ban_end:
            count = min(count + delta, self.quota)
            return BanState(count, start, now + self.ban_us if count == self.quota else 0)
        if delta >= 0 or at < (ban_end - self.ban_us if ban_end else start):
            return state  # refusals before the ban or the window no longer count
        count += delta
        return BanState(count, start) if count > 0 and now - start < self.window_us else None

    def expires(self, state: BanState) -> int:
        return state.until or state.start + self.window_us

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.window_us, self.quota, self.ban_us

    def used(self, state: BanState, now: int) -> int:
        """Return the refusals that count at `now`."""
        return self._current_ban(state, now)[0]

    def is_running(self, state: BanState, now: int) -> bool:
        """Whether a ban runs at `now`."""
        return self._current_ban(state, now)[2] > 0

    def continued(self, old: "Ban", state: BanState, now: int) -> BanState | None:
        """Return the state with the refusals that another limit counted before a ban; None without any."""
        count, start, _ = old._current_ban(state, now)  # noqa: SLF001  # same class
        count = min(count, self.quota - 1)  # only a refusal starts a ban
        return BanState(count, start) if count else None

    def _format_notation(self, names: Iterable[str]) -> str:
        is_whole_seconds = self.ban_us % MICROSECONDS == 0
        length = f"{self.ban_us // MICROSECONDS}s" if is_whole_seconds else f"{self.ban_us}us"
        return super()._format_notation(names).replace(" using ", f" ban {length} using ")

    def _current_ban(self, state: BanState | None, now: int) -> tuple[int, int, int]:
        """Return count, start and the end of the ban, 0 without one. A clock that steps back does not prolong a ban."""
        if state is None:
            return 0, now, 0
        if state.until:
            if state.until <= now:
                return 0, now, 0
            return self.quota, min(state.start, now), min(state.until, now + self.ban_us)
        if now - state.start >= self.window_us:
            return 0, now, 0
        return state.count, min(state.start, now), 0
