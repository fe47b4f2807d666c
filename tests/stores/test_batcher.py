"""Tests how the batcher combines requests into calls, with a transport that the tests control."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from ratelimit_mw import Charge, Decision, FixedWindow, StoreError
from ratelimit_mw.core.errors import StoreNotQueried
from ratelimit_mw.stores.guarded import Guard
from ratelimit_mw.stores.redis import batcher as batching
from ratelimit_mw.stores.redis.async_transport import UNLIMITED, Call
from ratelimit_mw.stores.redis.batcher import Batcher
from ratelimit_mw.stores.redis.commands import DEFAULT_MODE, EncodedGroup, Shape, TakeMode
from ratelimit_mw.stores.redis.protocol import NoScript
from turns import turns

T = TypeVar("T")
PATIENT = 5.0  # seconds
PEEK = TakeMode(0, commit=False)


class Way:
    """A transport that replies to each call in the next turn. While it is shut, it keeps the calls without a reply.

    `room`: calls that may be sent. `down`: whether it cannot connect, so that no room becomes available. `error`: the
    reply to all calls.
    """

    is_cluster = False

    def __init__(self) -> None:
        self.room = UNLIMITED
        self.down = False
        self.error: Exception | None = None
        self.sizes: list[int] = []  # groups of each call
        self.writes = self.looked = self.retired = 0
        self.again: list[int] = []  # groups of each call that was sent again
        self._shut = False
        self._kept: list[Call] = []
        self._there = asyncio.Event()

    def shut(self) -> None:
        self._shut = True

    def open(self) -> None:
        self._shut = False
        kept, self._kept = self._kept, []
        for call in kept:
            self._answer(call)

    def make_room(self, room: int = UNLIMITED) -> None:
        self.room = room
        self._there.set()

    async def ready(self) -> None:
        self.looked += 1
        if self.down:
            raise StoreError("cannot connect")
        self._there.clear()
        await self._there.wait()

    def send(self, calls: Sequence[Call]) -> None:
        self.writes += 1
        for call in calls:
            self.sizes.append(len(call.command))
            if self._shut:
                self._kept.append(call)
            else:
                asyncio.get_running_loop().call_soon(self._answer, call)

    async def query(self, command: Any) -> Any:
        raise AssertionError

    def retire_late(self, timeout: float) -> None:
        assert timeout > 0
        self.retired += 1

    async def close(self) -> None:
        raise AssertionError

    def _answer(self, call: Call) -> None:
        command: Any = call.command
        call.on_reply(self.error or [decided(int(name)) for name in command])

    async def resend(self, groups: Sequence[EncodedGroup], _: TakeMode) -> Sequence[Any]:
        self.again.append(len(groups))
        return [[Decision(True, int(name), 0, 0, 0, 0, 0, 1)] for name in command_of(groups, DEFAULT_MODE)]


def decided(number: int) -> list[int]:
    """Return the integers of a decision whose limit is the number of its group."""
    return [1, number, 0, 0, 0, 0, 0, 1]


def command_of(groups: Sequence[EncodedGroup], _: TakeMode) -> Any:
    return [group.original_charges[0].key for group in groups]


def group(number: object, cost: int = 1) -> EncodedGroup:
    charges = [Charge(str(number), FixedWindow(5, 60), cost)]
    return EncodedGroup(charges, charges, Shape.of(charges, "msgpack"), [b"key"], 0)


def limits(answers: Sequence[Sequence[Decision]]) -> list[int]:
    return [decision.limit for (decision,) in answers]


def run(work: Callable[[Batcher, Way], Coroutine[Any, Any, T]], timeout: float = PATIENT) -> T:
    async def main() -> T:
        way = Way()
        batcher = Batcher(way, command_of, way.resend, timeout, Guard())
        try:
            return await work(batcher, way)
        finally:
            batcher.close()

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until the condition is true. Fails after 5,000 checks, which take at least 5 seconds."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to that")


def test_requests_of_a_turn_form_calls_of_up_to_32_groups_in_two_writes() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(11)]
        assert way.sizes == []
        replies += [batcher.submit(group(number), DEFAULT_MODE) for number in range(11, 50)]
        assert way.sizes == [12]
        await turns(1)
        assert (way.sizes, way.writes) == ([12, 32, 6], 2)
        replies += [batcher.submit(group(50), DEFAULT_MODE)]
        await turns(1)
        assert (way.sizes, way.writes) == ([12, 32, 6, 1], 3)
        way.open()
        assert limits(await asyncio.gather(*replies)) == list(range(51))

    run(work)


def test_at_most_64_requests_are_sent_before_the_first_reply() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(200)]
        await turns(5)
        assert way.sizes == [12, 32, 20]
        way._answer(way._kept.pop(0))
        await turns(5)
        assert way.sizes == [12, 32, 20, 32, 32]
        way.open()
        assert limits(await asyncio.gather(*replies)) == list(range(200))
        assert way.sizes == [12, 32, 20, 32, 32, 32, 32, 8]

    run(work)


@pytest.mark.promise(8)
def test_queued_requests_are_sent_after_the_first_call_failed() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(200)]
        await turns(5)
        way._kept.pop(0).on_reply(StoreError("lost"))
        way.open()
        found = await asyncio.gather(*replies, return_exceptions=True)
        assert [str(error) for error in found[:12]] == ["lost"] * 12
        assert limits([one for one in found[12:] if isinstance(one, list)]) == list(range(12, 200))

    run(work)


def test_a_call_has_requests_of_one_mode_and_at_most_128_charges() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        wide = group(0)
        wide.shape = replace(wide.shape, weight=64)
        replies = [batcher.submit(each, DEFAULT_MODE) for each in (wide, wide, group(1), group(2))]
        replies += [batcher.submit(group(3), PEEK), batcher.submit(group(4), DEFAULT_MODE)]
        assert limits(await asyncio.gather(*replies)) == [0, 0, 1, 2, 3, 4]
        assert way.sizes == [2, 2, 1, 1]

    run(work)


def test_a_request_canceled_within_its_turn_is_not_sent() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(4)]
        replies[0].cancel()
        replies[2].cancel()
        assert limits(await asyncio.gather(replies[1], replies[3])) == [1, 3]
        assert way.sizes == [2]

    run(work)


def test_requests_wait_until_the_transport_has_room() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.room = 1
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(100)]
        await turns(1)
        assert way.sizes == [12, 32]
        way.room = 0
        for number in (100, 101):
            replies.append(batcher.submit(group(number), DEFAULT_MODE))
            await turns(3)
            assert (way.sizes, way.looked) == ([12, 32], 1)  # a single task waits for room
        way.make_room(1)
        while len(way.sizes) < 3:
            await turns(1)
        way.room = 0
        await turns(3)
        assert (way.sizes, way.looked) == ([12, 32, 32], 2)
        way.make_room()
        assert limits(await asyncio.gather(*replies)) == list(range(102))
        assert (way.sizes, way.looked) == ([12, 32, 32, 26], 2)

    run(work)


@pytest.mark.promise(8)
def test_a_failure_to_connect_fails_waiting_requests_but_no_later_ones() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.down, way.room = True, 0
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(100)]
        errors = await asyncio.gather(*replies, return_exceptions=True)
        assert [str(error) for error in errors] == ["cannot connect"] * 100
        assert len(set(map(id, errors))) == 100
        way.down, way.room = False, UNLIMITED
        assert limits([await batcher.submit(group(7), DEFAULT_MODE)]) == [7]
        assert way.sizes == [1]

    run(work)


@pytest.mark.promise(8)
def test_requests_that_time_out_in_the_queue_are_not_sent_later() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.room = 0
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(3)]
        errors = await asyncio.gather(*replies, return_exceptions=True)
        assert [str(error) for error in errors] == ["no answer within 0.02 seconds"] * 3
        way.make_room()
        await turns(3)
        assert way.sizes == []

    run(work, timeout=0.02)


@pytest.mark.promise(8)
def test_a_late_call_retires_its_connection_and_its_reply_is_ignored() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        late = batcher.submit(group(1), DEFAULT_MODE)
        await turns(1)
        with pytest.raises(StoreError, match="no answer within"):
            await late
        assert way.retired == 1
        way.open()
        assert limits([await batcher.submit(group(2), DEFAULT_MODE)]) == [2]
        assert way.retired == 1

    run(work, timeout=0.05)


@pytest.mark.promise(8)
def test_pending_requests_are_bounded_and_each_frees_its_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_MAX_WAITING", 10)

    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        for _ in range(3):
            replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(10)]
            await turns(1)  # all of them are sent
            with pytest.raises(StoreNotQueried, match=r"^10 requests wait for the store already$"):
                batcher.submit(group(10), DEFAULT_MODE)
            replies[3].cancel()
            way.open()
            assert limits(await asyncio.gather(*replies[:3], *replies[4:])) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
            way.shut()
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(10)]
        for reply in replies:
            reply.cancel()
        await turns(1)
        way.open()
        assert limits([await batcher.submit(group(11), DEFAULT_MODE)]) == [11]

    run(work)


@pytest.mark.promise(8)
def test_timed_out_requests_free_their_places_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_MAX_WAITING", 10)

    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        for _ in range(3):
            replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(10)]
            errors = await asyncio.gather(*replies, return_exceptions=True)
            assert {str(error) for error in errors} == {"no answer within 0.02 seconds"}
        way.open()  # the late replies must not free the places of the requests again
        assert limits([await batcher.submit(group(11), DEFAULT_MODE)]) == [11]
        way.shut()
        for number in range(10):
            batcher.submit(group(number), DEFAULT_MODE)
        with pytest.raises(StoreNotQueried, match=r"^10 requests wait for the store already$"):
            batcher.submit(group(10), DEFAULT_MODE)

    run(work, timeout=0.02)


class HandClock:
    """A clock that the test sets. The batcher schedules no check before the end of the test."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def advance(self) -> float:
        return self.at

    def next_wait(self, _: float) -> float:
        return PATIENT


@pytest.mark.promise(8)
def test_a_reply_that_arrives_at_the_deadline_is_used() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        clock: Any = HandClock()
        batcher._clock = clock
        way.shut()
        in_time, late = (batcher.submit(group(number), DEFAULT_MODE) for number in (1, 2))
        await turns(1)
        clock.at = PATIENT
        batcher._check_deadlines()  # the loop may not have read the socket yet
        assert (in_time.done(), way.retired) == (False, 0)
        (call,) = way._kept
        batcher._resolve([batcher._by_deadline[0]], [[Decision(True, 1, 0, 0, 0, 0, 0, 1)]])
        batcher._check_deadlines()
        assert limits([await in_time]) == [1]
        with pytest.raises(StoreError, match="no answer within"):
            await late
        assert (way.retired, len(call.command)) == (1, 2)

    run(work)


@pytest.mark.promise(8)
def test_closing_fails_all_waiting_requests() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(40)]
        await turns(1)
        replies += [batcher.submit(group(number), DEFAULT_MODE) for number in range(40)]
        batcher.close()
        assert all(reply.done() for reply in replies)
        assert {str(reply.exception()) for reply in replies} == {"the store was closed"}
        await turns(2)
        assert way.sizes == [12, 28, 12]

    run(work)


@pytest.mark.promise(8)
def test_a_closed_batcher_neither_sends_nor_connects() -> None:
    """A close fails the pending calls. The batcher must not send the requests that wait for these calls."""

    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        for number in range(100):
            batcher.submit(group(number), DEFAULT_MODE).add_done_callback(lambda reply: reply.exception())
        await turns(1)
        batcher.close()
        way.room, way.error = 0, StoreNotQueried("the store was closed")
        way.open()
        await turns(5)
        assert (way.sizes, way.looked) == ([12, 32, 20], 0)

    run(work)


def test_no_deadline_check_is_scheduled_while_no_request_waits() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        await batcher.submit(group(1), DEFAULT_MODE)
        await until(lambda: not batcher._check_scheduled)
        assert limits([await batcher.submit(group(2), DEFAULT_MODE)]) == [2]
        assert way.sizes == [1, 1]

    run(work)


def test_calls_that_fail_with_noscript_are_sent_again() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.error = NoScript()
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(40)]
        assert limits(await asyncio.gather(*replies)) == list(range(40))
        assert (way.sizes, way.again) == ([12, 28], [12, 28])

    run(work)


@pytest.mark.promise(8)
def test_an_error_fails_each_request_of_its_call_with_its_own_exception() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.error = StoreError("lost")
        replies = [batcher.submit(group(number), DEFAULT_MODE) for number in range(40)]
        errors = await asyncio.gather(*replies, return_exceptions=True)
        assert {str(error) for error in errors} == {"lost"}
        assert len(set(map(id, errors))) == 40
        way.error = StoreError("ratelimit_mw: argument 7 is wrong")
        assert isinstance(await failure(batcher), StoreError)
        assert way.again == []  # the call has a single group, which caused the error

    run(work)


async def failure(batcher: Batcher) -> Any:
    return (await asyncio.gather(batcher.submit(group(1), DEFAULT_MODE), return_exceptions=True))[0]


@pytest.mark.promise(8)
def test_an_exception_while_sending_fails_only_the_requests_of_its_call() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        def broken(*_: object) -> Any:
            raise RuntimeError("a defect")

        whole = batcher._command, way.resend
        batcher._command = broken
        error = await failure(batcher)
        assert (type(error), str(error)) == (StoreError, "RuntimeError: a defect")
        batcher._command, batcher._resend = whole[0], broken
        way.error = NoScript()
        error = await failure(batcher)
        assert (type(error), str(error)) == (StoreError, "RuntimeError: a defect")
        batcher._resend, way.error = whole[1], None
        assert limits([await batcher.submit(group(2), DEFAULT_MODE)]) == [2]

    run(work)


def test_a_reply_of_the_wrong_length_fails_only_its_call() -> None:
    async def work(batcher: Batcher, way: Way) -> None:
        way.shut()
        first = batcher.submit(group(1), DEFAULT_MODE)
        await turns(1)
        way._kept[0].on_reply([decided(1), decided(2)])
        way._kept.clear()
        with pytest.raises(StoreError, match="the server answered"):
            await first
        way.open()
        assert limits([await batcher.submit(group(2), DEFAULT_MODE)]) == [2]

    run(work)
