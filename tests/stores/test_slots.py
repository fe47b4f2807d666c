"""A group over several slots, step by step, without a server."""

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from ratelimit_mw import Charge, Decision, FixedWindow, StoreError
from ratelimit_mw.stores.redis.hash_slots import take_by_slot

pytestmark = pytest.mark.promise(2)

CHARGES = [Charge("a", FixedWindow(5, 60)), Charge("b", FixedWindow(5, 60))]
TAKEN = [Decision(True, 5, 4, 0.0, 60.0, 60.0, 0.0, 7)]


def test_a_slot_that_is_done_too_late_gives_back_by_itself() -> None:
    mended: list[tuple[str, int, int | None]] = []

    def take(_: Sequence[Charge]) -> Generator[Any, Any, list[Decision]]:
        found: list[Decision] = yield "take"
        return found

    def repair(part: Sequence[Charge]) -> Generator[Any, Any, list[Decision]]:
        mended.extend((charge.key, charge.cost, charge.at) for charge in part)
        yield "mend"
        return TAKEN

    steps = take_by_slot([[0], [1]], CHARGES, take, repair)
    heard, late = next(steps)
    assert [next(heard), next(late)] == ["take", "take"]
    with pytest.raises(StopIteration):
        heard.send(TAKEN)
    (refund,) = steps.send([None, StoreError("late")])
    assert next(refund) == "mend"
    assert mended == [("a", -1, 7)]
    with pytest.raises(StoreError, match="late"):
        steps.send([None])
    assert late.send(TAKEN) == "mend"
    assert mended == [("a", -1, 7), ("b", -1, 7)]
