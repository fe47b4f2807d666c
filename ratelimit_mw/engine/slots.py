"""Renews concurrency slots while a request is in progress and releases them afterwards.

Slots are referenced weakly. If their owner is garbage-collected without a release, they are no longer renewed and
expire with their lifetime. The same happens on a server when this process is killed.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final
from weakref import WeakSet, ref

from msgspec.structs import replace

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.memo import get_or_create
from ratelimit_mw.core.runtime import run, run_to_completion, spawn_task
from ratelimit_mw.stores.contract import declared
from ratelimit_mw.stores.group import committed, stored_bucket
from ratelimit_mw.stores.lifecycle import PerLoop, after_fork_in_child, fork_safe_lock

# Per lifetime. One renewal may fail. After two failures the slots expire, and the next renewal takes them again.
_RENEWALS: Final = 3
_MAX_CHARGES_PER_CALL: Final = 500  # per renewal, which must not occupy a server for long


class HeldSlots:
    """The slots that one request or block took from a store. `on_released`: called after their release."""

    __slots__ = (
        "__weakref__",
        "charges",
        "ended",
        "last_attempt_at",
        "on_released",
        "registry",
        "renewal_interval",
        "store",
    )
    registry: "SlotRegistry"  # set by the renewer

    def __init__(self, store: Any, charges: Sequence[Charge], on_released: Callable[[], object] | None = None) -> None:
        self.store: Final = store
        self.charges: Final = charges  # to settle them unchanged renews the slots
        self.on_released: Final = on_released
        self.renewal_interval: Final = min(charge.limit.window for charge in charges) / _RENEWALS  # seconds
        self.last_attempt_at = time.monotonic()  # when they were taken, or the latest renewal ended, even if it failed
        self.ended = False

    def refunds(self) -> list[Charge]:
        """Return the charges whose settlement releases the slots."""
        return [replace(charge, cost=-charge.cost) for charge in self.charges]


def slot_charges(charges: Sequence[Charge], decisions: Sequence[Decision]) -> list[Charge]:
    """Return the slots that a group took, one charge per bucket. Settling such a charge renews its slots."""
    if len(decisions) != len(charges):  # the store failed
        return []
    by_bucket: dict[tuple[str, str], Charge] = {}
    for charge, decision, was_charged in zip(charges, decisions, committed(charges, decisions), strict=True):
        if charge.limit.is_concurrency and charge.cost and was_charged:
            bucket = stored_bucket(charge)
            # The store merged charges of one bucket, so they have the same `at`, and `at`, `at + 1` and so on identify
            # their slots. One charge with their sum renews all.
            already = by_bucket[bucket].cost if bucket in by_bucket else 0
            by_bucket[bucket] = Charge(charge.key, charge.limit, charge.cost + already, at=decision.at)
    return list(by_bucket.values())


class SlotRegistry:
    """The slots that have to be renewed, and when. Does no I/O; thread-safe."""

    def __init__(self) -> None:
        self._active: WeakSet[HeldSlots] = WeakSet()
        # a heap of (due time, tie-breaker, slots); slots that have ended meanwhile are skipped
        self._due: list[tuple[float, int, ref[HeldSlots]]] = []
        self._sequence: Final = count()
        self._renewing: set[HeldSlots] = set()
        self._lock = fork_safe_lock()

    def add(self, held_slots: HeldSlots) -> None:
        """Renew these slots from now on."""
        with self._lock:
            self._active.add(held_slots)
            self._schedule(held_slots, held_slots.last_attempt_at)

    def end(self, held_slots: HeldSlots) -> bool:
        """Stop renewing these slots. Return whether the caller must release them.

        Returns False in two cases: the slots had ended before, or a renewal is in progress, after which the renewer
        releases them.
        """
        with self._lock:
            is_first, held_slots.ended = not held_slots.ended, True
            self._active.discard(held_slots)
            return is_first and held_slots not in self._renewing

    def due(self, now: float) -> list[list[HeldSlots]]:
        """Return the slots that are due for renewal, as one batch per store call. Call `finish` after each."""
        batches: dict[int, list[list[HeldSlots]]] = {}
        charges = Counter[int]()  # the number of charges in the last batch of each store
        with self._lock:
            while self._due and self._due[0][0] <= now:
                held_slots = heappop(self._due)[2]()
                if held_slots is None or held_slots.ended:
                    continue
                is_due = (
                    held_slots not in self._renewing and held_slots.last_attempt_at + held_slots.renewal_interval <= now
                )
                self._schedule(
                    held_slots,
                    now if is_due else max(held_slots.last_attempt_at, now - held_slots.renewal_interval / 2),
                )
                if not is_due:
                    continue
                store = id(held_slots.store)
                store_batches = batches.setdefault(store, [[]])
                if charges[store] >= _MAX_CHARGES_PER_CALL:
                    store_batches.append([])
                    charges[store] = 0
                store_batches[-1].append(held_slots)
                charges[store] += len(held_slots.charges)
                self._renewing.add(held_slots)
        return [batch for store_batches in batches.values() for batch in store_batches]

    def finish(self, batch: Sequence[HeldSlots], now: float) -> list[HeldSlots]:
        """Finish a renewal, even a failed one. Return the slots that ended meanwhile, which the caller must release."""
        with self._lock:
            self._renewing.difference_update(batch)
            for held_slots in batch:
                held_slots.last_attempt_at = now
            return [held_slots for held_slots in batch if held_slots.ended]

    def next_renewal(self, now: float) -> float | None:
        """Return the seconds until the next renewal; None if no slots are held."""
        with self._lock:
            while self._due and ((held_slots := self._due[0][2]()) is None or held_slots.ended):
                heappop(self._due)
            return max(0.0, self._due[0][0] - now) if self._due else None

    def _schedule(self, held_slots: HeldSlots, since: float) -> None:
        heappush(self._due, (since + held_slots.renewal_interval, next(self._sequence), ref(held_slots)))


_MIN_PAUSE: Final = 0.005  # seconds; so that the timer does not fire in every iteration of the loop
_NO_THREAD: Final = "no thread can be started, so each request that takes a slot renews those that are due: %s"
_NOT_RELEASED: Final = "slots may not have been released; then they are free when their lifetime ends: %s"
_NOT_RENEWED: Final = (
    "slots may not have been renewed, and more than the limit may be taken when their lifetime ends: %s"
)


Settle = Callable[[Any, Sequence[Charge]], Awaitable[object]]  # corrects charges in a store


async def _settle_in_thread(store: Any, charges: Sequence[Charge]) -> None:
    store.settle(charges)


async def _settle_in_loop(store: Any, charges: Sequence[Charge]) -> None:
    await store.asettle(charges)


async def _release(settle: Settle, held_slots: HeldSlots) -> None:
    try:
        await settle(held_slots.store, held_slots.refunds())
    except Exception as error:  # noqa: BLE001  # no caller waits for this call
        warn_throttled("slots", _NOT_RELEASED, error, code="RL-210")
    finally:
        if held_slots.on_released is not None:
            held_slots.on_released()


async def _renew(
    settle: Settle, registry: SlotRegistry, batch: Sequence[HeldSlots], release: Callable[[HeldSlots], object]
) -> None:
    """Renew the slots of a batch, and release those that ended meanwhile."""
    try:
        await settle(batch[0].store, [charge for held_slots in batch for charge in held_slots.charges])
    except Exception as error:  # noqa: BLE001  # no caller waits for this call
        warn_throttled("slots", _NOT_RENEWED, error, code="RL-210")
    finally:
        for held_slots in registry.finish(batch, time.monotonic()):
            release(held_slots)


def _release_now(held_slots: HeldSlots) -> None:
    run(_release(_settle_in_thread, held_slots))


class SlotRenewer:
    """Renews and releases slots in threads. Its own thread runs while slots are held, and a little longer."""

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
        """Created on first use: gevent workers patch `threading` after the app is loaded and forked."""
        return get_or_create(self, "wake", threading.Condition)

    def add(self, held_slots: HeldSlots) -> None:
        """Renew these slots from now on."""
        held_slots.registry = self._registry
        self._registry.add(held_slots)
        with self._wake:
            if not self._running:
                self._start()
            elif held_slots.last_attempt_at + held_slots.renewal_interval < self._next:
                self._wake.notify()

    def add_until_end(self, held_slots: HeldSlots) -> Callable[[Any], None]:
        """Renew these slots until a response ends. Return the `on_end` callback that releases them."""
        self.add(held_slots)
        return lambda _: self._release(held_slots)

    async def release(self, held_slots: HeldSlots) -> None:
        """Release these slots."""
        self._release(held_slots)

    def _release(self, held_slots: HeldSlots) -> None:
        if self._registry.end(held_slots):
            _release_now(held_slots)

    def renew_due(self) -> None:
        """Renew due slots here if no thread could be started. Called before slots are taken."""
        if self._running or self._registry.next_renewal(time.monotonic()) is None:
            return
        with self._wake:
            if not self._running:
                self._start()
        if not self._running:
            self._renew_all()

    def _start(self) -> None:
        """Start the thread. If the system refuses one, the next request tries again."""
        try:
            threading.Thread(target=self._run, name="ratelimit_mw slots", daemon=True).start()
        except RuntimeError as error:
            warn_throttled("slots thread", _NO_THREAD, error, code="RL-211")
        else:
            self._running = True

    def _run(self) -> None:
        while True:
            self._renew_all()
            with self._wake:
                pause = self._registry.next_renewal(time.monotonic())
                if pause is None:
                    self._running = False
                    return
                self._next = time.monotonic() + pause
                self._wake.wait(pause)

    def _renew_all(self) -> None:
        """Renew the slots that are due. A method of its own, so that the waiting thread has no reference to slots."""
        for batch in self._registry.due(time.monotonic()):
            run(_renew(_settle_in_thread, self._registry, batch, _release_now))


class _LoopRenewer:
    """Renews the slots of one event loop."""

    def __init__(self) -> None:
        self.registry = SlotRegistry()
        self._timer: asyncio.TimerHandle | None = None  # set while slots are held, and a little longer
        self._next = 0.0  # when the timer fires, in seconds of time.monotonic()

    def add(self, held_slots: HeldSlots) -> None:
        self.registry.add(held_slots)
        if self._timer is None or held_slots.last_attempt_at + held_slots.renewal_interval < self._next:
            self._schedule(held_slots.renewal_interval)

    def _renew_due(self) -> None:
        for batch in self.registry.due(time.monotonic()):
            spawn_task(_renew(_settle_in_loop, self.registry, batch, _release_in_task))
        self._timer = None
        pause = self.registry.next_renewal(time.monotonic())
        if pause is not None:
            self._schedule(max(pause, _MIN_PAUSE))

    def _schedule(self, pause: float) -> None:
        """Schedule the next renewal, in place of the one that is scheduled."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(pause, self._renew_due)
        self._next = time.monotonic() + pause


def _release_in_task(held_slots: HeldSlots) -> None:
    spawn_task(_release(_settle_in_loop, held_slots))


class AsyncSlotRenewer:
    """Renews and releases slots in event loops."""

    def __init__(self) -> None:
        self._loops = PerLoop(_LoopRenewer)

    def add(self, held_slots: HeldSlots) -> None:
        """Renew these slots from now on, in the running loop."""
        loop = self._loops.get()
        held_slots.registry = loop.registry
        loop.add(held_slots)

    def add_until_end(self, held_slots: HeldSlots) -> Callable[[Any], None]:
        """See `SlotRenewer`. If the response ends in another thread, its tracker releases the slots in the loop."""
        self.add(held_slots)

        def release_at_end(tracker: Any) -> None:
            if held_slots.registry.end(held_slots):
                if declared(held_slots.store).suspends:
                    tracker.spawn(lambda: _release(_settle_in_loop, held_slots))
                else:
                    _release_now(held_slots)  # does not block

        return release_at_end

    async def release(self, held_slots: HeldSlots) -> None:
        """Release these slots, and wait for that. The release continues if the caller is canceled."""
        if held_slots.registry.end(held_slots):
            await run_to_completion(_release(_settle_in_loop, held_slots))

    def renew_due(self) -> None:
        """Do nothing. A loop has a timer, which cannot fail to start like a thread."""


SLOT_RENEWER: Final = SlotRenewer()
ASYNC_SLOT_RENEWER: Final = AsyncSlotRenewer()
