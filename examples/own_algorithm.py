"""An algorithm of one's own: `quota` units in each `window` of the clock; 86400 seconds begin at midnight UTC."""

import math
import time

from ratelimit_mw import Decision, Limit, Limiter, MemoryStore

State = tuple[int, int] | None  # when the window began, microseconds; units taken in it


class ByTheClock(Limit, frozen=True):
    algorithm = "by_the_clock"  # part of the bucket's id

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        start, used = self._window(state, now)
        allowed = not cost or used + cost <= self.quota
        used += cost if allowed else 0
        state = (start, used) if cost and used else state  # refused too: a window in the future is this one now
        end = (start + self.window_us - now) / 1_000_000
        wait = 0.0 if allowed else end if cost <= self.quota else math.inf
        return Decision(
            allowed, self.quota, max(0, self.quota - used), wait, end, end if used else 0.0, 0.0, now
        ), state

    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        start, used = self._window(state, now)
        used += delta if delta > 0 or at >= start else 0  # what was taken in an earlier window came back with this one
        return (start, used) if used > 0 else None

    def expires(self, state: tuple[int, int]) -> int:
        return state[0] + self.window_us

    def _window(self, state: State, now: int) -> tuple[int, int]:
        start = now - now % self.window_us
        return start, state[1] if state and state[0] >= start else 0


if __name__ == "__main__":
    limiter = Limiter(MemoryStore(clock=time.time))  # the default clock has no time of day
    print([limiter.hit(ByTheClock(2, 86400), "alice").allowed for _ in range(3)])
