"""Decides charges that leave units to others, see `Limit.keep`. The Lua implementation is `stores/redis/keep.lua`."""

from collections.abc import Callable
from typing import Any


def decide_keeping(
    decide: Callable[..., tuple[Any, Any]], keep: int, state: Any, now: int, cost: int, max_delay: int | None
) -> tuple[Any, Any]:
    """Return the decision of a limit with `keep`, see `Limit.decide`: on a cost of so much more, which is not taken."""
    if cost:
        decision, new = decide(state, now, cost + keep, max_delay)
        if not decision.allowed:
            return decision, new
    return decide(state, now, cost, max_delay)
