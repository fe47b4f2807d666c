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
    a part that failed, after giving back what the others took.
    """
    outcomes = yield [take([charges[index] for index in part]) for part in apart]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    decisions: dict[int, Decision] = {}
    taken: dict[int, bool] = {}
    for part, outcome in zip(apart, outcomes, strict=True):
        if not isinstance(outcome, Exception):
            decisions.update(zip(part, outcome, strict=True))
            taken.update(zip(part, committed([charges[index] for index in part], outcome), strict=True))
    due = [False] * len(charges)
    if not failures:
        due = committed(charges, [decisions[index] for index in range(len(charges))])
    wrong = {index for index in taken if taken[index] != due[index] and charges[index].cost}
    to_mend = [part for part in ([index for index in part if index in wrong] for part in apart) if part]
    if to_mend:
        corrections = [[_correction(charges[i], decisions[i], take=due[i]) for i in part] for part in to_mend]
        outcomes = yield [mend(part) for part in corrections]
        for part, outcome in zip(to_mend, outcomes, strict=True):
            if isinstance(outcome, Exception):
                warn_rarely("store", "what another slot refused was not given back: %s", outcome)
            else:
                decisions.update(zip(part, outcome, strict=True))
    if failures:
        raise failures[0]
    return [decisions[index] for index in range(len(charges))]


def _correction(charge: Charge, decision: Decision, *, take: bool) -> Charge:
    """Take what the part did not, or give back what it took."""
    return replace(charge, cost=charge.cost if take else -charge.cost, at=decision.at)
