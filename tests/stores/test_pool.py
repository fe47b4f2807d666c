"""The pool of connections by itself."""

import asyncio
import contextlib

import pytest

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.patience import Patience
from ratelimit_mw.stores.pool import AsyncPool, Pool


@pytest.mark.promise(8)
def test_a_connection_that_opens_though_the_pool_was_closed_is_ended() -> None:
    """As `asyncio.wait_for` may, what opens it loses the cancellation."""
    ended: list[str] = []

    async def main() -> None:
        opens = asyncio.Event()

        async def make(_: object) -> str:
            with contextlib.suppress(asyncio.CancelledError):
                await opens.wait()
            return f"connection {len(ended)}"

        async def end(connection: str) -> None:
            ended.append(connection)

        async def usable(_: str) -> bool:
            return True

        pool = AsyncPool(make, end, usable, 1)
        waiting = asyncio.create_task(pool.borrow())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await pool.close()
        opens.set()
        assert await asyncio.wait_for(waiting, 5) == "connection 1"  # another one: the pool can be used again
        assert ended == ["connection 0"]
        await pool.give_back("connection 1")
        await pool.close()

    asyncio.run(main())
    assert ended == ["connection 0", "connection 1"]


SILENT = pytest.mark.parametrize(
    ("error", "said"),
    [(TimeoutError(), "cannot connect: TimeoutError"), (OSError("no route"), "cannot connect: no route")],
)


@SILENT
def test_why_it_cannot_connect_is_said_where_the_error_says_nothing(error: Exception, said: str) -> None:
    def make(_: object) -> str:
        raise error

    pool = Pool(make, lambda _: None, lambda _: True, 1)
    with pytest.raises(StoreError) as raised:
        pool.borrow(Patience(5))
    assert str(raised.value) == said


@SILENT
def test_the_same_under_asyncio(error: Exception, said: str) -> None:
    async def make(_: object) -> str:
        raise error

    async def end(_: str) -> None:
        raise AssertionError

    async def usable(_: str) -> bool:
        raise AssertionError

    async def main() -> str:
        with pytest.raises(StoreError) as raised:
            await AsyncPool(make, end, usable, 1).borrow()
        return str(raised.value)

    assert asyncio.run(main()) == said
