"""Tests stores on Redis Cluster, where each slot decides its part of a group."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator
from random import SystemRandom
from typing import Any

import pytest
import redis.asyncio.cluster
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster as Client
from redis.exceptions import AskError, MovedError, ResponseError
from redis.retry import Retry

from algorithms.at_once import TAKEN, at_once
from awaited import awaited
from ratelimit_mw import Charge, ConfigError, FixedWindow, Limiter, SlidingWindowLog, StoreError, TokenBucket
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore, async_transport, cluster
from ratelimit_mw.stores.redis.cluster import SlotMap
from ratelimit_mw.stores.redis.failures import classify_error
from ratelimit_mw.stores.redis.hash_slots import slot
from ratelimit_mw.stores.redis.protocol import Redirected, RoutedCommand
from ratelimit_mw.testing.blocking import blocking
from redis_cluster import RedisCluster
from stores.model_store import ModelStore
from stores.processes import by_eight_processes
from stores.random_steps import RandomSteps

PATIENT = 5.0  # seconds
SEED = int(os.environ.get("TEST_SEED", SystemRandom().randrange(10**9)))  # shown by a failure
BUCKET = TokenBucket(10, 3600)
WINDOW = FixedWindow(10, 3600)
ONE = FixedWindow(1, 3600)

# Keys with slots in different thirds of all slots, so that each key is on a different node.
FIRST, SECOND, THIRD = "{b}:r", "{c}:r", "{a}:r"

pytestmark = [pytest.mark.promise(3), pytest.mark.one_redis]


@pytest.fixture
def store(redis_cluster: RedisCluster) -> Iterator[RedisStore]:
    store = RedisStore(redis_cluster.url, timeout=PATIENT)
    yield store
    store.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connecting take as long as a call, so that a node on a busy machine does not appear to be down."""
    monkeypatch.setattr(async_transport, "CONNECT_TIMEOUT", PATIENT)


def left(store: Store, *charges: Charge) -> list[int]:
    return [store.peek([Charge(charge.key, charge.limit, 0)])[0].remaining for charge in charges]


def calls(redis_cluster: RedisCluster) -> list[int]:
    """Return how many EVALSHA each node ran."""
    found = []
    for node in redis_cluster.nodes:
        stats = node.ask("INFO commandstats")
        found.append(int(stats.split("cmdstat_evalsha:calls=")[1].split(",")[0]) if "cmdstat_evalsha:" in stats else 0)
    return found


def test_the_test_keys_are_in_three_thirds_of_the_slots() -> None:
    assert [slot(f"rl:1:{key}:x".encode()) * 3 // 16384 for key in (FIRST, SECOND, THIRD)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (b"foo", 12182),
        (b"{user1000}.following", 3443),
        (b"{user1000}.followers", 3443),
        (b"", 0),
        (b"123456789", 12739),
        (b"foo{}{bar}", 8363),
        (b"foo{{bar}}zap", 4015),
        (b"foo{bar}{zap}", 5061),
    ],
)
def test_slots_match_the_specification(key: bytes, number: int) -> None:
    assert slot(key) == number


@pytest.mark.parametrize(
    "key", [b"foo{}{bar}", b"foo{{bar}}zap", b"foo{bar}{zap}", b"{", b"}{", b"a{b", "{ü}x".encode()]
)
def test_slots_match_the_server(key: bytes, redis_cluster: RedisCluster) -> None:
    with Client.from_url(redis_cluster.redis_url) as client:
        assert slot(key) == client.cluster_keyslot(key)


@pytest.mark.promise(1)
def test_a_group_is_one_call_for_each_slot(store: RedisStore, redis_cluster: RedisCluster) -> None:
    group = [Charge("{b}:a", BUCKET), Charge("{b}:b", WINDOW), Charge("{b}:a", ONE)]
    store.take([*group, Charge(SECOND, BUCKET), Charge(THIRD, BUCKET)])
    for node in redis_cluster.nodes:
        node.ask("CONFIG RESETSTAT")
    assert all(decision.allowed for decision in store.take(group[:2]))
    assert calls(redis_cluster) == [1, 0, 0]
    store.take([Charge(FIRST, BUCKET), *group[:2], Charge(SECOND, BUCKET), Charge(THIRD, WINDOW)])
    assert calls(redis_cluster) == [2, 1, 1]
    store.peek([Charge(SECOND, BUCKET), Charge(THIRD, WINDOW)])
    assert calls(redis_cluster) == [2, 2, 2]


@pytest.mark.promise(2)
def test_charges_are_refunded_if_another_slot_refuses(store: RedisStore) -> None:
    a, b, c = Charge(FIRST, BUCKET, 4), Charge(SECOND, WINDOW, 3), Charge(THIRD, ONE)
    assert [decision.remaining for decision in store.take([a, b, c])] == [6, 7, 0]
    for _ in range(3):
        answers = store.take([a, b, c])
        assert [(answer.allowed, answer.remaining) for answer in answers] == [(True, 6), (True, 7), (False, 0)]
    assert left(store, a, b, c) == [6, 7, 0]


@pytest.mark.parametrize("algorithm", TAKEN)
def test_a_cluster_decides_like_the_python_model(algorithm: str, redis_cluster: RedisCluster) -> None:
    """Compare a cluster with the Python implementation, except where a refund does not restore a state:

    - The clock steps back. The units that are refunded were taken at the earlier time.
    - A ban is charged. It counts up to its quota, so a take beyond the quota is not undone. No request takes from bans.
    - Two limits of `smooth` share a bucket at different rates. A take and its refund round the state to ticks of one.

    The test omits penalties with a delay, too, because no request waits for a penalty.
    """
    walk = RandomSteps(algorithm, SEED, both_ways=False, others=TAKEN, apart=True)
    model, store = (
        ModelStore(walk.clock),
        RedisStore(redis_cluster.url, clock=walk.clock, timeout=PATIENT, deny_cache=0),
    )
    for number in range(300):
        verb, charges = walk.next()
        charges = [charge for charge in charges if charge.role != "penalty" or not charge.effective_max_delay_us]
        if not charges:
            continue
        expected, got = list(getattr(model, verb)(charges) or ()), list(getattr(store, verb)(charges) or ())
        assert got == expected, f"TEST_SEED={SEED}, step {number}: {verb} {charges} at {walk.clock.now}"
        if verb == "take":
            walk.heard(charges, got)
    store.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("algorithm", TAKEN)
def test_tasks_over_several_slots_lose_no_units_and_keep_the_quota(algorithm: str, redis_cluster: RedisCluster) -> None:
    """Each task takes a unit from the shared bucket and one from its own bucket, which refuses many."""
    kind = TAKEN[algorithm]
    everybody, own = at_once(kind, 60, 36_000), at_once(kind, 7, 36_000)

    async def work() -> tuple[int, int, list[int]]:
        store = AsyncRedisStore(redis_cluster.url, timeout=PATIENT)

        async def admitted(number: int) -> bool:
            group = [Charge("{all}:r", everybody), Charge(f"{{{number % 16}}}:r", own)]
            return all(decision.allowed for decision in await store.atake(group))

        count = 0
        for _ in range(4):
            count += sum(await asyncio.gather(*(admitted(number) for number in range(64))))
        (shared,) = await store.apeek([Charge("{all}:r", everybody, 0)])
        others = [(await store.apeek([Charge(f"{{{number}}}:r", own, 0)]))[0].remaining for number in range(16)]
        await store.aclose()
        return count, shared.remaining, others

    count, shared, others = asyncio.run(work())
    assert count <= 60
    assert 60 - shared == count  # no unit is lost or taken twice
    assert sum(7 - remaining for remaining in others) == count


def test_eight_processes_get_exactly_the_quota_of_each_key(redis_cluster: RedisCluster) -> None:
    code = """
import sys
from ratelimit_mw import Limiter
from ratelimit_mw.stores.redis import RedisStore
limiter = Limiter(RedisStore(sys.argv[1], timeout=10.0))
print("ready", flush=True)
sys.stdin.readline()
for keys in (1, 8):
    answers = [limiter.hit("90/day using gcra", f"{keys}: {turn % keys}").allowed for turn in range(200)]
    print(sum(answers), end=" ")
"""
    admitted = by_eight_processes(code, redis_cluster.url)
    assert [sum(counts) for counts in zip(*admitted, strict=True)] == [90, 8 * 90]


@pytest.mark.usefixtures("patient")
def test_64_tasks_on_one_key_get_exactly_the_quota(redis_cluster: RedisCluster) -> None:
    async def work() -> int:
        store = AsyncRedisStore(redis_cluster.url, timeout=PATIENT)

        async def task() -> int:
            return sum([(await store.atake([Charge("{one}:r", WINDOW)]))[0].allowed for _ in range(5)])

        count = sum(await asyncio.gather(*(task() for _ in range(64))))
        await store.aclose()
        return count

    assert asyncio.run(work()) == 10


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_stores_follow_a_moved_slot(redis_cluster: RedisCluster, kind: str) -> None:
    def use(store: Store) -> None:
        charges = [Charge(FIRST, BUCKET), Charge(SECOND, BUCKET)]
        assert [decision.remaining for decision in store.take(charges)] == [9, 9]
        store.reset(charges)
        moved = slot(f"rl:1:{FIRST}".encode())
        redis_cluster.move_slot(moved, redis_cluster.nodes[2])
        assert [decision.remaining for decision in store.take(charges)] == [9, 9]
        assert [decision.remaining for decision in store.take(charges)] == [8, 8]
        store.close()

    if kind == "threads":
        use(RedisStore(redis_cluster.url, timeout=PATIENT))
    else:
        with blocking(AsyncRedisStore(redis_cluster.url, timeout=PATIENT)) as store:
            use(store)


@pytest.mark.promise(8)
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_hanging_node_fails_only_its_slots_and_the_others_are_refunded(
    redis_cluster: RedisCluster, kind: str
) -> None:
    def use(store: Store) -> None:
        charges = [Charge(FIRST, BUCKET), Charge(SECOND, BUCKET), Charge(THIRD, BUCKET)]
        assert [decision.remaining for decision in store.take(charges)] == [9, 9, 9]
        redis_cluster.nodes[1].pause()
        with pytest.raises(StoreError):
            store.take(charges)
        with pytest.raises(StoreError):
            store.take(charges[1:2])
        for _ in range(500):  # units are refunded after the request has failed
            if left(store, charges[0], charges[2]) == [9, 9]:
                break
            time.sleep(0.01)
        assert left(store, charges[0], charges[2]) == [9, 9]
        redis_cluster.nodes[1].resume()

    if kind == "threads":
        use(RedisStore(redis_cluster.url, timeout=0.5))
    else:
        with blocking(AsyncRedisStore(redis_cluster.url, timeout=0.5)) as store:
            use(store)


@pytest.mark.promise(2)
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_charges_of_late_replies_are_refunded(redis_cluster: RedisCluster, kind: str) -> None:
    limit = TokenBucket(1000, 3600_000)
    keys = [f"{{{number}}}:r" for number in range(40)]
    frozen = [key for key in keys if slot(key.encode()) * 3 // 16384 == 1]
    charges = [Charge(key, limit) for key in [*[key for key in keys if key not in frozen][:6], frozen[0]]]

    def use(store: Store) -> None:
        with contextlib.suppress(StoreError):  # opens the first connections
            store.take(charges)
        redis_cluster.nodes[1].pause()
        for _ in range(15):
            with pytest.raises(StoreError):
                store.take(charges)
        redis_cluster.nodes[1].resume()

    def given_back() -> bool:
        patient = RedisStore(redis_cluster.url, timeout=PATIENT)
        with contextlib.closing(patient):
            for _ in range(500):  # the timeout of late calls is a second
                if max(1000 - remaining for remaining in left(patient, *charges[:6])) <= 2:
                    return True  # at most the first take, if it was in time, and the last, if the node had resumed
                time.sleep(0.01)
        return False

    if kind == "threads":
        use(RedisStore(redis_cluster.url, timeout=0.05))
        assert given_back()
    else:
        with blocking(AsyncRedisStore(redis_cluster.url, timeout=0.05)) as store:  # its event loop keeps running
            use(store)
            assert given_back()


@pytest.mark.promise(2)
def test_a_busy_event_loop_refunds_the_charges_of_other_slots(redis_cluster: RedisCluster) -> None:
    limit = TokenBucket(1000, 3600_000)
    keys = [f"{{{number}}}:r" for number in range(40)]
    node = {key: slot(key.encode()) * 3 // 16384 for key in keys}
    charges = [Charge(next(key for key in keys if node[key] == number), limit) for number in (0, 2, 1)]

    async def use(store: AsyncRedisStore) -> None:
        await patient.atake(charges)
        await connected(store)
        redis_cluster.nodes[1].pause()
        request = asyncio.ensure_future(store.atake(charges))
        while not request.done():  # the event loop is busy: a timeout of 50 ms takes more than a second
            time.sleep(0.04)  # noqa: ASYNC251
            await asyncio.sleep(0)
        redis_cluster.nodes[1].resume()
        with pytest.raises(StoreError):
            await request
        for _ in range(200):
            if [decision.remaining for decision in await patient.apeek(charges[:2])] == [998, 998]:  # peeks one of 999
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the other slots did not get their units back")

    async def connected(store: AsyncRedisStore) -> None:
        for _ in range(200):
            with contextlib.suppress(StoreError):
                await store.apeek(charges)
                return
        raise AssertionError("the store did not answer in time once")

    patient = AsyncRedisStore(redis_cluster.url, timeout=PATIENT)

    async def use_and_close() -> None:
        store = AsyncRedisStore(redis_cluster.url, timeout=0.05)
        try:
            await use(store)
        finally:
            redis_cluster.nodes[1].resume()
            await store.aclose()
            await patient.aclose()

    asyncio.run(use_and_close())


def test_a_client_not_yet_connected_can_take_from_several_slots(
    redis_cluster: RedisCluster,
) -> None:
    async def use() -> list[int]:
        client = redis.asyncio.cluster.RedisCluster.from_url(redis_cluster.redis_url)
        store = AsyncRedisStore(client, timeout=PATIENT)
        charges = [Charge(f"{{{number}}}:r", BUCKET) for number in range(8)]
        shown = [decision.remaining for decision in await store.atake(charges)]
        await client.aclose()
        return shown

    for turn in range(1, 6):
        assert asyncio.run(use()) == [10 - turn] * 8


def test_clients_from_the_caller_are_used_and_not_closed(redis_cluster: RedisCluster) -> None:
    charges = [Charge(FIRST, BUCKET, 2), Charge(SECOND, SlidingWindowLog(5, 60), 2), Charge(THIRD, ONE)]
    patient = {"socket_timeout": PATIENT, "retry": Retry(NoBackoff(), 0)}
    with Client.from_url(redis_cluster.redis_url, **patient) as client:
        store = RedisStore(client, timeout=PATIENT)
        assert [decision.remaining for decision in store.take(charges)] == [8, 3, 0]
        assert [decision.allowed for decision in store.take(charges)] == [True, True, False]
        store.close()
        assert left(store, *charges) == [8, 3, 0]

    async def use() -> None:
        async with redis.asyncio.cluster.RedisCluster.from_url(redis_cluster.redis_url) as client:
            store = AsyncRedisStore(client, timeout=PATIENT)
            assert [decision.allowed for decision in await store.atake(charges)] == [True, True, False]
            await store.areset(charges)
            assert [decision.remaining for decision in await store.atake(charges)] == [8, 3, 0]
            await store.aclose()
            assert (await store.apeek(charges[:1]))[0].remaining == 6

    asyncio.run(use())


@pytest.mark.promise(9)
def test_a_client_with_decode_responses_is_an_error(redis_cluster: RedisCluster) -> None:
    with (
        Client.from_url(redis_cluster.redis_url, decode_responses=True) as client,
        pytest.raises(ConfigError, match="decode_responses"),
    ):
        RedisStore(client)
    with pytest.raises(ConfigError, match="decode_responses"):
        AsyncRedisStore(redis.asyncio.cluster.RedisCluster.from_url(redis_cluster.redis_url, decode_responses=True))


def test_a_client_timeout_above_the_store_timeout_logs_a_warning(
    redis_cluster: RedisCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Client.from_url(redis_cluster.redis_url, socket_timeout=3) as quick:
        quick.nodes_manager.connection_kwargs["socket_timeout"] = 0.01  # only now: a busy machine connects late
        RedisStore(quick)
    assert caplog.records == []
    with Client.from_url(redis_cluster.redis_url, socket_timeout=3) as slow:
        RedisStore(slow)
    assert "waits up to 3 seconds, not 0.05" in caplog.text


@pytest.mark.promise(6)
def test_every_key_has_a_time_to_live(store: RedisStore, redis_cluster: RedisCluster) -> None:
    charges = [Charge(f"{{{n}}}:{name}", kind(10, 3600)) for n, (name, kind) in enumerate(TAKEN.items())]
    store.take(charges)
    store.settle([Charge(charge.key, charge.limit, 2) for charge in charges])
    with Client.from_url(redis_cluster.redis_url) as client:
        keys = list(client.scan_iter())
        assert len(keys) == len(charges)
        assert all(0 < client.pttl(key) <= 7_200_001 for key in keys)


# Python 3.12 and later warn of a fork while threads run: those of other tests, or of an open connection.
@pytest.mark.promise(8)
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_can_use_the_store(store: RedisStore) -> None:
    charges = [Charge(FIRST, BUCKET), Charge(SECOND, BUCKET), Charge(THIRD, BUCKET)]
    store.take(charges)  # starts threads and opens connections
    child = os.fork()
    if not child:
        code = 2
        try:
            code = 0 if all(decision.allowed for _ in range(4) for decision in store.take(charges)) else 1
        finally:
            os._exit(code)
    assert all(decision.allowed for _ in range(4) for decision in store.take(charges))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert left(store, *charges) == [1, 1, 1]


@pytest.mark.promise(8)
def test_a_restarted_node_is_used_again(store: RedisStore, redis_cluster: RedisCluster) -> None:
    charges = [Charge(FIRST, BUCKET), Charge(SECOND, BUCKET)]
    store.take(charges)
    node = redis_cluster.nodes[0]
    node.kill()
    with pytest.raises(StoreError):
        store.take(charges)
    assert store.take(charges[1:])[0].remaining == 8  # the failed take was refunded
    node.restart()
    redis_cluster.wait_settled()
    assert [decision.remaining for decision in store.take(charges)] == [9, 7]


def test_a_slot_without_a_node_is_a_store_error() -> None:
    slot_map = SlotMap([("h", 1)])
    steps = slot_map.route(("EVALSHA", "digest", 1, b"{a}", b""), awaited)
    assert steps.send(None) == RoutedCommand(("h", 1), ("CLUSTER", "SLOTS"))
    with pytest.raises(StoreError, match="no node of the cluster has slot 15495"):
        steps.send([[0, 15494, [b"", 7, b"id"]]])


def test_commands_follow_redirections_up_to_a_bound() -> None:
    slot_map = SlotMap([("h", 1)])
    command = ("UNLINK", b"{a}")
    steps = slot_map.route(command, awaited)
    steps.send(None)
    assert steps.send([[0, 16383, [None, 7, b"id"], [b"replica", 8, b"id"]]]) == RoutedCommand(("h", 7), command)
    assert steps.throw(Redirected(("i", 9), asking=True)) == RoutedCommand(("i", 9), command, asking=True)
    assert steps.throw(Redirected(("", 5), asking=False)) == RoutedCommand(("i", 5), command)
    with pytest.raises(StopIteration) as end:
        steps.send("reply")
    assert end.value.value == "reply"
    steps = slot_map.route(command, awaited)
    routed_command = steps.send(None)
    assert routed_command == RoutedCommand(("i", 5), command)  # the slot map keeps the new address
    for _ in range(4):
        routed_command = steps.throw(Redirected(routed_command.address, asking=False))
    with pytest.raises(StoreError, match="was redirected 5 times"):
        steps.throw(Redirected(routed_command.address, asking=False))


def test_a_rejected_argument_does_not_count_as_a_failure_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_REFRESH_INTERVAL", -1.0)
    slot_map = SlotMap([("h", 1)])
    command = ("UNLINK", b"{a}")
    steps = slot_map.route(command, awaited)
    steps.send(None)
    steps.send([[0, 16383, [b"h", 7, b"id"]]])
    with pytest.raises(StoreError, match="argument 8"):
        steps.throw(StoreError("ResponseError: ratelimit_mw: argument 8 is not a whole number"))
    assert slot_map.owner(0) == ("h", 7)
    steps = slot_map.route(command, awaited)
    assert steps.send(None) == RoutedCommand(("h", 7), command)
    with pytest.raises(StoreError, match="no answer"):
        steps.throw(StoreError("no answer within 0.05 seconds"))
    assert slot_map.owner(0) is None


def test_one_reachable_node_is_enough_to_start(redis_cluster: RedisCluster) -> None:
    address = redis_cluster.url.rpartition(",")[2]
    store = RedisStore(f"redis+cluster://127.0.0.1:1,{address}", timeout=PATIENT)
    assert [answer.remaining for answer in store.take([Charge(FIRST, BUCKET), Charge(SECOND, BUCKET)])] == [9, 9]
    store.close()


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://h:1/3",
        "redis+cluster://h:1/x",
        "redis+cluster://h:x",
        "redis+cluster://u:pa/ss@h:1",
        "redis+cluster://h:1/?no_such=1",
    ],
)
@pytest.mark.parametrize("kind", [RedisStore, AsyncRedisStore])
def test_the_error_for_an_invalid_url_omits_the_password(url: str, kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"^store: ") as caught:
        kind(url)
    assert "pa" not in str(caught.value).replace("PASSWORD", "").replace("password", "").replace("parts", "")


@pytest.mark.promise(10)
@pytest.mark.parametrize(("secret", "warnings"), [("", 1), ("a secret of this app", 0)])
def test_a_cluster_without_key_secret_logs_a_warning(
    secret: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(*_: object) -> None:
        """Never called."""

    settings: dict[str, Any] = {"limits": "5/minute", "key_secret": secret}
    _ = RateLimitMiddleware(app, store="redis+cluster://127.0.0.1:1", **settings)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warnings
    assert caplog.text.count("key_secret") == 2 * warnings
    _ = RateLimitMiddleware(app, store="redis://127.0.0.1:1", **settings)
    assert len(caplog.records) == warnings


def test_a_limiter_hits_takes_and_peeks_on_a_cluster(store: RedisStore) -> None:
    limiter = Limiter(store)
    assert [limiter.hit("2/hour; 5/day using gcra", "alice").allowed for _ in range(3)] == [True, True, False]
    assert limiter.take(Charge("alice", ONE), Charge("bob", ONE), Charge("carol", ONE)).allowed
    assert not limiter.take(Charge("alice", WINDOW), Charge("bob", ONE)).allowed
    assert limiter.peek(WINDOW, "alice").remaining == 10


@pytest.mark.parametrize(
    ("error", "asking"),
    [
        (MovedError("3999 127.0.0.1:6381"), False),
        (AskError("3999 127.0.0.1:6381"), True),
        (ResponseError("MOVED 3999 127.0.0.1:6381"), False),  # as redis-py before 6.0 raises it
        (ResponseError("ASK 3999 127.0.0.1:6381"), True),
    ],
)
def test_redirections_are_recognized_from_every_client_library_error(error: ResponseError, asking: bool) -> None:
    found = classify_error(error)
    assert isinstance(found, Redirected)
    assert (found.address, found.asking) == (("127.0.0.1", 6381), asking)


def test_other_errors_are_not_redirections() -> None:
    assert str(classify_error(ResponseError("MOVEDTO nowhere"))) == "ResponseError: MOVEDTO nowhere"
