"""Context managers that hold concurrency slots, and wrappers that allow only one entry."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Final, Generic, TypeVar

from ratelimit_mw.core.limit import Charge
from ratelimit_mw.core.verdict import RateLimited, Verdict, verdict_of
from ratelimit_mw.engine.acquire import cancel_safe
from ratelimit_mw.engine.slots import ASYNC_SLOT_RENEWER, SLOT_RENEWER, HeldSlots, slot_charges
from ratelimit_mw.stores import AsyncStore, Store

Block = TypeVar("Block")


class _SingleUse(Generic[Block]):
    """A context manager that can be entered once. `maker`: the method that returned it, for the error."""

    def __init__(self, block: Block, maker: str) -> None:
        self._block: Final = block
        self._maker: Final = maker
        self._entered = False

    def _enter(self) -> Block:
        if self._entered:
            raise RuntimeError(f"{self._maker}: this context manager was entered before; create one for each `with`")
        self._entered = True
        return self._block


class SingleUseContext(_SingleUse[AbstractContextManager[Verdict]], AbstractContextManager[Verdict]):
    """Raises `RuntimeError` on a second entry."""

    def __enter__(self) -> Verdict:
        return self._enter().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, where)


class AsyncSingleUseContext(_SingleUse[AbstractAsyncContextManager[Verdict]], AbstractAsyncContextManager[Verdict]):
    """The async version of `SingleUseContext`."""

    async def __aenter__(self) -> Verdict:
        return await self._enter().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, where)


@contextmanager
def slot(store: Store, charges: Sequence[Charge]) -> Iterator[Verdict]:
    """Take the charges and hold their slots until the block ends. Raises `RateLimited` if they are refused."""
    SLOT_RENEWER.renew_due()
    verdict = verdict_of(charges, store.take(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    slots = slot_charges(charges, verdict.decisions)
    if not slots:  # the cost is 0
        yield verdict
        return
    held_slots = HeldSlots(store, slots)
    SLOT_RENEWER.add(held_slots)
    try:
        if verdict.delay:
            time.sleep(verdict.delay)
        yield verdict
    finally:
        SLOT_RENEWER.release(held_slots)


@asynccontextmanager
async def async_slot(store: AsyncStore, charges: Sequence[Charge]) -> AsyncIterator[Verdict]:
    """The async version of `slot`."""
    verdict = verdict_of(charges, await cancel_safe(store, store.atake)(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    slots = slot_charges(charges, verdict.decisions)
    if not slots:
        yield verdict
        return
    held_slots = HeldSlots(store, slots)
    ASYNC_SLOT_RENEWER.add(held_slots)
    try:
        if verdict.delay:
            await asyncio.sleep(verdict.delay)
        yield verdict
    finally:
        await ASYNC_SLOT_RENEWER.release_and_wait(held_slots)
