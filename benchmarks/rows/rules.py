"""Rows of what many rules, and several limits, cost a request."""

from collections.abc import Sequence
from typing import Final

from benchmarks.lab import Lab
from benchmarks.ours.asgi import App, bare, held, limited
from benchmarks.ours.asgi import floor as nothing
from benchmarks.ours.rules import FEW, MANY, few, floor, many
from benchmarks.runner import Contender, Race, Row
from ratelimit_mw.asgi import RateLimitMiddleware

_KEYS: Final = ("ip", "header:user-agent", "all")  # of the first, second and third limit of a request


def _three_limits(lab: Lab) -> Contender:
    def make(quota: int) -> App:
        return RateLimitMiddleware(bare, limits=[{"limit": f"{quota}/hour", "key": key} for key in _KEYS])

    return held(lab, make)


ROWS: Final[Sequence[Row]] = [
    Race(
        name="rules-500",
        what=f"added to an ASGI request under {MANY} rules / the same requests under {FEW}",
        ours=many,
        peer=few,
        floor=floor,
        target=3.0,
        calls=1000,
    ),
    Race(
        name="limits-3",
        what="added to an ASGI request under three limits / under one",
        ours=_three_limits,
        peer=limited,
        floor=nothing,
    ),
]
