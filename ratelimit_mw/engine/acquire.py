"""Reserves units, sleeps until they are due, and refunds them if the wait ends early.

The store reserves the units in one step and returns the delay. So callers are served in order across all threads, tasks
and processes; no waiting caller has to be woken, or to query the store again.
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
TakeCall = Callable[[Sequence[Charge]], Coroutine[Any, Any, Sequence[Decision]]]


class Sleep(Protocol):
    """An async sleep that `woken` can end early. An exception that it raises ends the wait for good."""

    def __call__(self, seconds: float, woken: "asyncio.Future[None] | None" = None, /) -> Awaitable[object]:
        """Sleep for so many seconds, or until `woken` is done if that is sooner."""


_NOT_REFUNDED: Final = "a wait ended early, and the refund of its units may have failed: %s"


def with_timeout_as_max_delay(limits: Sequence[Limit], timeout: float | None) -> list[Limit]:
    """Return the limits with `timeout` seconds as their `max_delay`; None means no bound. Windows stay unchanged.

    Raises `ConfigError` if `timeout` is not a number of seconds, and if no limit can delay.
    """
    if timeout is not None:
        check_seconds("timeout", timeout)
    if not any(limit.can_delay for limit in limits):
        notations = ", ".join(repr(limit.notation) for limit in limits)
        rates = [limit.notation.partition(" ")[0] for limit in limits if not limit.is_concurrency]
        fix = f"use a bucket, such as '{rates[0]} using gcra'" if rates else "use slot(), which does not wait"
        raise ConfigError(f"limits: got {notations}, which cannot delay a request; {fix}")
    return [_with_max_delay(limit, timeout) for limit in limits]


@lru_cache(maxsize=1024)
def _with_max_delay(limit: Limit, timeout: float | None) -> Limit:
    """Cached, because building a limit takes longer than a decision."""
    return limit.with_max_delay(timeout)


def acquire(store: Store, charges: Sequence[Charge], sleep: ThreadSleep) -> Verdict:
    """Take the charges and sleep until they are due. Raises `RateLimited` at once if they are refused."""
    verdict = verdict_of(charges, store.take(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    if delay := verdict.delay:
        try:
            sleep(delay)
        except BaseException:  # KeyboardInterrupt too
            refund(store, verdict)
            raise
    return verdict


async def acquire_async(store: AsyncStore, take: TakeCall, charges: Sequence[Charge]) -> Verdict:
    """The async version of `acquire`. `take`: queries the store, see `cancel_safe`."""
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


def cancel_safe(store: AsyncStore, atake: TakeCall, on_refund: Callable[[Verdict], object] | None = None) -> TakeCall:
    """Return an `atake` whose charges are refunded if the caller is canceled during the call.

    The `atake` of a `MemoryStore` is returned unchanged, because it never suspends. `on_refund`: called with the
    verdict whose charges were refunded.
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
    """Refund what a store call takes after its caller was canceled."""
    try:
        verdict = verdict_of(charges, await task)
    except Exception as error:  # noqa: BLE001  # no caller waits for this task
        warn_throttled("store", _NOT_REFUNDED, error)
    else:
        if verdict.allowed:
            await refund_async(store, verdict)
            if on_refund is not None:
                on_refund(verdict)


def refund(store: Store, verdict: Verdict) -> None:
    """Refund an abandoned reservation. Logs errors of the store instead of raising them."""
    try:
        store.settle(refunds_for(verdict))
    except Exception as error:  # noqa: BLE001  # the caller raises the error that ended the wait
        warn_throttled("store", _NOT_REFUNDED, error)


async def refund_async(store: AsyncStore, verdict: Verdict) -> None:
    """The async version of `refund`."""
    try:
        await store.asettle(refunds_for(verdict))
    except Exception as error:  # noqa: BLE001  # the caller raises the error that ended the wait
        warn_throttled("store", _NOT_REFUNDED, error)


async def async_sleep(seconds: float, woken: "asyncio.Future[None] | None" = None, /) -> None:
    """The default `Sleep`: only `woken` ends it early."""
    if woken is None:
        await asyncio.sleep(seconds)
    else:
        await asyncio.wait([woken], timeout=seconds)
