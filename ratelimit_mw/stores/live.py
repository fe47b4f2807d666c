"""What a store keeps for the dashboard: counts per second and per minute, a sample of clients, and the processes.

The counts are in rings of slots. The slot of an instant is its number modulo the size of the ring, so that a ring never
grows, and nothing has to be tidied. A slot that is full counts further names as `other`. All rings together take less
than 3 MB.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

KEPT_SECONDS: Final = 300  # of the rings of seconds
KEPT_MINUTES: Final = 1440  # of the ring of minutes: a day
KEPT_PROCESS: Final = 60  # seconds that the store keeps a process that reports no more
KEPT_TIME: Final = 90_000  # seconds after which a store forgets all of this, if no process reports
MAX_PROCESSES: Final = 256
OTHER: Final = "other"
MAX_NAME: Final = 120  # characters of a name in a slot

Counts = tuple[int, int, int]  # admitted, refused, and what a shadow limit would have refused
_NONE: Final[Counts] = 0, 0, 0
_UNWANTED: Final = {ord(character): " " for character in "\t\n\r"}  # separators of a slot


class Ring(NamedTuple):
    """A ring. `unit`: seconds of a slot. `size`: number of slots. `most`: bytes of a slot's names and counts."""

    name: str
    unit: int
    size: int
    most: int


BY_SECOND: Final = Ring("seconds", 1, KEPT_SECONDS + 30, 900)  # which a server of Redis keeps in 1,024 bytes
BY_MINUTE: Final = Ring("minutes", 60, KEPT_MINUTES + 5, 900)
CLIENTS: Final = Ring("clients", 1, KEPT_SECONDS + 30, 2400)
RINGS: Final = (BY_SECOND, BY_MINUTE, CLIENTS)


class Row(Struct, frozen=True):
    """Counts to add to the slot of an instant. `at`: seconds since 1970, divided by the ring's `unit`."""

    at: int
    counts: Mapping[str, Counts]


class Report(Struct, frozen=True):
    """What a process counted. `rows`: by the name of the ring. `text`: describes the process; None if it ends.

    `number`: counts the reports of the process, so that a store adds one only once, even if it is sent again.
    """

    process: str
    number: int
    seen: int
    text: bytes | None
    rows: Mapping[str, Sequence[Row]]


class Wanted(Struct, frozen=True):
    """What to read: the instants of each ring, by its name."""

    slots: Mapping[str, range]


class Live(Struct, frozen=True):
    """What a store returned: the counts by ring and instant, and the texts of the processes by when they were seen."""

    rows: Mapping[str, Mapping[int, Mapping[str, Counts]]]
    processes: Sequence[tuple[int, bytes]]


@runtime_checkable
class LiveKeeper(Protocol):
    """A store for threads that keeps what the dashboard shows. All methods raise `StoreError` without an answer."""

    def add_live(self, reports: Sequence[Report]) -> None:
        """Add the reports of a process, in the order of their numbers. Leaves out those that it has already."""
        ...

    def read_live(self, wanted: Wanted) -> Live:
        """Return counts and processes, in one read."""
        ...


@runtime_checkable
class AsyncLiveKeeper(Protocol):
    """The part of `LiveKeeper` that an app under asyncio needs."""

    async def aadd_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`."""
        ...


def safe_name(name: str) -> str:
    """Return a name as UTF-8 can encode it, without the separators of a slot, and not too long."""
    return name.translate(_UNWANTED)[:MAX_NAME].encode("utf-8", "replace").decode()


def merged(text: bytes | None, ring: Ring, row: Row) -> bytes | None:
    """Return the text of a slot with the counts of a row; None if the slot has a later instant already.

    `stores/redis/live_add.lua` does the same.
    """
    at, counts = unpacked(text)
    if at > row.at:
        return None
    kept = dict(counts) if at == row.at else {}
    for name, added in row.counts.items():
        kept[name] = _plus(kept.get(name, _NONE), added)
    other, lines, size = kept.pop(OTHER, _NONE), [b"%d\n" % row.at], 0
    for name, some in kept.items():
        line = _line(name, some)
        size += len(line)
        if size > ring.most:  # counted again for each row, because the numbers grow
            other = _plus(other, some)
        else:
            lines.append(line)
    return b"".join(lines) + (b"" if other == _NONE else _line(OTHER, other))


def unpacked(text: bytes | None) -> tuple[int, Mapping[str, Counts]]:
    """Return the instant and the counts of a slot; -1 and none of one that is empty, or of another program."""
    head, _, rest = (text or b"").partition(b"\n")
    if not head.isdigit():
        return -1, {}
    found = {}
    for line in rest.split(b"\n"):
        name, *numbers = line.rsplit(b"\t", 3)
        if len(numbers) == len(("admitted", "refused", "shadow")) and all(map(bytes.isdigit, numbers)):
            admitted, refused, shadow = map(int, numbers)
            found[name.decode("utf-8", "surrogatepass")] = admitted, refused, shadow
    return int(head), found


def rows_of(texts: Iterable[bytes | None], instants: Iterable[int]) -> Mapping[int, Mapping[str, Counts]]:
    """Return the counts of slots that have these instants. Slots of other instants are left out."""
    found = zip(map(unpacked, texts), instants, strict=True)
    return {at: counts for (at, counts), wanted in found if at == wanted}


def _plus(one: Counts, two: Counts) -> Counts:
    return one[0] + two[0], one[1] + two[1], one[2] + two[2]


def _line(name: str, counts: Counts) -> bytes:
    return b"%b\t%d\t%d\t%d\n" % (name.encode("utf-8", "surrogatepass"), *counts)
