"""Fair shares of slots: exact in simulated time, alike in memory, in a file and in Redis."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import fakeredis
import pytest

from ratelimit_mw import Charge, Concurrency, ConfigError, Decision, Limiter, MemoryStore
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock
from redis_cluster import RedisCluster
from stores.model_store import ModelStore

STORES: dict[str, Callable[[str, Path, Clock], Any]] = {
    "memory": lambda _, __, clock: MemoryStore(clock=clock),
    "file": lambda _, folder, clock: SQLiteStore(str(folder / "limits.db"), timeout=5, clock=clock),
    "redis": lambda url, _, clock: RedisStore(url, timeout=5, deny_cache=0, clock=clock),
}
SEED = int(os.environ.get("TEST_SEED", SystemRandom().randrange(10**9)))  # a failure message contains it
KEY = "{all}:app"


class Slots:
    """The slots of a limit, as its holders take and release them."""

    def __init__(self, store: Any, clock: Clock, quota: int = 10, lifetime: float = 60) -> None:
        self.store, self.clock, self.quota, self.lifetime = store, clock, quota, lifetime
        self.held: dict[str, list[int]] = {}

    def charge(self, holder: str, cost: int = 1, at: int | None = None) -> Charge:
        return Charge(KEY, Concurrency(self.quota, self.lifetime, holder=holder), cost, at=at)

    def take(self, holder: str, cost: int = 1) -> Decision:
        decision: Decision = self.store.take([self.charge(holder, cost)])[0]
        if decision.allowed:
            self.held.setdefault(holder, []).extend(range(decision.at, decision.at + cost))
        return decision

    def takes_all(self, holder: str) -> int:
        """Take slots until one is refused. Return how many the holder has."""
        while self.take(holder).allowed:
            pass
        return len(self.held.get(holder, ()))

    def release(self, holder: str, count: int = 1) -> None:
        self.store.settle([self.charge(holder, -1, self.held[holder].pop(0)) for _ in range(count)])


@pytest.fixture(params=STORES)
def slots(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Slots:
    clock = Clock()
    return Slots(STORES[request.param](redis_url, tmp_path, clock), clock)


def shown(decision: Decision) -> tuple[bool, int, int]:
    return decision.allowed, decision.limit, decision.remaining


def test_single_holder_gets_all_slots(slots: Slots) -> None:
    assert slots.takes_all("a") == 10
    slots.release("a")
    assert shown(slots.take("a")) == (True, 10, 0)


def test_holder_over_its_share_leaves_free_slots_to_one_that_waits(slots: Slots) -> None:
    slots.takes_all("a")
    assert shown(slots.take("b")) == (False, 10, 0)
    slots.release("a")
    assert shown(slots.take("a")) == (False, 5, 0)  # it has 9 slots, and its share is 5
    assert shown(slots.take("b")) == (True, 10, 0)  # nobody waits any longer
    for _ in range(4):
        assert not slots.take("b").allowed
        slots.release("a")
        assert shown(slots.take("b")) == (True, 10, 0)
    assert [len(slots.held[holder]) for holder in "ab"] == [5, 5]
    assert not slots.take("b").allowed  # it has its share, so it does not wait
    slots.release("a")
    assert slots.take("b").allowed
    assert [len(slots.held[holder]) for holder in "ab"] == [4, 6]


def test_holder_that_got_a_slot_waits_no_longer(slots: Slots) -> None:
    slots.takes_all("a")
    slots.take("b")
    slots.release("a", 2)
    assert [shown(slots.take(holder)) for holder in "aba"] == [(False, 5, 0), (True, 10, 1), (True, 10, 0)]


@pytest.mark.parametrize(("seconds", "allowed"), [(1.4, False), (1.5, True)])
def test_slots_are_kept_free_for_a_second_and_a_half(slots: Slots, seconds: float, *, allowed: bool) -> None:
    slots.takes_all("a")
    slots.take("b")
    slots.release("a", 3)
    slots.clock.advance(seconds)
    assert slots.take("a").allowed is allowed


def test_free_slots_within_the_share_are_shown_and_taken(slots: Slots) -> None:
    slots.takes_all("a")
    slots.take("b")
    slots.release("a", 7)
    assert shown(slots.store.peek([slots.charge("a", 0)])[0]) == (True, 5, 2)
    assert [shown(slots.take("a")) for _ in range(3)] == [(True, 5, 1), (True, 5, 0), (False, 5, 0)]


def test_holder_without_slots_may_take_more_than_its_share_at_once(slots: Slots) -> None:
    """Otherwise a request that needs more slots than the share would never be admitted."""
    slots.takes_all("a")
    slots.take("b")
    slots.release("a", 7)
    assert shown(slots.take("c", 6)) == (True, 4, 0)
    assert shown(slots.take("c", 1)) == (False, 4, 0)


def test_slots_of_a_killed_process_give_back_its_share(slots: Slots) -> None:
    slots.lifetime = 10
    slots.takes_all("killed")
    slots.clock.advance(9.9)
    assert not slots.take("b").allowed
    slots.clock.advance(0.1)
    assert slots.takes_all("b") == 10
    assert shown(slots.take("c")) == (False, 10, 0)
    slots.release("b", 5)
    assert shown(slots.take("b")) == (False, 5, 0)  # of b and c


def test_late_renewal_and_release_of_expired_slots(slots: Slots) -> None:
    slots.lifetime = 10
    taken = slots.take("a", 3)
    slots.clock.advance(10)
    assert slots.takes_all("b") == 10
    slots.store.settle([slots.charge("a", 3, taken.at)])  # up to twice the quota has room
    slots.release("b", 10)
    assert not slots.store.peek([slots.charge("c", 8)])[0].allowed
    for _ in range(2):
        slots.store.settle([slots.charge("a", -3, taken.at)])
        assert slots.store.peek([slots.charge("c", 10)])[0].allowed


def test_known_holders_are_bounded(slots: Slots) -> None:
    """A flood of names leaves a share of one slot. At most 20 holders wait, beside those that get a slot later."""
    slots.takes_all("a")
    for number in range(100):
        assert not slots.take(f"flood {number}").allowed
    slots.release("a", 8)
    assert shown(slots.take("a")) == (False, 1, 0)
    assert [slots.take(f"late {number}").allowed for number in range(9)] == [True] * 8 + [False]
    if isinstance(slots.store, MemoryStore):
        (state_map,) = slots.store._maps.values()
        (state,) = state_map.current.values()
        assert state.count(-(2**60), -1) == 20 + 8


@pytest.mark.parametrize(
    "names", [("x", "{x}"), ("", "\0"), ("a" * 10_000, "a" * 9_999), ("0000000000000002", "\ud800")]
)
def test_any_name_is_a_holder_of_its_own(slots: Slots, names: tuple[str, str]) -> None:
    first, second = names
    slots.takes_all(first)
    assert not slots.take(second).allowed
    slots.release(first, 5)
    assert [slots.take(second).allowed for _ in range(5)] == [True] * 5
    assert not slots.take(first).allowed


def test_clock_that_steps_back_leaves_nobody_waiting_for_long(slots: Slots) -> None:
    slots.clock.advance(1000)
    slots.takes_all("a")
    slots.take("b")
    slots.release("a", 3)
    slots.clock.now -= 1000
    assert slots.take("a").allowed
    slots.clock.advance(60)
    assert slots.takes_all("b") == 10


def test_three_that_want_everything_and_one_that_comes_and_goes(slots: Slots) -> None:
    """Only while another holder waits, a share counts. The slots are never more than the limit."""
    random = Random(7)  # noqa: S311  # no secret
    waiting, most = set[str](), Counter[str]()
    for turn in range(200):
        slots.clock.advance(0.05)
        holders = ["a", "b", "c"] + ["d"] * (turn % 100 < 40)
        for holder in random.sample(holders, len(holders)):
            held = {one: len(names) for one, names in slots.held.items() if names}
            share = -(-10 // len({*held, *waiting, holder}))
            before = held.get(holder, 0)
            if slots.take(holder).allowed:
                waiting.discard(holder)
                assert not waiting or before < share
                most[holder] = max(most[holder], before + 1)
            elif before < share:
                waiting.add(holder)
        for holder, names in slots.held.items():
            leaves = holder == "d" and turn % 100 > 80
            slots.release(holder, len(names) if leaves else sum(random.random() < 0.2 for _ in names))
        if turn % 100 > 80:
            waiting.discard("d")
        assert sum(map(len, slots.held.values())) <= 10
    assert most["d"] >= 3, most  # of 10 slots and four holders


def test_all_stores_decide_alike(redis_url: str, tmp_path: Path) -> None:
    """Random steps, also with a clock that steps back, two quotas in one bucket, and costs of several slots."""
    random, clock = Random(SEED), Clock()  # noqa: S311  # no secret
    in_text = RedisStore(fakeredis.FakeRedis(), timeout=5, deny_cache=0, clock=clock)  # slow, so with fewer steps
    stores = [ModelStore(clock), *(make(redis_url, tmp_path, clock) for make in STORES.values()), in_text]
    given: list[tuple[Charge, Decision]] = []
    for step in range(1500):
        clock.advance(random.choice([0, 0, 0.000001, 0.05, 0.3, 2, 11]))
        if step == 200:
            stores.pop()
        if step > 800 and random.random() < 0.03:  # from here on without stores that may have dropped states
            stores = [stores[0], stores[-1]]
            clock.now -= random.choice([0.000001, 0.5, 30])
        limit = Concurrency(random.choice([4, 7]), random.choice([10, 10, 10, 0.5]), holder=random.choice("abcde"))
        charge, verb = Charge(KEY, limit, random.choice([0, 1, 1, 1, 2, 5, 8])), random.choice(["take"] * 4 + ["peek"])
        if given and random.random() < 0.4:
            old, decision = random.choice(given[-12:])
            sign = random.choice([-1, -1, 1])
            charge, verb = Charge(KEY, old.limit, sign * random.choice([old.cost, 1]), at=decision.at), "settle"
        first, *others = (list(getattr(store, verb)([charge]) or ()) for store in stores)
        assert others == [first] * len(others), f"TEST_SEED={SEED}, step {step}: {verb} {charge} at {clock.now}"
        if verb == "take" and first[0].allowed and charge.cost:
            given.append((charge, first[0]))


def test_cluster_shares_slots_fairly(redis_cluster: RedisCluster) -> None:
    clock = Clock()
    slots = Slots(RedisStore(redis_cluster.url, timeout=10, deny_cache=0, clock=clock), clock)
    assert slots.takes_all("a") == 10
    assert shown(slots.take("b")) == (False, 10, 0)
    slots.release("a")
    assert [shown(slots.take(holder)) for holder in "ab"] == [(False, 5, 0), (True, 10, 0)]
    slots.store.close()


HOG = """
import sys, time
from ratelimit_mw import Concurrency, Limiter
from ratelimit_mw.stores.redis import RedisStore
with Limiter(RedisStore(sys.argv[1], timeout=10)).slot(Concurrency(4, 2, holder="hog"), "everybody", 3):
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.mark.one_redis
def test_killed_process_gives_back_its_slots(redis_url: str) -> None:
    """In real time, with renewals. While the process lives it keeps its slots, for longer than their lifetime."""
    limiter = Limiter(RedisStore(redis_url, timeout=10, deny_cache=0))
    process = subprocess.Popen([sys.executable, "-c", HOG, redis_url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        with limiter.slot(Concurrency(4, 2, holder="other"), "everybody"):
            until = time.monotonic() + 3
            while time.monotonic() < until:
                assert not limiter.hit(Concurrency(4, 2, holder="third"), "everybody").allowed
                time.sleep(0.1)
            process.kill()
            process.wait()
            until = time.monotonic() + 60
            while not limiter.peek(Concurrency(4, 2, holder="third"), "everybody", 3).allowed:
                assert time.monotonic() < until
                time.sleep(0.1)
            with limiter.slot(Concurrency(4, 2, holder="third"), "everybody", 3):
                assert not limiter.hit(Concurrency(4, 2, holder="third"), "everybody").allowed
    finally:
        process.kill()
        process.communicate()
        limiter.close()


def test_invalid_holder_raises_a_config_error() -> None:
    with pytest.raises(ConfigError, match="holder: got 7, expected text"):
        Concurrency(1, holder=7)  # type: ignore[arg-type]  # what the test is about


def test_limit_with_a_holder_has_its_own_buckets() -> None:
    limit = Concurrency(20, 30, name="reports", holder="alice")
    assert (limit.notation, limit.bucket) == ("20 at once", "reports:30s_fair_using_concurrency")
    assert limit.script == ("fair_slots", (30_000_000, 20, 1_000_000, limit.holder_number, 1, 1))
    assert limit.numbers == limit.script[1][:4]
