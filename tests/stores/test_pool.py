"""The pool of connections by itself."""

import asyncio
import contextlib

import pytest

from ratelimit_mw.stores.pool import AsyncPool


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
