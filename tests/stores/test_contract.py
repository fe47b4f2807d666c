"""What a store declares: the same from a base class or from attributes, with defaults; gates take no other notice."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ratelimit_mw import Charge, ConfigError, Decision, FixedWindow, MemoryStore
from ratelimit_mw.core.events import StoreEvent
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.contract import BaseStore, InPlace, declared
from ratelimit_mw.stores.inventory import KeyPage
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import RecordingStore

DEFAULTS = {
    "can_fail": True,
    "suspends": True,
    "has_own_timeout": False,
    "is_cluster": False,
    "probe": None,
    "loop": None,
    "inventory": None,
    "async_inventory": None,
}
GROUP = [Charge("k", FixedWindow(1, 60))]


class FiveMethods:
    """A store of one's own for threads, over a store in memory."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.take, self.peek, self.settle = self.inner.take, self.inner.peek, self.inner.settle
        self.reset, self.close = self.inner.reset, self.inner.close


class TenMethods(FiveMethods):
    """The same, for asyncio too."""

    def __init__(self) -> None:
        super().__init__()
        self.atake, self.apeek, self.asettle = self.inner.atake, self.inner.apeek, self.inner.asettle
        self.areset, self.aclose = self.inner.areset, self.inner.aclose


class InLoop(TenMethods):
    can_fail = False
    suspends = False

    def count_states(self) -> int:
        return 3


class Waiting(MemoryStore):
    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        await asyncio.sleep(0)
        return await super().atake(charges)


class WaitingInMemory(Waiting):
    """Waits no more."""

    suspends = False
    can_fail = False


def facts(store: object) -> dict[str, Any]:
    return {name: getattr(declared(store), name) for name in DEFAULTS}


def gate(store: Any) -> AsyncGate:
    return AsyncGate(Settings(limits="1/minute", store=store))


@pytest.mark.parametrize("make", [BaseStore, FiveMethods, TenMethods])
def test_a_store_that_declares_nothing_has_the_defaults(make: Any) -> None:
    store = make()
    assert facts(store) == DEFAULTS
    assert not declared(store).subscribe(print)
    assert declared(store).count_states() is None


def test_attributes_declare_what_a_base_class_does() -> None:
    class Declaring(TenMethods):
        can_fail = suspends = False
        has_own_timeout = is_cluster = True
        heard: StoreEvent | None = None
        loop: object = None

        def probe(self, algorithms: object) -> None:
            return None

        def subscribe(self, listener: Any) -> bool:
            listener(StoreEvent("failed", "down"))
            return True

        async def aadd_refused(self, counts: object, latest: object) -> None: ...

    store, events = Declaring(), list[StoreEvent]()
    known = declared(store)
    assert facts(store) == DEFAULTS | {
        "can_fail": False,
        "suspends": False,
        "has_own_timeout": True,
        "is_cluster": True,
        "probe": store.probe,
        "async_inventory": store,
    }
    assert known.subscribe(events.append)
    assert [event.kind for event in events] == ["failed"]
    store.loop = loop = asyncio.new_event_loop()
    assert known.loop is loop
    loop.close()


def test_a_store_without_methods_for_threads_suspends() -> None:
    class OnlyAsyncio:
        suspends = False

    assert declared(OnlyAsyncio()).suspends


def test_a_completed_store_starts_a_take() -> None:
    async def take() -> Sequence[Decision]:
        return await declared(TenMethods()).start_take(GROUP)

    assert asyncio.run(take())[0].allowed


def test_a_subclass_of_the_store_in_memory_may_fail_and_wait() -> None:
    stores = MemoryStore(), RecordingStore(), Waiting(), WaitingInMemory(), type("Later", (Waiting,), {})()
    assert [(store.can_fail, store.suspends) for store in stores] == [
        (False, False),
        (True, False),
        (True, True),
        (False, False),
        (True, True),
    ]


@pytest.mark.parametrize("make", [MemoryStore, RecordingStore, InLoop])
def test_a_store_that_does_not_suspend_takes_the_way_of_the_store_in_memory(make: Any) -> None:
    store = make()
    made = gate(store)
    assert made.sync_gate is not None
    assert not made.store_awaits
    assert made.runtime.take_cancel_safe == made.runtime.take
    assert [made.sync_gate._needs_fallback, made._needs_fallback] == [declared(store).can_fail] * 2


@pytest.mark.parametrize("make", [TenMethods, Waiting])
def test_a_store_that_may_suspend_is_awaited(make: Any) -> None:
    made = gate(make())
    assert made.sync_gate is None
    assert made.store_awaits
    assert made.runtime.take_cancel_safe != made.runtime.take


def test_five_methods_that_never_wait_suffice_for_asyncio() -> None:
    class Own(FiveMethods, InPlace):
        pass

    gate = AsyncGate(Settings(limits="1/minute", store=Own()))
    assert gate.sync_gate is not None
    with pytest.raises(ConfigError, match="expected a URL or an AsyncStore with atake"):
        AsyncGate(Settings(limits="1/minute", store=FiveMethods()))


def test_states_of_a_store_of_ones_own_are_counted() -> None:
    COUNTS.update()
    store = InLoop()
    made = AsyncGate(Settings(limits="1/minute", store=store, metrics=True))
    assert made._declared in COUNTS._stores
    assert made._declared.count_states() == 3


def test_stores_of_servers_declare_their_inventory_and_probe() -> None:
    store, other = RedisStore("redis://localhost"), AsyncRedisStore("redis://localhost")
    assert facts(store) == DEFAULTS | {"has_own_timeout": True, "probe": store.probe, "inventory": store}
    assert facts(other) == DEFAULTS | {"has_own_timeout": True, "probe": other.probe, "async_inventory": other}
    assert None not in (store.probe, other.probe)


def test_a_store_in_memory_with_the_methods_of_an_inventory_has_one() -> None:
    class Listed(MemoryStore):
        def list_keys(self) -> list[KeyPage]:
            return []

        def add_refused(self, counts: object, latest: object) -> None: ...

        def most_refused(self, since: float) -> dict[str, int]:
            return {}

        def latest_refusals(self, after: str | None, most: int) -> list[Any]:
            return []

    store: Any = Listed()
    assert declared(store).inventory is store
