"""Slots that are held: renewed while somebody is at work, given back after.

A hold that nobody refers to any more is not renewed: whoever is gone without giving back, as its slots are free again
when their lifetime is over. So it is in every store, in this process or on a server, where it also outlives a kill.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from weakref import WeakSet

from msgspec.structs import replace

from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.forks import start_over_in_child
from ratelimit_mw.stores.group import committed
from ratelimit_mw.stores.loops import OfLoop
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.verdict import RateLimited, Verdict, verdict_of

Take = Callable[[Sequence[Charge]], Coroutine[Any, Any, Sequence[Decision]]]

_RENEWALS: Final = 3  # in a lifetime: two of them may fail
_TOGETHER: Final = 500  # charges in one call
_SOONEST: Final = 0.005  # seconds: what is under way need not be looked at in each turn of a loop
_LOST: Final = "slots are not known to be %s, and are free when their lifetime is over: %s"


class Hold:
    """The slots that one request, or one block, took of a store. `then`: called when they were given back."""

    __slots__ = ("__weakref__", "among", "charges", "ended", "every", "renewed", "store", "then")
    among: "_Holds"  # of its event loop

    def __init__(self, store: Any, charges: Sequence[Charge], then: Callable[[], object] | None = None) -> None:
        self.store: Final = store
        self.charges: Final = charges  # settled as they are, they renew
        self.then: Final = then
        self.every: Final = min(charge.limit.window for charge in charges) / _RENEWALS  # seconds between renewals
        self.renewed = time.monotonic()
        self.ended = False

    def back(self) -> list[Charge]:
        """The corrections that give back."""
        return [replace(charge, cost=-charge.cost) for charge in self.charges]


def slots_of(charges: Sequence[Charge], decisions: Sequence[Decision]) -> list[Charge]:
    """The slots that a group took: one charge for each bucket, which renews them when it is settled."""
    if len(decisions) != len(charges):  # where the store failed
        return []
    found: dict[tuple[str, str], Charge] = {}
    for charge, decision, taken in zip(charges, decisions, committed(charges, decisions), strict=True):
        if charge.limit.held and charge.cost and taken:
            bucket = (charge.key, charge.limit.bucket)
            more = found[bucket].cost if bucket in found else 0  # twice in a group, its slots stand side by side
            found[bucket] = Charge(charge.key, charge.limit, charge.cost + more, at=decision.at)
    return list(found.values())


class _Holds:
    """Those that are to be renewed. No I/O; several threads may call at once."""

    def __init__(self) -> None:
        self._held: WeakSet[Hold] = WeakSet()
        self._under_way: set[Hold] = set()
        self._lock = threading.Lock()

    def add(self, hold: Hold) -> None:
        """From now on it is renewed."""
        with self._lock:
            self._held.add(hold)

    def end(self, hold: Hold) -> bool:
        """It is renewed no more. Whether it is to be given back now: else who renews it just now does that after."""
        with self._lock:
            first, hold.ended = not hold.ended, True
            self._held.discard(hold)
            return first and hold not in self._under_way

    def due(self, now: float) -> list[list[Hold]]:
        """What is to be renewed now, as calls; then `done`."""
        calls: dict[int, list[list[Hold]]] = {}
        with self._lock:
            for hold in self._held:
                if hold.renewed + hold.every <= now and hold not in self._under_way:
                    of_store = calls.setdefault(id(hold.store), [[]])
                    if sum(len(one.charges) for one in of_store[-1]) >= _TOGETHER:
                        of_store.append([])
                    of_store[-1].append(hold)
                    self._under_way.add(hold)
        return [call for of_store in calls.values() for call in of_store]

    def done(self, call: Sequence[Hold], now: float) -> list[Hold]:
        """What of it ended meanwhile, and is to be given back."""
        with self._lock:
            self._under_way.difference_update(call)
            for hold in call:
                hold.renewed = now
            return [hold for hold in call if hold.ended]

    def wait(self, now: float) -> float | None:
        """Seconds until something is due; None where nothing is held."""
        with self._lock:
            return min((max(0.0, hold.renewed + hold.every - now) for hold in self._held), default=None)


def _renewal(call: Sequence[Hold]) -> list[Charge]:
    return [charge for hold in call for charge in hold.charges]


def _give_back(hold: Hold) -> None:
    try:
        hold.store.settle(hold.back())
    except Exception as error:  # noqa: BLE001  # nobody waits for it
        warn_rarely("slots", _LOST, "given back", error)
    if hold.then is not None:
        hold.then()


class Keeper:
    """Renews and gives back in threads. Its own one runs while something is held, and a little longer."""

    def __init__(self) -> None:
        self._start_over()
        start_over_in_child(self._start_over)

    def _start_over(self) -> None:
        self._holds = _Holds()
        self._wake = threading.Condition()
        self._running = False
        self._next = 0.0

    def hold(self, hold: Hold) -> None:
        """Renew it from now on."""
        self._holds.add(hold)
        with self._wake:
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="ratelimit_mw slots", daemon=True).start()
            elif hold.renewed + hold.every < self._next:
                self._wake.notify()

    def release(self, hold: Hold) -> None:
        """Give it back."""
        if self._holds.end(hold):
            _give_back(hold)

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            for call in self._holds.due(now):
                self._renew(call)
            with self._wake:
                pause = self._holds.wait(time.monotonic())
                if pause is None:
                    self._running = False
                    return
                self._next = time.monotonic() + pause
                self._wake.wait(pause)

    def _renew(self, call: Sequence[Hold]) -> None:
        try:
            call[0].store.settle(_renewal(call))
        except Exception as error:  # noqa: BLE001  # nobody waits for it
            warn_rarely("slots", _LOST, "renewed", error)
        for hold in self._holds.done(call, time.monotonic()):
            _give_back(hold)


class _Loop:
    """The holds of one event loop."""

    def __init__(self) -> None:
        self.holds = _Holds()
        self._ticking = False
        self._tasks: set[asyncio.Task[None]] = set()

    def hold(self, hold: Hold) -> None:
        self.holds.add(hold)
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(hold.every, self._tick)

    def keep(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task that is held on to, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tick(self) -> None:
        for call in self.holds.due(time.monotonic()):
            self.keep(self._renew(call))
        pause = self.holds.wait(time.monotonic())
        self._ticking = pause is not None
        if pause is not None:
            asyncio.get_running_loop().call_later(max(pause, _SOONEST), self._tick)

    async def _renew(self, call: Sequence[Hold]) -> None:
        try:
            await call[0].store.asettle(_renewal(call))
        except Exception as error:  # noqa: BLE001  # nobody waits for it
            warn_rarely("slots", _LOST, "renewed", error)
        for hold in self.holds.done(call, time.monotonic()):
            await _agive_back(hold)


class AsyncKeeper:
    """The same in event loops."""

    def __init__(self) -> None:
        self._loops = OfLoop(_Loop)

    def hold(self, hold: Hold) -> None:
        """Renew it from now on, in the running loop."""
        loop = self._loops.get()
        hold.among = loop.holds
        loop.hold(hold)

    def release(self, hold: Hold, soon: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]) -> None:
        """Give it back, in whatever thread. `soon`: has a coroutine awaited in its loop."""
        if hold.among.end(hold):
            if isinstance(hold.store, MemoryStore):
                _give_back(hold)  # which waits for nothing
            else:
                soon(lambda: _agive_back(hold))

    def keep(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Have it done, whoever waits for it."""
        return self._loops.get().keep(work)

    async def released(self, hold: Hold) -> None:
        """Give it back, and wait until it is; whoever is cancelled meanwhile, it goes on."""
        if hold.among.end(hold):
            await asyncio.shield(self.keep(_agive_back(hold)))


KEEPER: Final = Keeper()
ASYNC_KEEPER: Final = AsyncKeeper()


def kept_by_thread(hold: Hold) -> Callable[[Any], None]:
    """Renew it until what is returned is called: a follower of the request that holds it."""
    KEEPER.hold(hold)
    return lambda _: KEEPER.release(hold)


def kept_by_loop(hold: Hold) -> Callable[[Any], None]:
    """The same in the running loop."""
    ASYNC_KEEPER.hold(hold)
    return lambda following: ASYNC_KEEPER.release(hold, following.soon)


@contextmanager
def slot(store: Store, charges: Sequence[Charge]) -> Iterator[Verdict]:
    """Take the charges, and hold the slots among them until the block ends. Raises `RateLimited`."""
    verdict = verdict_of(charges, store.take(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    hold = Hold(store, slots_of(charges, verdict.decisions))
    KEEPER.hold(hold)
    try:
        if verdict.delay:
            time.sleep(verdict.delay)
        yield verdict
    finally:
        KEEPER.release(hold)


@asynccontextmanager
async def aslot(store: AsyncStore, charges: Sequence[Charge]) -> AsyncIterator[Verdict]:
    """The same for asyncio."""
    verdict = verdict_of(charges, await taken(store.atake, store, charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    hold = Hold(store, slots_of(charges, verdict.decisions))
    ASYNC_KEEPER.hold(hold)
    try:
        if verdict.delay:
            await asyncio.sleep(verdict.delay)
        yield verdict
    finally:
        await ASYNC_KEEPER.released(hold)


async def taken(take: Take, store: Any, charges: Sequence[Charge]) -> Sequence[Decision]:
    """Ask a store for charges with slots among them. Whoever is cancelled before it has answered holds none."""
    if isinstance(store, MemoryStore):  # it never waits
        return await take(charges)
    taking = asyncio.ensure_future(take(charges))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        ASYNC_KEEPER.keep(_undone(taking, store, charges))
        raise


async def _undone(taking: "asyncio.Future[Sequence[Decision]]", store: Any, charges: Sequence[Charge]) -> None:
    try:
        slots = slots_of(charges, await taking)
    except Exception:  # noqa: BLE001  # nobody waits for it
        return
    if slots:
        await _agive_back(Hold(store, slots))


async def _agive_back(hold: Hold) -> None:
    try:
        await hold.store.asettle(hold.back())
    except Exception as error:  # noqa: BLE001  # nobody waits for it
        warn_rarely("slots", _LOST, "given back", error)
    if hold.then is not None:
        hold.then()
