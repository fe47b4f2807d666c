"""What WSGI middleware adds to a request, called as a server calls it."""

from collections.abc import Sequence
from typing import Final

from benchmarks.ours.wsgi import floor, limited
from benchmarks.runner import Race, Row

ROWS: Final[Sequence[Row]] = [
    Race(name="wsgi", what="added to a request, headers on", ours=limited, floor=floor),
]
