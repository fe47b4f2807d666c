"""Tests that a bounded table counts the most refused clients, and sends them to the store off the request path."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from random import Random
from typing import Any

import pytest

from ratelimit_mw import Charge, ConfigError, FixedWindow, StoreError, Verdict
from ratelimit_mw.core.verdict import verdict_of
from ratelimit_mw.engine import offenders
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.offenders import OffenderTable, ThreadReporter
from ratelimit_mw.http.views import WsgiRequest
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.inventory import KeyPage, NumberedRefusal, Refusal
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis import RedisStore

pytestmark = pytest.mark.one_redis

OFTEN = [f"often-{number}" for number in range(20)]


class Keeping(MemoryStore):
    """A memory store that keeps refusals, as stores on a server do."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.calls: list[tuple[Mapping[str, int], Sequence[Refusal]]] = []
        self.threads: set[int] = set()
        self.error = error

    def list_keys(self) -> Iterator[KeyPage]:
        yield KeyPage([], 1.0)

    def add_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        self.threads.add(threading.get_ident())
        self.calls.append((counts, latest))
        if self.error is not None:
            raise self.error

    async def aadd_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        self.add_refused(counts, latest)

    def most_refused(self, since: float) -> Mapping[str, int]:
        return {}

    def latest_refusals(self, after: str | None, most: int) -> Sequence[NumberedRefusal]:
        return []

    @property
    def counts(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for counts, _ in self.calls:
            for key, count in counts.items():
                total[key] = total.get(key, 0) + count
        return total


def refusal(key: str = "{a}:login") -> Verdict:
    store, charges = MemoryStore(), [Charge(key, FixedWindow(1, 3600))]
    store.take(charges)
    verdict = verdict_of(charges, store.take(charges))
    assert not verdict.allowed
    return verdict


def request(user: str) -> WsgiRequest:
    return WsgiRequest({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_USER": user}, "192.0.2.1")


def settings(store: Any, **options: Any) -> Settings:
    return Settings(**{"limits": "1/hour", "store": store, "plain_keys": True, "remember_refused": 10} | options)


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def unthrottled_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which log lines are throttled."""
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send refusals a hundredth of a second after the first."""
    monkeypatch.setattr(offenders, "INTERVAL", 0.01)


@pytest.mark.promise(7)
def test_the_table_finds_frequent_offenders_among_a_million_refusals() -> None:
    size = 100
    names = OFTEN * 10_000 + [f"once-{number}" for number in range(800_000)]
    Random(1).shuffle(names)  # noqa: S311  # a fixed order
    table, held = OffenderTable(size), 0
    for number, name in enumerate(names):
        table.add(name)
        if number % 1000 == 0:
            held = max(held, len(table))
    highest = table.highest()
    assert set(list(highest)[:20]) == set(OFTEN)
    assert all(9_500 <= highest[name] <= 10_000 for name in OFTEN)
    assert held <= 2 * size
    assert len(highest) == size


def test_a_count_is_never_higher_than_the_number_of_refusals() -> None:
    random, table, true = Random(2), OffenderTable(3), dict[str, int]()  # noqa: S311  # a fixed order
    for _ in range(5_000):
        name = f"n{min(int(random.expovariate(0.3)), 40)}"
        true[name] = true.get(name, 0) + 1
        table.add(name)
        assert len(table) <= 6
        assert all(count <= true[one] for one, count in table.highest().items())
    assert next(iter(table.highest())) == "n0"


def test_a_small_number_of_names_is_counted_exactly() -> None:
    table = OffenderTable(5)
    for name in "abacabad":
        table.add(name)
    assert table.highest() == {"a": 4, "b": 2, "c": 1, "d": 1}
    assert OffenderTable(5).highest() == {}


@pytest.mark.usefixtures("quick")
def test_refusals_in_threads_reach_the_store_from_another_thread() -> None:
    store = Keeping()
    gate = Gate(settings(store))
    for user in ("bob", "bob", "bob", "eve"):
        gate.admit(request(user))
    until(lambda: store.counts == {"{user=bob}:default": 2})
    gate.admit(request("eve"))
    until(lambda: store.counts == {"{user=bob}:default": 2, "{user=eve}:default": 1})
    assert threading.get_ident() not in store.threads
    (latest,) = store.calls[-1][1]
    assert (latest.key, latest.limit) == ("{user=eve}:default", "1/3600s using sliding_window_counter")
    assert 3590 < latest.retry_after <= 7200
    assert abs(latest.at - time.time()) < 60
    until(lambda: not any(one.name == "ratelimit_mw refused" for one in threading.enumerate()))


@pytest.mark.usefixtures("quick")
def test_refusals_in_an_event_loop_reach_the_store_in_a_task() -> None:
    class Awaited(Keeping):
        def __init__(self) -> None:
            super().__init__()
            self.called = asyncio.Event()

        async def aadd_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
            await super().aadd_refused(counts, latest)
            self.called.set()

        async def atake(self, charges: Sequence[Charge]) -> Any:
            await asyncio.sleep(0)
            return self.take(charges)

    async def refuse() -> Awaited:
        store = Awaited()
        gate = AsyncGate(settings(store))
        for user in ("bob", "bob", "bob"):
            await gate.admit(request(user))
        assert store.calls == []
        async with asyncio.timeout(30):
            await store.called.wait()
        await gate.admit(request("bob"))
        await gate.close()
        return store

    store = asyncio.run(refuse())
    assert [counts for counts, _ in store.calls] == [{"{user=bob}:default": 2}, {"{user=bob}:default": 1}]
    asyncio.run(refuse())  # in another loop, too


def test_closing_the_gate_sends_pending_refusals() -> None:
    store = Keeping()
    gate = Gate(settings(store))
    for _ in range(3):
        gate.admit(request("bob"))
    assert store.calls == []
    gate.close()
    assert store.counts == {"{user=bob}:default": 2}


@pytest.mark.promise(8)
@pytest.mark.usefixtures("quick", "unthrottled_log")
def test_a_failing_store_loses_refusals_but_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    store = Keeping(StoreError("away"))
    gate = Gate(settings(store))
    for _ in range(3):
        verdict = gate.admit(request("bob"))
    assert verdict is not None
    assert not verdict.allowed
    until(lambda: len(store.calls) >= 1)
    until(lambda: "which `top` and `tail` will not show: away" in caplog.text)


def test_threads_count_every_refusal() -> None:
    store = Keeping()
    reporter, one = ThreadReporter(store, 10), refusal()

    def add() -> None:
        for _ in range(5_000):
            reporter.add(one)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reporter.flush()
    assert store.counts == {"{a}:login": 20_000}


def test_the_reporter_keeps_as_many_latest_refusals_as_names() -> None:
    store = Keeping()
    reporter = ThreadReporter(store, 3)
    for number in range(8):
        reporter.add(refusal(f"{{{number}}}:r"))
    reporter.flush()
    ((counts, latest),) = store.calls
    assert len(counts) == 3
    assert [one.key for one in latest] == ["{5}:r", "{6}:r", "{7}:r"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_sends_only_its_own_refusals(redis_url: str) -> None:
    with closing(RedisStore(redis_url, timeout=5)) as store:
        reporter, since = ThreadReporter(store, 10), time.time()
        reporter.add(refusal())
        child = os.fork()
        if not child:
            reporter.add(refusal())
            reporter.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        reporter.flush()
        assert store.most_refused(since) == {"{a}:login": 2}


def test_refusals_by_the_blocklist_are_not_counted() -> None:
    store = Keeping()
    gate = Gate(settings(store, blocklist=["192.0.2.1"]))
    verdict = gate.admit(request("bob"))
    assert verdict is not None
    assert not verdict.allowed
    gate.close()
    assert store.calls == []


def test_remember_refused_zero_disables_counting() -> None:
    gate = Gate(settings(Keeping(), remember_refused=0))
    assert gate.reporter is None


@pytest.mark.parametrize("kind", [Gate, AsyncGate])
def test_a_store_that_cannot_keep_refusals_is_logged_at_startup(
    kind: Callable[[Settings], Gate | AsyncGate], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        gate = kind(Settings(limits="1/hour", remember_refused=10, strict=True))
    assert gate.reporter is None
    assert caplog.text.count("remember_refused: the store cannot keep refusals") == 1
    assert gate.nested.reporter is None
    assert caplog.text.count("remember_refused: the store cannot keep refusals") == 1


def test_endpoint_limits_use_the_reporter_of_the_gate() -> None:
    gate = Gate(settings(Keeping()))
    assert gate.nested.reporter is gate.reporter
    assert gate.reporter is not None


@pytest.mark.parametrize("value", [-1, 10_001, True, 1.5, "10", None])
def test_an_invalid_remember_refused_is_a_config_error(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^remember_refused: got "):
        Settings(limits="1/hour", remember_refused=value)  # type: ignore[arg-type]  # on purpose
