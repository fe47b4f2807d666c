"""Redis Cluster: keys live in slots, one call reaches one slot, and so a group of charges may take several calls.

Each slot decides its own part of the group, all or nothing, at the same time as the others. Where the group as a whole
comes out differently, the parts are mended: what was taken is given back. So nothing is ever over-admitted, and a
neighbour may be refused for units that are given back a moment later.
"""

from binascii import crc_hqx
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores.group import committed

_SLOTS: Final = 16384

Part = list[int]  # indices of the charges in one slot
Ask = Callable[[Sequence[Charge]], Generator[Any, Any, list[Decision]]]


def slot(key: bytes) -> int:
    """The hash slot of a key: CRC16 (XMODEM) of what is between the first braces, or of all of it."""
    start = key.find(b"{") + 1
    end = key.find(b"}", start) if start else -1
    return crc_hqx(key[start:end] if end > start else key, 0) % _SLOTS


def parts(keys: Sequence[bytes]) -> list[Part]:
    """The indices of the keys, by slot."""
    by_slot: dict[int, Part] = {}
    for index, key in enumerate(keys):
        by_slot.setdefault(slot(key), []).append(index)
    return list(by_slot.values())


def take_apart(
    apart: Sequence[Part], charges: Sequence[Charge], take: Ask, mend: Ask
) -> Generator[Any, Any, list[Decision]]:
    """Steps that take a group part by part. `take` and `mend` make the steps of one part.

    `mend` gets charges whose cost is the signed correction, and answers how things stand after it. Raises the error of
    a part that failed, after giving back what the others took. A part that is not heard in time gives back by itself
    what it took, when it is done.
    """
    decisions: dict[int, Decision] = {}
    ends: dict[int, str] = {}  # by part: whether it was done before it was given up; who writes first has said it

    def take_part(number: int) -> Generator[Any, Any, None]:
        part = apart[number]
        found = yield from take([charges[index] for index in part])
        decisions.update(zip(part, found, strict=True))
        if ends.setdefault(number, "done") == "given up":
            yield from give_back(number)

    def give_back(number: int) -> Generator[Any, Any, None]:
        wrong = [index for index, taken in _taken(apart[number], charges, decisions).items() if taken]
        if wrong:
            yield from mend([_correction(charges[index], decisions[index], take=False) for index in wrong])

    outcomes = yield [take_part(number) for number in range(len(apart))]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failures:
        heard = [number for number in range(len(apart)) if ends.setdefault(number, "given up") == "done"]
        yield [give_back(number) for number in heard]
        raise failures[0]
    due = committed(charges, [decisions[index] for index in range(len(charges))])
    taken = {index: was for part in apart for index, was in _taken(part, charges, decisions).items()}
    wrong = {index for index, was in taken.items() if was != due[index]}
    to_mend = [part for part in ([index for index in part if index in wrong] for part in apart) if part]
    if to_mend:
        corrections = [[_correction(charges[i], decisions[i], take=due[i]) for i in part] for part in to_mend]
        outcomes = yield [mend(part) for part in corrections]
        for part, outcome in zip(to_mend, outcomes, strict=True):
            if isinstance(outcome, Exception):
                warn_rarely("store", "not known to be given back after another slot refused: %s", outcome)
            else:
                decisions.update(zip(part, outcome, strict=True))
    return [decisions[index] for index in range(len(charges))]


def _taken(part: Part, charges: Sequence[Charge], decisions: dict[int, Decision]) -> dict[int, bool]:
    """Which charges of a part its slot took, of those that cost something."""
    took = committed([charges[index] for index in part], [decisions[index] for index in part])
    return {index: was for index, was in zip(part, took, strict=True) if charges[index].cost}


def _correction(charge: Charge, decision: Decision, *, take: bool) -> Charge:
    """Take what the part did not, or give back what it took."""
    return replace(charge, cost=charge.cost if take else -charge.cost, at=decision.at)
