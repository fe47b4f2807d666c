"""Splits groups of charges by hash slot, because on Redis Cluster one call reaches one slot only.

All slots decide their parts of the group concurrently, each all or nothing. If the group as a whole has another outcome
than a part, the part is repaired, mostly by a refund of the units that it took. So no limit is ever exceeded, but
another request may be refused because of units that are refunded a moment later.
"""

from binascii import crc_hqx
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.stores.group import committed
from ratelimit_mw.stores.redis.protocol import Sender

_SLOTS: Final = 16384

SlotGroup = list[int]  # indices of the charges in one slot
RunPart = Callable[[Sequence[Charge], Sender], Coroutine[Any, Any, list[Decision]]]


def slot(key: bytes) -> int:
    """Return the hash slot of a key: CRC16 (XMODEM) of the text in its first braces, or of the whole key."""
    start = key.find(b"{") + 1
    end = key.find(b"}", start) if start else -1
    return crc_hqx(key[start:end] if end > start else key, 0) % _SLOTS


def split_by_slot(keys: Sequence[bytes]) -> list[SlotGroup]:
    """Return the indices of the keys of each slot."""
    by_slot: dict[int, SlotGroup] = {}
    for index, key in enumerate(keys):
        by_slot.setdefault(slot(key), []).append(index)
    return list(by_slot.values())


async def take_by_slot(
    slot_groups: Sequence[SlotGroup], charges: Sequence[Charge], take: RunPart, repair: RunPart, sender: Sender
) -> list[Decision]:
    """Take a group, one part per slot.

    `repair` receives charges whose cost is the signed correction, and returns the decisions after it. If a part fails,
    its error is raised after the other parts are refunded. A part that ends too late refunds its own units.
    """
    decisions: dict[int, Decision] = {}
    part_states: dict[int, str] = {}  # by number of the part, "done" or "given up": the first that happened

    async def take_part(number: int, sender: Sender) -> None:
        part = slot_groups[number]
        part_decisions = await take([charges[index] for index in part], sender)
        decisions.update(zip(part, part_decisions, strict=True))
        if part_states.setdefault(number, "done") == "given up":
            await refund(number, sender)

    async def refund(number: int, sender: Sender) -> None:
        to_repair = [
            index for index, was_charged in _charged_in(slot_groups[number], charges, decisions).items() if was_charged
        ]
        if to_repair:
            await repair([_correction(charges[index], decisions[index], take=False) for index in to_repair], sender)

    outcomes = await sender.run_all([partial(take_part, number) for number in range(len(slot_groups))])
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failures:
        done_parts = [
            number for number in range(len(slot_groups)) if part_states.setdefault(number, "given up") == "done"
        ]
        await sender.run_all([partial(refund, number) for number in done_parts])
        raise failures[0]
    expected = committed(charges, [decisions[index] for index in range(len(charges))])
    was_charged = {index: was for part in slot_groups for index, was in _charged_in(part, charges, decisions).items()}
    to_repair = {index for index, was in was_charged.items() if was != expected[index]}
    repairs = [part for part in ([index for index in part if index in to_repair] for part in slot_groups) if part]
    if repairs:
        corrections = [[_correction(charges[i], decisions[i], take=expected[i]) for i in part] for part in repairs]
        repaired = await sender.run_all([partial(repair, part) for part in corrections])
        for part, outcome in zip(repairs, repaired, strict=True):
            if isinstance(outcome, Exception):
                warn_throttled(
                    "store",
                    "correction failed after another slot refused, units may stay charged: %s",
                    outcome,
                    code="RL-205",
                )
            else:
                decisions.update(zip(part, outcome, strict=True))
    return [decisions[index] for index in range(len(charges))]


def _charged_in(part: SlotGroup, charges: Sequence[Charge], decisions: dict[int, Decision]) -> dict[int, bool]:
    """Return by index whether the slot of a part took each charge, except charges of cost 0."""
    took = committed([charges[index] for index in part], [decisions[index] for index in part])
    return {index: was for index, was in zip(part, took, strict=True) if charges[index].cost}


def _correction(charge: Charge, decision: Decision, *, take: bool) -> Charge:
    """Return a charge that takes the units that a part did not take, or refunds those that it took."""
    return replace(charge, cost=charge.cost if take else -charge.cost, at=decision.at)
