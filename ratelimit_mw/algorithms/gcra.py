"""Generic cell rate algorithm (ITU-T I.371): one instant per bucket. The Lua implementation is `gcra.lua`.

The theoretical arrival time (TAT) is the instant at which everything taken has drained. In ticks, the level of a bucket
is its TAT minus now.
"""

from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.algorithms.bucket import DrainingLimit
from ratelimit_mw.algorithms.ticks import ceil_div


class GcraOverfullState(Struct, frozen=True, gc=False, array_like=True):
    """A bucket above full, because of delayed requests or debt.

    Without `updated`, a TAT so far ahead could not be told from a clock that stepped back.
    """

    tat: int  # ticks
    updated: int  # clock steps


GcraState = int | GcraOverfullState | None
"""The TAT in ticks, step * drain + level; or a bucket above full."""


class GCRA(DrainingLimit, frozen=True, kw_only=True):
    """Admits while the TAT, including this charge, is at most `burst` units ahead of now.

    `GCRA(100, 60, burst=20)`: 20 at once, then one every 0.6 s. Decides like `token_bucket`, with the smallest state:
    one number. If the clock steps back, the TAT is too far ahead. The bucket then counts as fuller than it was, but
    never as more than full.
    """

    algorithm: ClassVar[str] = "gcra"

    def expires(self, state: int | GcraOverfullState) -> int:
        clock, drain, *_ = self.ticks
        return ceil_div(state if isinstance(state, int) else state.tat, drain) * clock

    def _level(self, state: GcraState, step: int, drain: int, full: int) -> tuple[int, bool]:
        if isinstance(state, int):
            level = state - step * drain
            return (level if level > 0 else 0, False) if level <= full else (full, True)
        if state is None:
            return 0, False
        ahead = state.updated > step
        level = state.tat - (state.updated if ahead else step) * drain
        return (level if level > 0 else 0), ahead

    def _state(self, level: int, step: int, drain: int, full: int) -> GcraState:
        tat = step * drain + level
        return tat if level <= full else GcraOverfullState(tat, step)
