"""How requests become calls, over a way to send that the test has in hand."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores.redis import batcher as batching
from ratelimit_mw.stores.redis.batcher import Batcher, OnReplies
from ratelimit_mw.stores.redis.parcel import EncodedGroup, PendingTake
from turns import turns

T = TypeVar("T")
PATIENT = 5.0  # seconds


class Way:
    """Counts what goes through it. While it is shut, nothing comes back; while it is `away`, nothing can be sent."""

    def __init__(self) -> None:
        self.sizes: list[int] = []  # groups of each call
        self.looked = self.going = self.most = 0
        self.open, self.there = asyncio.Event(), asyncio.Event()
        self.open.set()
        self.there.set()
        self.down = self.undone = False
        self.tasks: list[asyncio.Task[None]] = []

    async def ready(self) -> None:
        self.looked += 1
        await self.there.wait()
        if self.down:
            raise StoreError("cannot connect")

    def begin(self, pending_takes: Sequence[PendingTake], on_replies: OnReplies) -> Callable[[], object] | None:
        """At once, unless it is away: then it has to be waited for."""
        if self.down or not self.there.is_set():
            return None
        going = asyncio.get_running_loop().create_task(self._go(pending_takes, on_replies))
        self.tasks.append(going)
        return going.cancel

    async def _go(self, pending_takes: Sequence[PendingTake], on_replies: OnReplies) -> None:
        replies = await self.send(pending_takes)
        on_replies(None if self.undone else replies)
        self.undone = False

    async def send(self, pending_takes: Sequence[PendingTake]) -> Sequence[object]:
        self.sizes.append(len(pending_takes))
        self.going += 1
        self.most = max(self.most, self.going)
        try:
            await self.open.wait()
            await asyncio.sleep(0)
            return [pending_take.encoded_group.original_charges[0].key for pending_take in pending_takes]
        finally:
            self.going -= 1


def pending_take(name: object) -> PendingTake:
    return PendingTake(EncodedGroup([Charge(str(name), FixedWindow(5, 60))], lambda _: [b"key"], "msgpack"))


Work = Callable[[Batcher, Way], Coroutine[Any, Any, T]]


def run(work: Work[T], timeout: float = PATIENT, *, at_once: bool = True) -> T:
    """Over a way on which something is sent at once, where it can be."""

    async def main() -> T:
        way = Way()
        batcher = (
            Batcher(way.ready, way.send, timeout, begin=way.begin) if at_once else Batcher(way.ready, way.send, timeout)
        )
        try:
            return await work(batcher, way)
        finally:
            batcher.close()

    return asyncio.run(main())


BOTH = pytest.mark.parametrize("at_once", [True, False], ids=["at once", "awaited"])


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go on until then, 5 seconds at most."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")


# seconds that a call is under way until the next one goes with fewer; how long it takes is no matter of a test
NEVER_LONG, ALWAYS_LONG = math.inf, -1.0


@BOTH
@pytest.mark.parametrize(
    ("long", "sizes", "then"),
    [(NEVER_LONG, [1, 16], [32, 32, 4]), (ALWAYS_LONG, [1, 1], [32, 32, 19])],
    ids=["as soon as it is enough", "one by one"],
)
def test_two_calls_at_most_are_under_way(
    at_once: bool, long: float, sizes: list[int], then: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.open.clear()
        replies = []
        for number in range(85):
            replies.append(batcher.submit(pending_take(number)))
            await turns(2)
        assert way.sizes == sizes
        way.open.set()
        assert await asyncio.gather(*replies) == [str(number) for number in range(85)]
        assert (way.most, way.sizes) == (2, [*sizes, *then])

    monkeypatch.setattr(batching, "_SLOW_CALL", long)
    run(work, at_once=at_once)


@BOTH
def test_the_next_call_goes_when_the_one_before_is_answered(at_once: bool) -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        batcher._check_scheduled = True  # as if somebody did: nobody looks who waits too long, and has them sent
        way.open.clear()
        replies = [batcher.submit(pending_take("first"))]
        await until(lambda: way.sizes == [1])
        replies.append(batcher.submit(pending_take("second")))
        way.open.set()
        async with asyncio.timeout(PATIENT):
            assert await asyncio.gather(*replies) == ["first", "second"]
        assert way.sizes == [1, 1]

    run(work, at_once=at_once)


@BOTH
def test_nobody_has_to_come_for_the_next_call_to_go(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that waits alone behind a call that takes long is sent soon."""

    async def work(batcher: Batcher, way: Way) -> None:
        way.open.clear()
        replies = [batcher.submit(pending_take("first"))]
        await until(lambda: way.sizes == [1])
        replies.append(batcher.submit(pending_take("second")))
        await turns(5)
        assert way.sizes == [1]
        monkeypatch.setattr(batching, "_SLOW_CALL", ALWAYS_LONG)
        await until(lambda: way.sizes == [1, 1])
        way.open.set()
        assert await asyncio.gather(*replies) == ["first", "second"]

    monkeypatch.setattr(batching, "_SLOW_CALL", NEVER_LONG)
    run(work, at_once=at_once)


@BOTH
def test_a_call_that_takes_long_holds_up_nobody(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes while it is not long yet waits for it; who comes later goes with those who wait."""

    async def work(batcher: Batcher, way: Way) -> None:
        way.open.clear()
        replies = [batcher.submit(pending_take("first"))]
        await until(lambda: way.sizes == [1])
        replies.append(batcher.submit(pending_take("soon")))
        await turns(5)
        assert way.sizes == [1]
        monkeypatch.setattr(batching, "_SLOW_CALL", ALWAYS_LONG)
        replies.append(batcher.submit(pending_take("later")))
        await until(lambda: way.sizes == [1, 2])
        way.open.set()
        assert await asyncio.gather(*replies) == ["first", "soon", "later"]

    monkeypatch.setattr(batching, "_SLOW_CALL", NEVER_LONG)
    run(work, at_once=at_once)


def test_what_is_enough_for_a_call_does_not_wait_for_the_end_of_the_turn() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        begun: list[int] = []
        begin = batcher._begin

        def noted(pending_takes: Sequence[PendingTake], on_replies: OnReplies) -> Callable[[], object] | None:
            begun.append(len(pending_takes))
            return begin(pending_takes, on_replies)

        batcher._begin = noted
        replies = [batcher.submit(pending_take(number)) for number in range(15)]
        assert begun == []
        replies += [batcher.submit(pending_take(number)) for number in range(15, 66)]
        assert begun == [16, 16]  # as many as may be under way
        assert await asyncio.gather(*replies) == [str(number) for number in range(66)]
        assert begun == [16, 16, 32, 2]

    run(work)


@pytest.mark.parametrize(("requests", "senders"), [(1, 1), (32, 1), (33, 2), (1000, 2)])
def test_no_more_senders_start_than_there_is_something_for(requests: int, senders: int) -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.there.clear()
        replies = [batcher.submit(pending_take(number)) for number in range(requests)]
        await turns(3)
        assert way.looked == senders
        way.there.set()
        assert await asyncio.gather(*replies) == [str(number) for number in range(requests)]

    run(work)


@BOTH
@pytest.mark.promise(8)
def test_calls_that_nobody_waits_for_give_their_place_to_others(at_once: bool) -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.open.clear()
        late = [batcher.submit(pending_take(number)) for number in range(64)]
        errors = await asyncio.gather(*late, return_exceptions=True)
        assert {str(error) for error in errors} == {"no answer within 0.05 seconds"}
        assert way.sizes == ([16, 16] if at_once else [32, 32])
        more = asyncio.create_task(asyncio.wait_for(batcher.submit(pending_take("more")), PATIENT))
        await until(lambda: len(way.sizes) == 3)
        way.open.set()
        assert await more == "more"

    run(work, timeout=0.05, at_once=at_once)


@BOTH
@pytest.mark.promise(8)
def test_when_nothing_can_be_sent_all_who_wait_hear_of_it_and_later_ones_are_sent(at_once: bool) -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.down = True
        replies = [batcher.submit(pending_take(number)) for number in range(100)]
        errors = await asyncio.gather(*replies, return_exceptions=True)
        assert [str(error) for error in errors] == ["cannot connect"] * 100
        assert len(set(map(id, errors))) == 100
        way.down = False
        assert await batcher.submit(pending_take("more")) == "more"

    run(work, at_once=at_once)


@BOTH
@pytest.mark.promise(8)
def test_who_waits_when_it_is_closed_hears_of_it(at_once: bool) -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.open.clear()
        replies = [batcher.submit(pending_take(number)) for number in range(100)]
        await until(lambda: way.going == 2)
        batcher.close()
        assert all(reply.done() for reply in replies)
        assert {str(reply.exception()) for reply in replies} == {"the store was closed"}

    run(work, at_once=at_once)


@BOTH
def test_the_loop_may_go_on_for_long_without_anybody_who_waits(at_once: bool) -> None:
    """Nobody looks at the clock then."""

    async def work(batcher: Batcher, way: Way) -> None:
        assert await batcher.submit(pending_take(1)) == "1"
        await until(lambda: not batcher._check_scheduled)
        assert await batcher.submit(pending_take(2)) == "2"
        assert way.sizes == [1, 1]

    run(work, at_once=at_once)


def test_what_was_not_done_is_sent_again_and_those_who_wait_behind_it_too() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.undone = True
        replies = [batcher.submit(pending_take(number)) for number in range(40)]
        assert await asyncio.gather(*replies) == [str(number) for number in range(40)]
        assert sorted(way.sizes) == [8, 16, 16, 16]  # the first of them twice
        assert await batcher.submit(pending_take("more")) == "more"

    run(work)


@BOTH
def test_a_late_call_is_ended_when_it_has_lingered_and_not_after_it_ended(at_once: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(batching, "ORPHAN_TIMEOUT", 0.05)

    async def work(batcher: Batcher, way: Way) -> None:
        way.open.clear()
        with pytest.raises(StoreError):
            await batcher.submit(pending_take("late"))
        await until(lambda: way.going == 0)  # it was ended
        ended: list[object] = []
        call = batching._Call([pending_take("over")], 0.0)
        call.cancel = lambda: ended.append(call)
        call.abort()
        call.over = True
        call.abort()
        assert ended == [call]

    run(work, timeout=0.02, at_once=at_once)


@pytest.mark.promise(8)
@BOTH
def test_whatever_sending_raises_those_who_wait_hear_of_it_and_later_ones_are_sent(at_once: bool) -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        def broken(*_: object) -> Any:
            raise RuntimeError("a defect")

        whole = batcher._begin, batcher._send
        batcher._begin = broken if at_once else batcher._begin
        batcher._send = broken
        asked = asyncio.gather(*(batcher.submit(pending_take(number)) for number in range(100)), return_exceptions=True)
        errors = await asyncio.wait_for(asked, PATIENT)
        assert {str(error) for error in errors} == {"RuntimeError: a defect"}
        assert all(isinstance(error, StoreError) for error in errors)
        batcher._begin, batcher._send = whole
        assert await batcher.submit(pending_take("more")) == "more"

    run(work, at_once=at_once)
