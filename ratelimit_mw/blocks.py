"""Blocks by hand: those that hold slots while they run. A block is entered once; who wants another one asks for it."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Final, Generic, TypeVar

from ratelimit_mw.held import ASYNC_KEEPER, KEEPER
from ratelimit_mw.holds import Hold, slots_of
from ratelimit_mw.limit import Charge
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.verdict import RateLimited, Verdict, verdict_of
from ratelimit_mw.waiting import ataking

Block = TypeVar("Block")


class _Once(Generic[Block]):
    """`of`: what made the block, as errors call it."""

    def __init__(self, block: Block, of: str) -> None:
        self._block: Final = block
        self._of: Final = of
        self._entered = False

    def _enter(self) -> Block:
        if self._entered:
            raise RuntimeError(f"{self._of}: this block was entered before; each `with` needs one of its own")
        self._entered = True
        return self._block


class Once(_Once[AbstractContextManager[Verdict]], AbstractContextManager[Verdict]):
    """A block. Raises `RuntimeError` when it is entered again."""

    def __enter__(self) -> Verdict:
        return self._enter().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        return self._block.__exit__(kind, error, where)


class AsyncOnce(_Once[AbstractAsyncContextManager[Verdict]], AbstractAsyncContextManager[Verdict]):
    """The same for `async with`."""

    async def __aenter__(self) -> Verdict:
        return await self._enter().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool | None:
        return await self._block.__aexit__(kind, error, where)


@contextmanager
def slot(store: Store, charges: Sequence[Charge]) -> Iterator[Verdict]:
    """Take the charges, and hold the slots among them until the block ends. Raises `RateLimited`."""
    KEEPER.tend()
    verdict = verdict_of(charges, store.take(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    slots = slots_of(charges, verdict.decisions)
    if not slots:  # it costs nothing
        yield verdict
        return
    hold = Hold(store, slots)
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
    verdict = verdict_of(charges, await ataking(store, store.atake)(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    slots = slots_of(charges, verdict.decisions)
    if not slots:
        yield verdict
        return
    hold = Hold(store, slots)
    ASYNC_KEEPER.hold(hold)
    try:
        if verdict.delay:
            await asyncio.sleep(verdict.delay)
        yield verdict
    finally:
        await ASYNC_KEEPER.released(hold)
