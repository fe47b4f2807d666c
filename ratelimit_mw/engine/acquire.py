"""Waiting for one's turn: what is reserved, sleeping until it is due, and giving it back when nobody waits any more.

The turn is taken in one step of the store, which says how long it is until then. So whoever asked first is first, over
all threads, tasks and processes, and nothing has to be woken or asked again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, Decision, Limit, check_seconds
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import RateLimited, Verdict, refunds_for, verdict_of
from ratelimit_mw.engine.runtime import run_to_completion, spawn_task
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.memory import MemoryStore

ThreadSleep = Callable[[float], object]
Take = Callable[[Sequence[Charge]], Coroutine[Any, Any, Sequence[Decision]]]


class Sleep(Protocol):
    """Waits for so many seconds, or until `woken` is done if that is sooner; raises what ends the wait for good."""

    def __call__(self, seconds: float, woken: "asyncio.Future[None] | None" = None, /) -> Awaitable[object]:
        """See above."""


_NOT_REFUNDED: Final = "what was reserved for a wait that ended early is not known to be given back: %s"


def limits_to_wait_for(limits: Sequence[Limit], timeout: float | None) -> list[Limit]:
    """The same limits for whoever waits up to so many seconds; None is as long as it takes. Windows stay as they are.

    Raises `ConfigError` for what is no number of seconds, and for limits that hand out no turns.
    """
    if timeout is not None:
        check_seconds("timeout", timeout)
    if not any(limit.can_delay for limit in limits):
        notations = ", ".join(repr(limit.notation) for limit in limits)
        rates = [limit.notation.partition(" ")[0] for limit in limits if not limit.is_concurrency]
        fix = f"a bucket does, such as '{rates[0]} using gcra'" if rates else "slot() takes one that is free at once"
        raise ConfigError(f"limits: got {notations}, under which no request can wait for its turn; {fix}")
    return [_with_max_delay(limit, timeout) for limit in limits]


@lru_cache(maxsize=1024)
def _with_max_delay(limit: Limit, timeout: float | None) -> Limit:
    """Made once: it takes longer than to decide."""
    return limit.with_max_delay(timeout)


def acquire(store: Store, charges: Sequence[Charge], sleep: ThreadSleep) -> Verdict:
    """Take, and sleep until it is due. Raises `RateLimited`, at once, where that takes too long."""
    verdict = verdict_of(charges, store.take(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    if delay := verdict.delay:
        try:
            sleep(delay)
        except BaseException:  # Ctrl-C, and whatever else ends a thread's sleep
            refund(store, verdict)
            raise
    return verdict


async def acquire_async(store: AsyncStore, take: Take, charges: Sequence[Charge]) -> Verdict:
    """The same for asyncio. `take`: how the store is asked, see `cancel_safe`."""
    verdict = verdict_of(charges, await take(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    if delay := verdict.delay:
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            await run_to_completion(refund_async(store, verdict))
            raise
    return verdict


def cancel_safe(store: AsyncStore, atake: Take, on_refund: Callable[[Verdict], object] | None = None) -> Take:
    """The `atake` of a store, of which nothing stays taken when it is cancelled half-way.

    One in memory is never half-way. `on_refund`: called with the verdict whose charges were given back.
    """
    if type(store) is MemoryStore:
        return atake

    async def take(charges: Sequence[Charge]) -> Sequence[Decision]:
        task = asyncio.ensure_future(atake(charges))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            spawn_task(_refund_after_cancel(store, charges, task, on_refund))
            raise

    return take


async def _refund_after_cancel(
    store: AsyncStore,
    charges: Sequence[Charge],
    task: "asyncio.Task[Sequence[Decision]]",
    on_refund: Callable[[Verdict], object] | None,
) -> None:
    """Give back what a call takes of which nobody hears."""
    try:
        verdict = verdict_of(charges, await task)
    except Exception as error:  # noqa: BLE001  # nobody waits for it
        warn_throttled("store", _NOT_REFUNDED, error)
    else:
        if verdict.allowed:
            await refund_async(store, verdict)
            if on_refund is not None:
                on_refund(verdict)


def refund(store: Store, verdict: Verdict) -> None:
    """What was reserved and nobody waits for. Never raises for what the store does."""
    try:
        store.settle(refunds_for(verdict))
    except Exception as error:  # noqa: BLE001  # whoever waited has another error to hear of
        warn_throttled("store", _NOT_REFUNDED, error)


async def refund_async(store: AsyncStore, verdict: Verdict) -> None:
    """The same for asyncio."""
    try:
        await store.asettle(refunds_for(verdict))
    except Exception as error:  # noqa: BLE001  # whoever waited has another error to hear of
        warn_throttled("store", _NOT_REFUNDED, error)


async def async_sleep(seconds: float, woken: "asyncio.Future[None] | None" = None, /) -> None:
    """A `Sleep` of whoever has nothing else to wait for."""
    if woken is None:
        await asyncio.sleep(seconds)
    else:
        await asyncio.wait([woken], timeout=seconds)
