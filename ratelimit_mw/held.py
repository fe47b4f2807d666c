"""Who renews the slots that are held while somebody is at work, and gives them back after: threads, or event loops."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ratelimit_mw.background import run_to_completion, spawn_task
from ratelimit_mw.holds import HeldSlots, SlotRegistry, renewal_charges
from ratelimit_mw.kept import get_or_create
from ratelimit_mw.notices import warn_throttled
from ratelimit_mw.stores.forks import after_fork_in_child
from ratelimit_mw.stores.loops import PerLoop
from ratelimit_mw.stores.memory import MemoryStore

_MIN_PAUSE: Final = 0.005  # seconds: what is under way need not be looked at in each turn of a loop
_NO_THREAD: Final = "slots are renewed by the next requests for slots, as no thread can be started: %s"
_STORE_FAILED: Final = "slots are not known to be %s, and are free when their lifetime is over: %s"


def _release_slots(held_slots: HeldSlots) -> None:
    try:
        held_slots.store.settle(held_slots.refunds())
    except Exception as error:  # noqa: BLE001  # nobody waits for it
        warn_throttled("slots", _STORE_FAILED, "given back", error)
    if held_slots.on_released is not None:
        held_slots.on_released()


class SlotRenewer:
    """Renews and gives back in threads. Its own one runs while something is held, and a little longer."""

    def __init__(self) -> None:
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        self._registry = SlotRegistry()
        self.__dict__.pop("wake", None)
        self._running = False
        self._next = 0.0

    @property
    def _wake(self) -> threading.Condition:
        """Made when it is first needed: gevent's workers patch `threading` after an app was loaded and forked."""
        return get_or_create(self, "wake", threading.Condition)

    def add(self, held_slots: HeldSlots) -> None:
        """Renew it from now on."""
        held_slots.registry = self._registry
        self._registry.add(held_slots)
        with self._wake:
            if not self._running:
                self._start()
            elif held_slots.renewed_at + held_slots.renewal_interval < self._next:
                self._wake.notify()

    def release(self, held_slots: HeldSlots) -> None:
        """Give it back."""
        if self._registry.end(held_slots):
            _release_slots(held_slots)

    def renew_due(self) -> None:
        """Renew what is due where no thread could be started for that: called before slots are asked for."""
        if self._running or self._registry.wait(time.monotonic()) is None:
            return
        with self._wake:
            if not self._running:
                self._start()
        if not self._running:
            for batch in self._registry.due(time.monotonic()):
                self._renew(batch)

    def _start(self) -> None:
        """Start the thread. Where the system gives none just now, the next request tries again."""
        try:
            threading.Thread(target=self._run, name="ratelimit_mw slots", daemon=True).start()
        except RuntimeError as error:
            warn_throttled("slots thread", _NO_THREAD, error)
        else:
            self._running = True

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            for batch in self._registry.due(now):
                self._renew(batch)
            with self._wake:
                pause = self._registry.wait(time.monotonic())
                if pause is None:
                    self._running = False
                    return
                self._next = time.monotonic() + pause
                self._wake.wait(pause)

    def _renew(self, batch: Sequence[HeldSlots]) -> None:
        try:
            batch[0].store.settle(renewal_charges(batch))
        except Exception as error:  # noqa: BLE001  # nobody waits for it
            warn_throttled("slots", _STORE_FAILED, "renewed", error)
        for held_slots in self._registry.done(batch, time.monotonic()):
            _release_slots(held_slots)


class _LoopRenewer:
    """The holds of one event loop."""

    def __init__(self) -> None:
        self.registry = SlotRegistry()
        self._timer: asyncio.TimerHandle | None = None  # one while something is held, and a little longer
        self._next = 0.0  # when it fires, by the clock of the holds

    def add(self, held_slots: HeldSlots) -> None:
        self.registry.add(held_slots)
        if self._timer is None or held_slots.renewed_at + held_slots.renewal_interval < self._next:
            self._tick_in(held_slots.renewal_interval)

    def _tick(self) -> None:
        for batch in self.registry.due(time.monotonic()):
            spawn_task(self._renew(batch))
        self._timer = None
        pause = self.registry.wait(time.monotonic())
        if pause is not None:
            self._tick_in(max(pause, _MIN_PAUSE))

    def _tick_in(self, pause: float) -> None:
        """So soon, and not at the time that was set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(pause, self._tick)
        self._next = time.monotonic() + pause

    async def _renew(self, batch: Sequence[HeldSlots]) -> None:
        try:
            await batch[0].store.asettle(renewal_charges(batch))
        except Exception as error:  # noqa: BLE001  # nobody waits for it
            warn_throttled("slots", _STORE_FAILED, "renewed", error)
        finally:
            for held_slots in self.registry.done(batch, time.monotonic()):
                spawn_task(_release_slots_async(held_slots))


class AsyncSlotRenewer:
    """The same in event loops."""

    def __init__(self) -> None:
        self._loops = PerLoop(_LoopRenewer)

    def add(self, held_slots: HeldSlots) -> None:
        """Renew it from now on, in the running loop."""
        loop = self._loops.get()
        held_slots.registry = loop.registry
        loop.add(held_slots)

    def release(
        self, held_slots: HeldSlots, spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
    ) -> None:
        """Give it back, in whatever thread. `spawn`: has a coroutine awaited in its loop."""
        if held_slots.registry.end(held_slots):
            if isinstance(held_slots.store, MemoryStore):
                _release_slots(held_slots)  # which waits for nothing
            else:
                spawn(lambda: _release_slots_async(held_slots))

    async def release_and_wait(self, held_slots: HeldSlots) -> None:
        """Give it back, and wait until it is; whoever is cancelled meanwhile, it goes on."""
        if held_slots.registry.end(held_slots):
            await run_to_completion(_release_slots_async(held_slots))


SLOT_RENEWER: Final = SlotRenewer()
ASYNC_SLOT_RENEWER: Final = AsyncSlotRenewer()


def renew_in_thread(held_slots: HeldSlots) -> Callable[[Any], None]:
    """Renew it until what is returned is called: a follower of the request that holds it."""
    SLOT_RENEWER.add(held_slots)
    return lambda _: SLOT_RENEWER.release(held_slots)


def renew_in_loop(held_slots: HeldSlots) -> Callable[[Any], None]:
    """The same in the running loop."""
    ASYNC_SLOT_RENEWER.add(held_slots)
    return lambda tracker: ASYNC_SLOT_RENEWER.release(held_slots, tracker.spawn)


async def _release_slots_async(held_slots: HeldSlots) -> None:
    try:
        await held_slots.store.asettle(held_slots.refunds())
    except Exception as error:  # noqa: BLE001  # nobody waits for it
        warn_throttled("slots", _STORE_FAILED, "given back", error)
    finally:
        if held_slots.on_released is not None:
            held_slots.on_released()
