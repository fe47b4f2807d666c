"""Tests a group with keys in several hash slots, step by step, without a server."""

from collections.abc import Sequence
from typing import Any

import pytest

from awaited import awaited
from ratelimit_mw import Charge, Decision, FixedWindow, StoreError
from ratelimit_mw.stores.redis.hash_slots import take_by_slot

pytestmark = pytest.mark.promise(2)

CHARGES = [Charge("a", FixedWindow(5, 60)), Charge("b", FixedWindow(5, 60))]
TAKEN = [Decision(True, 5, 4, 0.0, 60.0, 60.0, 0.0, 7)]


def test_late_hash_slot_refunds_its_own_charge() -> None:
    mended: list[tuple[str, int, int | None]] = []

    class Stepped:
        """A sender whose commands and parts the test runs."""

        async def send(self, command: Any) -> Any:
            return await awaited(command)

        async def run_all(self, parts: Sequence[Any]) -> Any:
            return await awaited([part(self) for part in parts])

    async def take(_: Sequence[Charge], sender: Any) -> list[Decision]:
        found: list[Decision] = await sender.send("take")
        return found

    async def repair(part: Sequence[Charge], sender: Any) -> list[Decision]:
        mended.extend((charge.key, charge.cost, charge.at) for charge in part)
        await sender.send("mend")
        return TAKEN

    steps = take_by_slot([[0], [1]], CHARGES, take, repair, Stepped())
    heard, late = steps.send(None)
    assert [heard.send(None), late.send(None)] == ["take", "take"]
    with pytest.raises(StopIteration):
        heard.send(TAKEN)
    (refund,) = steps.send([None, StoreError("late")])
    assert refund.send(None) == "mend"
    assert mended == [("a", -1, 7)]
    with pytest.raises(StoreError, match="late"):
        steps.send([None])
    assert late.send(TAKEN) == "mend"
    assert mended == [("a", -1, 7), ("b", -1, 7)]
