"""Tests which requests share a call to the server, and which of them an error affects."""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from fakeredis import aioredis
from msgspec.structs import force_setattr
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from held_proxy import HeldProxy
from ratelimit_mw import Charge, ConfigError, Decision, FixedWindow, Limit, StoreError, TokenBucket
from ratelimit_mw.core.errors import StoreNotQueried
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.redis import AsyncRedisStore
from ratelimit_mw.stores.redis import batcher as batching
from ratelimit_mw.testing import Clock
from redis_servers import RedisServer
from turns import turns

T = TypeVar("T")
PATIENT = 5.0  # seconds
WINDOW = FixedWindow(1000, 3600)

pytestmark = [pytest.mark.promise(1), pytest.mark.one_redis]


def question(number: int, cost: int = 1) -> list[Charge]:
    """Return a charge whose decision shows the number."""
    return [Charge(f"k{number}", FixedWindow(1000 + number, 3600), cost)]


def answers_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the limit and the remaining units of each number after its first charge."""
    return [(1000 + number, 999 + number) for number in numbers]


def shown(decisions: Sequence[Sequence[Decision]]) -> list[tuple[int, int]]:
    return [(decision.limit, decision.remaining) for (decision,) in decisions]


def calls(client: Redis) -> int:
    """Return how many EVALSHA the server ran since its statistics were reset."""
    statistics: dict[str, dict[str, int]] = client.info("commandstats")
    return statistics.get("cmdstat_evalsha", {"calls": 0})["calls"]


def run(work: Callable[[AsyncRedisStore], Coroutine[Any, Any, T]], target: Any, **options: Any) -> T:
    """Run `work` with a store that is connected, and return its result."""

    async def main() -> T:
        store = AsyncRedisStore(target, **{"timeout": PATIENT, **options})
        try:
            await store.apeek([Charge("first", WINDOW)])
            return await work(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


@pytest.mark.parametrize(("requests", "sent"), [(1, 1), (12, 1), (13, 2), (44, 2), (45, 3), (64, 3), (65, 4)])
def test_requests_of_one_turn_share_calls(requests: int, sent: int, redis_url: str, client: Redis) -> None:
    """The first 12 requests are one call, later calls have at most 32, and the 65th request waits for a reply."""

    async def work(store: AsyncRedisStore) -> list[tuple[int, int]]:
        client.config_resetstat()
        return shown(await asyncio.gather(*(store.atake(question(number)) for number in range(requests))))

    assert run(work, redis_url) == answers_of(range(requests))
    assert calls(client) == sent


def test_a_call_has_at_most_128_charges(redis_url: str, client: Redis) -> None:
    limits: list[Limit] = [FixedWindow(1000 + number, 3600) for number in range(100)]

    async def work(store: AsyncRedisStore) -> list[int]:
        client.config_resetstat()
        groups = [[Charge(f"k{number}", limit) for limit in limits[:size]] for number, size in enumerate(sizes)]
        return [len(decisions) for decisions in await asyncio.gather(*map(store.atake, groups))]

    sizes = (64, 64, 1, 100, 29, 100)
    assert run(work, redis_url) == [*sizes]
    assert calls(client) == 4  # in order: 64 + 64, 1 + 100, 29, 100


def test_sequential_requests_are_one_call_each(redis_url: str, client: Redis) -> None:
    async def work(store: AsyncRedisStore) -> list[tuple[int, int]]:
        client.config_resetstat()
        return shown([await store.atake(question(number)) for number in range(5)])

    assert run(work, redis_url) == answers_of(range(5))
    assert calls(client) == 5


@pytest.mark.promise(2)
def test_each_group_of_a_call_is_charged_completely_or_not_at_all(redis_url: str) -> None:
    small, large = TokenBucket(3, 3600), FixedWindow(100, 3600)

    async def work(store: AsyncRedisStore) -> tuple[list[list[bool]], list[int]]:
        groups = [[Charge("a", small, cost), Charge(f"b{cost}", large)] for cost in (2, 2, 1, 4, 0)]
        taken = await asyncio.gather(*map(store.atake, groups))
        left = [(await store.apeek([Charge(f"b{cost}", large, 0)]))[0].remaining for cost in (2, 1, 4, 0)]
        return [[decision.allowed for decision in decisions] for decisions in taken], left

    taken, left = run(work, redis_url)
    assert taken == [[True, True], [False, True], [True, True], [False, True], [True, True]]
    assert left == [99, 99, 100, 99]


def test_peeks_takes_and_different_times_do_not_share_a_call(redis_url: str, client: Redis) -> None:
    clock = Clock()

    async def work(store: AsyncRedisStore) -> list[list[int]]:
        client.config_resetstat()
        tasks = [asyncio.create_task(store.atake(question(0))), asyncio.create_task(store.apeek(question(0)))]
        await asyncio.sleep(0)
        clock.advance(3599.0)
        tasks += [asyncio.create_task(store.atake(question(0))) for _ in range(2)]
        await asyncio.sleep(0)
        clock.advance(1.0)
        tasks.append(asyncio.create_task(store.atake(question(0))))
        return [[decision.remaining, round(decision.reset_after)] for (decision,) in await asyncio.gather(*tasks)]

    assert run(work, redis_url, clock=clock) == [[999, 3600], [998, 3600], [998, 1], [997, 1], [999, 3600]]
    assert calls(client) == 4


def spoiled(charge: Charge, **fields: object) -> Charge:
    """Set fields to values that the constructor of a charge rejects."""
    for name, value in fields.items():
        force_setattr(charge, name, value)
    return charge


class Unscripted(FixedWindow, frozen=True):
    """A custom limit, which has no Lua implementation."""


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ([Charge("bad", Unscripted(5, 60))], ConfigError, "Unscripted has no Lua implementation"),
        ([Charge("bad", WINDOW, -1, at=7)], ConfigError, "only settle accepts a negative cost"),
        ([spoiled(Charge("bad", WINDOW), cost=0.5)], StoreError, "ratelimit_mw: argument 8 is not a whole number"),
        ([spoiled(Charge("bad", WINDOW), cost=math.nan)], StoreError, "ratelimit_mw: argument 8 is not a whole number"),
        ([spoiled(Charge("bad", WINDOW), cost=object())], TypeError, "object"),
        ([Charge(f"bad{number}", WINDOW) for number in range(800)], StoreError, "too many results to unpack|stack"),
    ],
    ids=["unscripted", "negative", "fraction", "NaN", "object", "too long"],
)
def test_an_invalid_group_fails_alone(
    bad: list[Charge], error: type[Exception], says: str, redis_url: str, client: Redis
) -> None:
    async def work(store: AsyncRedisStore) -> list[Any]:
        groups = [question(1), question(2), bad, question(3), question(4)]
        found: list[Any] = await asyncio.gather(*map(store.atake, groups), return_exceptions=True)
        return found

    *good, failed = sorted(run(work, redis_url), key=lambda answer: isinstance(answer, Exception))
    assert shown(good) == answers_of(range(1, 5))  # charged once
    assert type(failed) is error
    assert client.keys("*bad*") == []
    with pytest.raises(error, match=says):
        raise failed


@pytest.mark.promise(8)
def test_an_unreadable_reply_to_a_group_sent_alone_fails_no_other_group(redis_url: str) -> None:
    async def work(store: AsyncRedisStore) -> list[Any]:
        inner: Any = store._store
        send = inner.send

        async def garble(command: Sequence[Any]) -> Any:
            reply = await send(command)
            return b"garbled" if any(b":k2:" in key for key in command[3:-1]) and len(command) == 5 else reply

        inner.send = garble
        groups = [question(1), [spoiled(Charge("bad", WINDOW), cost=0.5)], question(2), question(3)]
        found: list[Any] = await asyncio.gather(*map(store.atake, groups), return_exceptions=True)
        return found

    first, rejected, unread, last = run(work, redis_url)
    assert shown([first, last]) == answers_of([1, 3])
    assert (type(rejected), type(unread)) == (StoreError, StoreError)
    assert "ratelimit_mw: argument 8 is not a whole number" in str(rejected)
    assert str(unread) == "the server answered b'garbled' to take.lua"


@pytest.mark.promise(3)
def test_groups_are_not_sent_again_after_an_unreadable_reply(redis_url: str, client: Redis) -> None:
    async def work(store: AsyncRedisStore) -> tuple[list[Any], list[str]]:
        inner: Any = store._store
        send, sent = inner.send, []

        async def garble(command: Sequence[Any]) -> Any:
            sent.append(command[0])
            await send(command)
            return b"ratelimit_mw: garbled"

        inner.send = garble
        client.script_flush()  # so that the groups are sent again
        return await asyncio.gather(
            *(store.atake(question(number)) for number in range(3)), return_exceptions=True
        ), sent

    failed, sent = run(work, redis_url)
    assert sent == ["EVALSHA", "EVAL"]
    assert [str(error) for error in failed] == ["the server answered b'ratelimit_mw: garbled' to take.lua"] * 3


@pytest.mark.promise(8)
def test_a_server_error_fails_all_requests_of_its_call_and_no_later_ones(redis_server: RedisServer) -> None:
    async def work(store: AsyncRedisStore) -> tuple[list[Any], list[tuple[int, int]]]:
        server.ask("CONFIG SET maxmemory 1")
        failed = await asyncio.gather(*(store.atake(question(number)) for number in range(5)), return_exceptions=True)
        server.ask("CONFIG SET maxmemory 0")
        return failed, shown(await asyncio.gather(*(store.atake(question(number)) for number in range(5))))

    with RedisServer(redis_server.binary) as server:
        failed, good = run(work, server.url)
    assert [type(error) for error in failed] == [StoreError] * 5
    assert len(set(map(id, failed))) == 5  # raising an error changes its traceback
    assert all("maxmemory" in str(error) for error in failed)
    assert good == answers_of(range(5))


@pytest.mark.promise(8)
def test_a_flushed_script_is_sent_again_and_charges_once(redis_url: str, client: Redis) -> None:
    async def work(store: AsyncRedisStore) -> list[tuple[int, int]]:
        client.script_flush()
        return shown(await asyncio.gather(*(store.atake(question(number)) for number in range(40))))

    assert run(work, redis_url) == answers_of(range(40))


def test_requests_canceled_before_they_are_sent_are_not_charged(redis_url: str, client: Redis) -> None:
    async def work(store: AsyncRedisStore) -> list[Any]:
        tasks = [asyncio.create_task(store.atake(question(number))) for number in range(10)]
        await turns(1)  # all requests wait, and none is sent
        for task in tasks[::2]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = run(work, redis_url)
    assert [type(answer) for answer in answers[::2]] == [asyncio.CancelledError] * 5
    assert shown(answers[1::2]) == answers_of(range(1, 10, 2))
    assert {key.split(b":")[2] for key in client.scan_iter()} == {b"k1", b"k3", b"k5", b"k7", b"k9"}


def test_nothing_is_sent_if_all_requests_are_canceled(redis_url: str, client: Redis) -> None:
    async def work(store: AsyncRedisStore) -> list[tuple[int, int]]:
        client.config_resetstat()
        tasks = [asyncio.create_task(store.atake(question(number))) for number in range(10)]
        await turns(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await turns(5)
        assert calls(client) == 0
        return shown([await store.atake(question(1))])

    assert run(work, redis_url) == answers_of([1])


@pytest.mark.promise(8)
def test_canceling_sent_requests_does_not_affect_others_of_the_call(redis_server: RedisServer) -> None:
    async def work(store: AsyncRedisStore) -> list[Any]:
        proxy.hold()
        tasks = [asyncio.create_task(store.atake(question(number))) for number in range(10)]
        await asyncio.to_thread(proxy.asked.wait, PATIENT)
        for task in tasks[::2]:
            task.cancel()
        await turns(3)
        proxy.release()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with HeldProxy(redis_server.port) as proxy:
        answers = run(work, f"redis://127.0.0.1:{proxy.port}/0", timeout=PATIENT)
    assert [type(answer) for answer in answers[::2]] == [asyncio.CancelledError] * 5
    assert shown(answers[1::2]) == answers_of(range(1, 10, 2))


@pytest.mark.promise(8)
def test_requests_are_sent_without_waiting_for_pending_calls(redis_server: RedisServer) -> None:
    async def work(store: AsyncRedisStore) -> list[tuple[int, int]]:
        with Redis.from_url(redis_server.url) as client:
            client.config_resetstat()
            proxy.hold()
            tasks = []
            for number in range(60):  # each in its own turn
                tasks.append(asyncio.create_task(store.atake(question(number))))
                await turns(3)
            await asyncio.to_thread(proxy.asked.wait, PATIENT)
            proxy.release()
            answers = shown(await asyncio.gather(*tasks))
            assert calls(client) == 60
            return answers

    with HeldProxy(redis_server.port) as proxy:
        assert run(work, f"redis://127.0.0.1:{proxy.port}/0") == answers_of(range(60))


@pytest.mark.promise(8)
def test_requests_succeed_after_earlier_ones_timed_out(redis_server: RedisServer) -> None:
    """After a timeout, the store sends the next request on another connection."""

    async def work(store: AsyncRedisStore) -> tuple[list[Any], list[Any]]:
        proxy.hold()
        late = await asyncio.gather(*(store.atake(question(number)) for number in range(80)), return_exceptions=True)
        proxy.release()
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while True:
                try:
                    return late, [await store.atake(question(100))]
                except StoreError:
                    await asyncio.sleep(0.01)

    with HeldProxy(redis_server.port) as proxy:
        late, good = run(work, f"redis://127.0.0.1:{proxy.port}/0", timeout=0.2)
    assert [str(error) for error in late] == ["no answer within 0.2 seconds"] * 80
    assert good[0][0].limit == 1100


def test_the_number_of_waiting_requests_is_bounded(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_MAX_WAITING", 50)

    async def work(store: AsyncRedisStore) -> list[Any]:
        found: list[Any] = await asyncio.gather(*(store.atake(question(n)) for n in range(76)), return_exceptions=True)
        return found

    answers = run(work, redis_url)
    assert shown(answers[:50]) == answers_of(range(50))
    assert [str(error) for error in answers[50:]] == ["50 requests wait for the store already"] * 26


@pytest.mark.promise(8)
def test_closing_fails_waiting_requests_and_the_store_can_be_used_again(redis_server: RedisServer) -> None:
    async def work(store: AsyncRedisStore) -> tuple[list[Any], list[tuple[int, int]]]:
        proxy.hold()
        tasks = [asyncio.create_task(store.atake(question(number))) for number in range(100)]
        await asyncio.to_thread(proxy.asked.wait, PATIENT)
        await store.aclose()
        failed = await asyncio.gather(*tasks, return_exceptions=True)
        proxy.release()
        return failed, shown(await asyncio.gather(*(store.atake(question(number)) for number in range(200, 210))))

    with HeldProxy(redis_server.port) as proxy:
        failed, good = run(work, f"redis://127.0.0.1:{proxy.port}/0")
    assert [(type(error), str(error)) for error in failed] == [(StoreNotQueried, "the store was closed")] * 100
    assert good == answers_of(range(200, 210))


def test_requests_share_calls_on_a_client_from_the_caller(redis_url: str, client: Redis) -> None:
    async def main() -> list[tuple[int, int]]:
        async with AsyncRedis.from_url(redis_url) as own:
            store = AsyncRedisStore(own, timeout=PATIENT)
            await store.apeek([Charge("first", WINDOW)])
            client.config_resetstat()
            return shown(await asyncio.gather(*(store.atake(question(number)) for number in range(64))))

    assert asyncio.run(main()) == answers_of(range(64))
    assert calls(client) == 3


def test_requests_succeed_on_a_server_without_cmsgpack() -> None:
    """The first call detects that the server lacks cmsgpack. The store then sends groups as text."""

    async def main() -> list[tuple[int, int]]:
        store = AsyncRedisStore(aioredis.FakeRedis(), timeout=PATIENT)
        answers = await asyncio.gather(*(store.atake(question(number)) for number in range(40)))
        return shown([*answers, *await asyncio.gather(*(store.atake(question(number)) for number in range(40, 80)))])

    assert asyncio.run(main()) == answers_of(range(80))


@pytest.mark.promise(8)
def test_a_blocked_event_loop_does_not_time_requests_out(redis_server: RedisServer) -> None:
    """The timeout of the store does not include the time in which the event loop was blocked."""

    async def work(store: AsyncRedisStore) -> list[tuple[int, int]]:
        proxy.hold()
        tasks = [asyncio.create_task(store.atake(question(number))) for number in range(5)]
        await turns(3)  # sent
        threading.Event().wait(1.0)
        await asyncio.sleep(0.05)
        proxy.release()
        return shown(await asyncio.gather(*tasks))

    with HeldProxy(redis_server.port) as proxy:
        assert run(work, f"redis://127.0.0.1:{proxy.port}/0", timeout=0.8) == answers_of(range(5))


def test_cached_encodings_distinguish_kinds_of_charges(redis_url: str) -> None:
    """Encodings are cached by kind of charge. These groups all differ in kind."""
    limit = TokenBucket(10, 3600)
    groups = [
        [Charge("a", limit)],
        [Charge("b", limit, 2)],
        [Charge("c", limit, 10), Charge("c2", limit)],  # the same as the first, in a group of two
        [Charge("c", limit, 2, max_delay=720.0)],
        [Charge("c", limit, 2, max_delay=719.0)],
        [Charge("d", limit, 11, role="shadow"), Charge("d2", limit, 3)],
    ]

    async def work(store: AsyncRedisStore) -> list[list[tuple[bool, int, float]]]:
        answers = [decided for _ in range(2) for decided in await asyncio.gather(*map(store.atake, groups))]
        return [[(one.allowed, one.remaining, one.delay) for one in decided] for decided in answers]

    again = [[(True, 8, 0.0)], [(True, 6, 0.0)]]
    first, second = (found := run(work, redis_url, clock=Clock()))[:6], found[6:]
    assert first == [
        [(True, 9, 0.0)],
        [(True, 8, 0.0)],
        [(True, 0, 0.0), (True, 9, 0.0)],
        [(True, 0, 720.0)],
        [(False, 0, 0.0)],
        [(False, 10, 0.0), (True, 7, 0.0)],
    ]
    assert second[:2] == again
    assert second[5] == [(False, 10, 0.0), (True, 4, 0.0)]


def test_a_group_with_a_repeated_bucket_gets_a_decision_per_charge(redis_url: str) -> None:
    """The decisions may also come from the deny cache while the group waits to be sent."""
    small, large = FixedWindow(1, 3600), FixedWindow(50, 3600)
    group = [Charge("a", small), Charge("a", small), Charge("b", large)]

    async def work(store: AsyncRedisStore) -> list[Sequence[Decision]]:
        return await asyncio.gather(*(store.atake(group) for _ in range(200)))

    answers = run(work, redis_url)
    shown = {tuple((one.allowed, one.limit, one.remaining) for one in answer) for answer in answers}
    assert shown == {((False, 1, 1), (False, 1, 1), (True, 50, 50))}
    assert (isinstance(answers[0], Answer), isinstance(answers[-1], Answer)) == (False, True)
