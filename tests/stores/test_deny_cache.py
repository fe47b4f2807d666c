"""Tests the deny cache: it refuses only an equal group, no longer than the store, and not after a settlement."""

import asyncio
import math
import threading
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from msgspec.structs import replace
from redis import Redis

from ratelimit_mw import (
    GCRA,
    Charge,
    ConfigError,
    Decision,
    FixedWindow,
    LeakyBucket,
    Limit,
    Limiter,
    MemoryStore,
    SlidingWindowCounter,
    SlidingWindowLog,
    StoreError,
    TokenBucket,
)
from ratelimit_mw.core.limit import Role
from ratelimit_mw.core.verdict import Answer, Source, verdict_of
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.deny_cache import DenyCache
from ratelimit_mw.stores.guarded import Guard, GuardedStore
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock, RecordingStore, freeze
from ratelimit_mw.testing.blocking import blocking

KINDS = (FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket, GCRA, LeakyBucket)
US = 0.000001

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(4), pytest.mark.one_redis]


class Remembering(GuardedStore):
    """A deny cache over a store in memory that records its calls. Both use one injected clock."""

    def __init__(self, deny_cache: float = 1.0) -> None:
        self.clock = Clock()
        self.inner = RecordingStore(clock=self.clock)
        super().__init__(self.inner, Guard(DenyCache(deny_cache), clock=self.clock), 1.0)

    @property
    def asked(self) -> int:
        return sum(verb == "take" for verb, _ in self.inner.calls)


@pytest.fixture
def store() -> Remembering:
    return Remembering()


def source(decisions: Sequence[Decision]) -> Source:
    return decisions.source if isinstance(decisions, Answer) else "store"


def fill(store: Store, *charges: Charge) -> None:
    """Take the group until it is refused, once."""
    while all(one.allowed for one in store.take(charges)):
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_cached_refusals_equal_the_decisions_of_the_store(kind: type[Limit], store: Remembering) -> None:
    charge = Charge("k", kind(3, 2))
    fill(store, charge)
    (first,) = store.peek([charge])
    asked, wait = store.asked, round(first.retry_after * 1_000_000)
    start = store.clock.now
    for passed in (0, 1, wait // 7, wait // 2, wait - 1):
        store.clock.now = start + passed / 1_000_000
        answer = store.take([charge])
        if passed < 1_000_000:
            assert (source(answer), store.asked) == ("remembered", asked)
        assert list(answer) == list(store.inner.peek([charge]))
    assert store.take([charge])[0].retry_after == US
    store.clock.now = start + wait / 1_000_000
    assert store.take([charge])[0].allowed


def test_a_refusal_is_cached_for_exactly_deny_cache_seconds(store: Remembering) -> None:
    charge = Charge("k", FixedWindow(1, 60))
    fill(store, charge)
    asked = store.asked
    store.clock.advance(0.999999)
    (decision,) = store.take([charge])
    assert (decision.retry_after, store.asked) == (59.000001, asked)
    store.clock.advance(US)
    assert (store.take([charge])[0].retry_after, store.asked) == (59.0, asked + 1)
    store.clock.advance(0.999999)
    assert (store.take([charge])[0].retry_after, store.asked) == (58.000001, asked + 1)


def test_refusals_of_a_cost_over_the_quota_are_cached(store: Remembering) -> None:
    charge = Charge("k", TokenBucket(5, 60), 6)
    answers = [store.take([charge]) for _ in range(3)]
    assert [source(answer) for answer in answers] == ["store", "remembered", "remembered"]
    store.clock.advance(0.5)
    assert list(store.take([charge])) == list(store.inner.peek([charge]))
    assert store.take([charge])[0].retry_after == math.inf
    store.clock.advance(0.5)
    assert source(store.take([charge])) == "store"


def test_a_deny_cache_of_0_caches_nothing() -> None:
    store = Remembering(0)
    fill(store, Charge("k", FixedWindow(1, 60)))
    assert [source(store.take([Charge("k", FixedWindow(1, 60))])) for _ in range(2)] == ["store", "store"]


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "1", True])
def test_an_invalid_deny_cache_is_an_error(wrong: float) -> None:
    with pytest.raises(ConfigError, match="deny_cache: got"):
        RedisStore("redis://localhost", deny_cache=wrong)
    with pytest.raises(ConfigError, match="deny_cache: got"):
        AsyncRedisStore("redis://localhost", deny_cache=wrong)


def test_peeks_bypass_the_deny_cache(store: Remembering) -> None:
    charge = Charge("k", FixedWindow(1, 60))
    fill(store, charge)
    store.inner.reset([charge])  # like another process
    assert not store.take([charge])[0].allowed
    assert store.peek([charge])[0].allowed


OTHERS = {
    "cost": Charge("k", TokenBucket(2, 60), 2),
    "max_delay": Charge("k", TokenBucket(2, 60), max_delay=1.0),
    "the limit's own max_delay": Charge("k", TokenBucket(2, 60, max_delay=1.0)),
    "role": Charge("k", TokenBucket(2, 60), role="shadow"),
    "limit": Charge("k", TokenBucket(3, 60)),
    "algorithm": Charge("k", GCRA(2, 60)),
    "name": Charge("k", TokenBucket(2, 60, name="other")),
    "key": Charge("l", TokenBucket(2, 60)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))
def test_only_an_equal_group_is_refused_from_the_cache(other: Charge, store: Remembering) -> None:
    charge = Charge("k", TokenBucket(2, 60))
    fill(store, charge)
    for group in ([other], [charge, other], [other, charge]):
        if group != [other] and other.limit.bucket == charge.limit.bucket and other.key == "k":
            continue  # charges on the same bucket add up, or are an error
        asked = store.asked
        store.take(group)
        assert store.asked == asked + 1
    assert source(store.take([charge])) == "remembered"


def test_limits_that_differ_in_at_once_share_no_cached_refusal(store: Remembering) -> None:
    none, all_at_once = LeakyBucket(4, 60, max_delay=30, at_once=0), LeakyBucket(4, 60, max_delay=30)
    assert none.bucket == all_at_once.bucket
    fill(store, Charge("k", none))
    asked = store.asked
    store.take([Charge("k", LeakyBucket(4, 60, max_delay=30, at_once=2))])
    assert store.asked == asked + 1


@pytest.mark.parametrize("group", [["a"], ["a", "b"], ["b", "a"]])
@pytest.mark.parametrize("verb", ["reset", "settle"])
def test_a_settlement_or_reset_removes_a_cached_refusal(verb: str, group: list[str], store: Remembering) -> None:
    charges = [Charge(key, FixedWindow({"a": 1, "b": 5}[key], 60)) for key in group]
    limited = next(charge for charge in charges if charge.key == "a")
    (taken,) = store.take([limited])
    fill(store, *charges)
    assert source(store.take(charges)) == "remembered"
    if verb == "reset":
        store.reset([limited])
    else:
        store.settle([Charge("a", limited.limit, -1, at=taken.at)])
    assert all(one.allowed for one in store.take(charges))


def test_a_settlement_of_another_bucket_of_the_group_updates_decisions(store: Remembering) -> None:
    """The store still refuses the group, but its decisions show the settled bucket."""
    full, other = Charge("a", FixedWindow(1, 60)), Charge("b", FixedWindow(9, 60))
    fill(store, full, other)
    store.settle([Charge("b", other.limit, 5)])
    assert [one.remaining for one in store.take([full, other])] == [0, 3]


def test_a_refusal_overtaken_by_a_reset_is_not_cached() -> None:
    class Overtaken(MemoryStore):
        def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
            answer = super().take(charges)
            while corrections:
                clock.advance(US)
                guarded.reset([corrections.pop()])  # as by another thread before these decisions arrive
            return answer

    clock, corrections = Clock(), list[Charge]()
    guarded = GuardedStore(Overtaken(clock=clock), Guard(DenyCache(1.0), clock=clock), 1.0)
    charge = Charge("k", FixedWindow(1, 60))
    guarded.take([charge])
    corrections.append(charge)
    assert not guarded.take([charge])[0].allowed
    assert guarded.take([charge])[0].allowed


def test_overtaken_refusals_are_not_cached_after_many_settlements() -> None:
    cache, group = DenyCache(1.0), [Charge("first", FixedWindow(1, 60))]
    refused = [Decision(False, 1, 0, 60.0, 60.0, 60.0, 0.0, 0)]
    cache.forget(group, 10.0)
    for number in range(2000):
        cache.forget([Charge(f"{number}", FixedWindow(1, 60))], 10.1)
    assert len(cache._settled_at) == 1000
    cache.remember(group, refused, 9.9, lambda: 10.2)
    assert cache.find(group, 10.2) is None
    cache.remember(group, refused, 10.2, lambda: 10.2)
    assert cache.find(group, 10.3) is not None


def refusals(store: Remembering, group: Sequence[Charge], times: int) -> list[tuple[Source, list[bool]]]:
    answers = [store.take(group) for _ in range(times)]
    return [(source(answer), [one.allowed for one in answer]) for answer in answers]


def test_bans_are_cached_but_refusals_that_a_penalty_counts_are_not(store: Remembering) -> None:
    group = [Charge("k", FixedWindow(1, 60)), Charge("p", FixedWindow(3, 0.5), role="penalty")]
    assert refusals(store, group, 1) == [("store", [True, True])]
    assert refusals(store, group, 3) == [("store", [False, True])] * 3
    assert refusals(store, group, 3) == [("store", [False, False])] + [("remembered", [False, False])] * 2
    store.clock.advance(0.499999)
    assert refusals(store, group, 1) == [("remembered", [False, False])]
    store.clock.advance(US)  # the ban is over; the limit still refuses, and the penalty counts again
    assert refusals(store, group, 4) == [("store", [False, True])] * 3 + [("store", [False, False])]


def test_a_ban_is_cached_until_it_ends(store: Remembering) -> None:
    limit, penalty = Charge("k", FixedWindow(1, 0.25)), Charge("p", FixedWindow(1, 0.75), role="penalty")
    fill(store, limit, penalty)
    store.clock.advance(0.3)  # the limit has units again
    assert refusals(store, [limit, penalty], 2) == [("store", [True, False]), ("remembered", [True, False])]
    store.clock.advance(0.449999)
    assert refusals(store, [limit, penalty], 1) == [("remembered", [True, False])]
    store.clock.advance(US)
    assert refusals(store, [limit, penalty], 1) == [("store", [True, True])]


def test_a_group_is_cached_until_its_longest_wait_ends(store: Remembering) -> None:
    short, long = Charge("s", FixedWindow(1, 0.2)), Charge("l", FixedWindow(1, 0.8))
    fill(store, short, long)
    store.take([short, long])
    store.clock.advance(0.2)
    answer = store.take([short, long])
    assert source(answer) == "remembered"
    assert [(one.allowed, one.retry_after) for one in answer] == [(True, 0.0), (False, 0.6)]
    verdict = Limiter(store).take(Charge("x", FixedWindow(1, 60)))
    assert (verdict.allowed, verdict.source) == (True, "store")
    store.clock.advance(0.599999)
    assert source(store.take([short, long])) == "remembered"
    store.clock.advance(US)
    assert [one.allowed for one in store.take([short, long])] == [True, True]


@pytest.mark.parametrize("role", ["shadow", "limit"])
def test_a_refusal_of_only_a_shadow_limit_is_not_cached(role: Role, store: Remembering) -> None:
    full, other = Charge("k", FixedWindow(1, 0.6)), Charge("o", FixedWindow(1, 60), role=role)
    store.take([Charge("o", other.limit)])
    if role == "shadow":
        assert refusals(store, [full, other], 1) == [("store", [True, False])]  # a shadow limit refuses no request
        assert refusals(store, [full, other], 2) == [("store", [False, False]), ("remembered", [False, False])]
        store.clock.advance(0.6)
        assert refusals(store, [full, other], 1) == [("store", [True, False])]
    else:
        assert refusals(store, [full, other], 2) == [("store", [True, False]), ("remembered", [True, False])]


def test_cached_decisions_have_correct_times_of_limits_with_units_left(store: Remembering) -> None:
    untouched, started = Charge("u", FixedWindow(5, 60)), Charge("s", TokenBucket(5, 5))
    store.take([started])
    full = Charge("k", FixedWindow(1, 60))
    fill(store, full)
    group = [untouched, started, full]
    store.take(group)
    store.clock.advance(0.75)
    assert list(store.take(group)) == list(store.inner.peek([*group[:2], full]))
    assert [one.next_after for one in store.take(group)] == [60.0, 0.25, 59.25]


def test_a_clock_that_steps_back_invalidates_a_cached_refusal(store: Remembering) -> None:
    charge = Charge("k", FixedWindow(1, 60))
    fill(store, charge)
    store.clock.now -= 10
    asked = store.asked
    assert list(store.take([charge])) == list(store.inner.peek([charge]))
    assert store.asked == asked + 1
    assert source(store.take([charge])) == "remembered"


def test_call_latency_neither_shortens_waits_nor_extends_caching() -> None:
    """The server decides at some time between the call and its reply."""
    clock = Clock(100.0)

    class Slow(MemoryStore):
        def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
            clock.advance(0.01)
            answer = super().take(charges)
            clock.advance(0.02)
            return answer

    inner = Slow(clock=clock)
    store = GuardedStore(inner, Guard(DenyCache(1.0), clock=clock), 1.0)
    charge = Charge("k", FixedWindow(1, 0.5))
    store.take([charge])  # decided at 100.01
    assert store.take([charge])[0].retry_after == 0.47  # sent at 100.03, decided at 100.04, received at 100.06
    clock.now = 100.1
    answer = store.take([charge])
    assert (source(answer), answer[0].retry_after) == ("remembered", 0.43)  # the store would return 0.41
    clock.now = 100.499999  # sent at 100.03, and the window may have ended 0.47 s later
    assert source(store.take([charge])) == "remembered"
    clock.now = 100.5
    assert source(store.take([charge])) == "store"


def test_at_most_10000_refusals_are_cached() -> None:
    cache = DenyCache(1.0)
    limit, refused = FixedWindow(1, 60), [Decision(False, 1, 0, 60.0, 60.0, 60.0, 0.0, 0)] * 2
    groups = [[Charge("all", limit), Charge(f"{number}", limit)] for number in range(12_000)]
    for group in groups:
        cache.remember(group, refused, 10.0, lambda: 10.0)
    assert len(cache._refusals) == 10_000
    assert len(cache.by_key) == 10_001
    assert [cache.find(group, 10.5) is not None for group in (groups[1999], groups[2000], groups[-1])] == [
        False,
        True,
        True,
    ]
    for number in range(6_000):  # after the flood, each new refusal removes two old ones
        cache.remember([Charge(f"later {number}", limit)], refused[:1], 12.0, lambda: 12.0)
    assert len(cache._refusals) == 6_000
    cache.forget([Charge("all", limit), *(Charge(f"later {number}", limit) for number in range(6_000))], 12.0)
    assert (len(cache._refusals), cache.by_key, cache._by_refusing_bucket) == (0, {}, {})


def test_expired_refusals_are_removed() -> None:
    cache, group = DenyCache(1.0), [Charge("k", FixedWindow(1, 60))]
    cache.remember(group, [Decision(False, 1, 0, 60.0, 60.0, 60.0, 0.0, 0)], 10.0, lambda: 10.0)
    assert cache.find(group, 11.0) is None
    assert (len(cache._refusals), cache.by_key, cache._by_refusing_bucket) == (0, {}, {})


def test_store_errors_are_not_cached(store: Remembering) -> None:
    charge = Charge("k", FixedWindow(1, 60))
    store.take([charge])
    store.inner.error = StoreError("away")
    for _ in range(2):
        with pytest.raises(StoreError):
            store.take([charge])
    store.inner.error = None
    assert refusals(store, [charge], 2) == [("store", [False]), ("remembered", [False])]


def test_a_reset_of_the_frozen_clock_clears_the_deny_cache(redis_url: str) -> None:
    limiter = Limiter(RedisStore(redis_url, timeout=5))
    with freeze() as clock:
        assert [limiter.hit("1/minute", "k").source for _ in range(3)] == ["store", "store", "remembered"]
        clock.advance(0.5)
        assert limiter.hit("1/minute", "k").retry_after == 59.5
        clock.reset()
        assert limiter.hit("1/minute", "k").allowed
    limiter.store.close()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most", [1, 3])
def test_random_steps_have_the_same_verdicts_as_without_a_deny_cache(most: int, seed: int) -> None:
    """Random takes of groups over two keys, settlements and resets have the same verdicts as without a deny cache."""
    random = Random(seed)  # noqa: S311  # tests need no secrets
    store = Remembering()
    plain = MemoryStore(clock=store.clock)
    limits = [kind(random.choice((1, 2, 5)), random.choice((0.01, 0.4, 3))) for kind in random.sample(KINDS, 3)]
    roles: tuple[Role, ...] = ("limit", "limit", "limit", "shadow", "penalty") if most > 1 else ("limit",)
    groups = [
        [
            Charge(random.choice("ab"), limit, random.choice((1, 1, 1, 2)), role=random.choice(roles))
            for limit in random.sample(limits, random.randint(1, most))
        ]
        for _ in range(8)
    ]
    remembered, settled = 0, 0
    admitted: list[Charge] = []  # of the group that was admitted last, with the time of each decision
    for _ in range(1000):
        if random.random() < 0.3:
            store.clock.advance(random.choice((US, 0.001, 0.05, 0.5)))
        charges = random.choice(groups)
        if random.random() < 0.03:
            for one in (store, plain):
                one.reset(charges)
            continue
        if admitted and random.random() < 0.1:
            corrections = [replace(charge, cost=random.choice((-1, 1))) for charge in admitted]
            for one in (store, plain):
                one.settle(corrections)
            admitted = []
            settled += 1
            continue
        answer, expected = store.take(charges), plain.take(charges)
        remembered += source(answer) == "remembered"
        assert verdict_of(charges, answer).allowed == verdict_of(charges, expected).allowed
        if verdict_of(charges, answer).allowed:
            admitted = [replace(charge, at=one.at) for charge, one in zip(charges, answer, strict=True)]
        if most == 1:
            assert list(answer) == [
                replace(expected[0], remaining=answer[0].remaining, next_after=answer[0].next_after)
            ]
            assert answer[0].remaining <= expected[0].remaining
    assert remembered > 5
    assert settled > 5


def test_cached_waits_include_smaller_charges_admitted_meanwhile(store: Remembering) -> None:
    limit = TokenBucket(3, 3)
    one, three = [Charge("k", limit)], [Charge("k", limit, 3)]
    store.take(one)
    assert [store.take(three)[0].retry_after for _ in range(2)] == [1.0, 1.0]
    store.take(one)
    assert list(store.take(three)) == list(store.inner.peek(three))


def test_threads_get_exactly_the_quota_with_a_deny_cache(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=10)
    counts, limiter, start = [0] * 8, Limiter(store), threading.Barrier(8)

    def work(index: int) -> None:
        start.wait()
        for turn in range(200):
            counts[index] += limiter.hit("100/hour", f"{turn % 3}").allowed

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 300
    store.close()


@pytest.fixture(params=["threads", "asyncio"])
def on_a_server(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Store]:
    if request.param == "threads":
        store = RedisStore(redis_url, timeout=10)
        yield store
        store.close()
    else:
        with blocking(AsyncRedisStore(redis_url, timeout=10)) as held:
            yield held


def commands(client: Redis) -> int:
    found: dict[str, dict[str, int]] = client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


def test_a_flood_of_refused_requests_sends_few_commands(on_a_server: Store, client: Redis) -> None:
    group = [Charge("{k}:r", FixedWindow(1, 600)), Charge("{k}:r", TokenBucket(50, 60))]
    on_a_server.take(group)
    before = commands(client)
    answers = [on_a_server.take(group) for _ in range(500)]
    assert {tuple(one.allowed for one in answer) for answer in answers} == {(False, True)}
    assert commands(client) - before <= 20
    on_a_server.reset([group[0]])
    assert all(one.allowed for one in on_a_server.take(group))


def test_a_charge_is_admitted_after_the_cached_retry_after(on_a_server: Store) -> None:
    """A charge is refused until `retry_after` and then admitted, although the deny cache refuses it meanwhile."""
    charge = Charge("{k}:r", TokenBucket(1, 0.3))
    assert on_a_server.take([charge])[0].allowed
    answer = on_a_server.take([charge])
    told = on_a_server.take([charge])
    assert [source(answer), source(told)] == ["store", "remembered"]
    assert 0 < told[0].retry_after <= answer[0].retry_after
    threading.Event().wait(told[0].retry_after)
    assert on_a_server.take([charge])[0].allowed


def test_queued_requests_are_refused_from_the_cache_and_not_sent(redis_url: str, client: Redis) -> None:
    async def work() -> set[Source]:
        store = AsyncRedisStore(redis_url, timeout=10, deny_cache=60)  # long enough for a busy machine
        charge = Charge("{k}:r", FixedWindow(1, 600))
        await store.atake([charge])
        before = commands(client)
        answers = await asyncio.gather(*(store.atake([charge]) for _ in range(2000)))
        assert commands(client) - before <= 4  # of at most 32 groups each
        peeked = await store.apeek([charge])
        await store.aclose()
        assert not peeked[0].allowed
        return {source(answer) for answer in answers}

    assert asyncio.run(work()) == {"store", "remembered"}


def test_concurrent_tasks_get_the_quota_and_later_ones_cached_refusals(redis_url: str) -> None:
    async def work() -> tuple[int, set[bool]]:
        store = AsyncRedisStore(redis_url, timeout=10)
        charge = Charge("{k}:r", FixedWindow(3, 600))
        answers = await asyncio.gather(*(store.atake([charge]) for _ in range(100)))
        later = await asyncio.gather(*(store.atake([charge]) for _ in range(100)))
        await store.aclose()
        assert {source(answer) for answer in later} == {"remembered"}
        return sum(answer[0].allowed for answer in answers), {answer[0].allowed for answer in later}

    assert asyncio.run(work()) == (3, {False})
