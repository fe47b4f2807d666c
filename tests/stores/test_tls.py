"""Over TLS: `rediss://`, through a proxy that has a certificate of its own, self-signed and good for nothing else."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from redis_servers import RedisServer

CERTIFICATE = Path(__file__).with_name("self_signed.pem")


async def _copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await source.read(65536):
            target.write(data)
    target.transport.abort()


@asynccontextmanager
async def behind_tls(port: int) -> AsyncIterator[tuple[str, asyncio.Server]]:
    """A URL that leads to this port of this machine."""

    open_ones: list[str] = []

    async def serve(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        open_ones.append("one")
        server, commands = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copied(client, commands), _copied(server, answers))
        open_ones.pop()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    listening = await asyncio.start_server(serve, "127.0.0.1", ssl=context)
    yield f"rediss://127.0.0.1:{listening.sockets[0].getsockname()[1]}/0?ssl_cert_reqs=none", listening
    listening.close()
    for _ in range(500):
        if not open_ones:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)  # what was aborted is closed in the next turn


def question(number: int) -> list[Charge]:
    """A charge whose decision shows which one it is for."""
    return [Charge(f"k{number}", FixedWindow(1000 + number, 3600))]


def test_tasks(redis_server: RedisServer) -> None:
    async def main() -> list[int]:
        async with behind_tls(redis_server.port) as (url, _):
            store = AsyncRedisStore(url, timeout=5)
            answers = await asyncio.gather(*(store.atake(question(number)) for number in range(100)))
            await store.aclose()
        return [decision.remaining for (decision,) in answers]

    assert asyncio.run(main()) == list(range(999, 1099))


def test_threads(redis_server: RedisServer) -> None:
    async def main() -> int:
        async with behind_tls(redis_server.port) as (url, _):
            store = RedisStore(url, timeout=5)
            (decision,) = await asyncio.to_thread(store.take, question(7))
            await asyncio.to_thread(store.close)
        return decision.remaining

    assert asyncio.run(main()) == 1006


@pytest.mark.promise(8)
def test_a_server_that_went_away(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with behind_tls(redis_server.port) as (url, listening):
            store = AsyncRedisStore(url, timeout=5)
            await store.atake(question(1))
            listening.close()
            redis_server.kill()
            with pytest.raises(StoreError):
                await store.atake(question(1))
            await store.aclose()

    asyncio.run(main())
