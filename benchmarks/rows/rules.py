"""What many rules cost a request."""

from collections.abc import Sequence
from typing import Final

from benchmarks.ours.rules import FEW, MANY, few, floor, many
from benchmarks.runner import Race, Row

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
]
