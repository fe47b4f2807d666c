"""The store does not mistake a stall of the event loop, while a connection opens, for a slow server."""

import asyncio
import socket

import pytest

from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores.redis import AsyncRedisStore, async_transport
from ratelimit_mw.stores.redis.deadline import CONNECT_TIMEOUT, timeout_without_stalls
from redis_cluster import RedisCluster
from redis_servers import RedisServer
from stores.stalls import STALL, run_stalled

pytestmark = [pytest.mark.promise(8), pytest.mark.one_redis]

CHARGES = [Charge("{k}:r", FixedWindow(10, 3600))]
TURNS = range(1, 30)  # of the event loop; connecting takes fewer


async def take(url: str) -> int:
    store = AsyncRedisStore(url, timeout=5)
    (decision,) = await store.atake(CHARGES)
    await store.areset(CHARGES)
    await store.aclose()
    return decision.remaining


def test_connection_to_a_server_opens_despite_a_stall(redis_server: RedisServer) -> None:
    assert STALL > CONNECT_TIMEOUT
    assert [run_stalled(take(redis_server.url), turn) for turn in TURNS] == [9] * len(TURNS)


def test_connection_to_a_cluster_node_opens_despite_a_stall(redis_cluster: RedisCluster) -> None:
    assert [run_stalled(take(redis_cluster.url), turn) for turn in TURNS] == [9] * len(TURNS)


def test_connecting_to_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "CONNECT_TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StoreError) as caught:
            asyncio.run(take(f"redis://{address}/0"))
    assert str(caught.value) == f"cannot connect: {address}: TimeoutError"


def test_timer_is_canceled_at_the_end_of_its_block() -> None:
    problems: list[object] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
        async with timeout_without_stalls(0.0):
            pass
        await asyncio.sleep(0.02)  # the timer would fire in this time

    asyncio.run(work())
    assert problems == []
