"""Error replies of a server that rejects writes, and whether the store keeps its connection."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from ratelimit_mw import Charge, Concurrency, Limit, StoreError, TokenBucket, parse
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing.blocking import blocking
from redis_servers import RedisServer

CHARGES = [Charge("key", TokenBucket(9, 60))]


@contextmanager
def store_of(url: str, *, awaited: bool) -> Iterator[Store]:
    if awaited:
        with blocking(AsyncRedisStore(url, timeout=5)) as store:
            yield store
    else:
        with closing(RedisStore(url, timeout=5)) as plain:
            yield plain


def speakers(server: RedisServer) -> set[str]:
    """Return the ids of the connections whose last command ran a script."""
    return set(re.findall(r"\bid=(\d+) .*cmd=evalsha", server.ask("CLIENT LIST")))


@pytest.mark.promise(8)
@pytest.mark.parametrize("awaited", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize(
    ("refuse", "permit", "kept"),
    [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", False),  # READONLY: the address may lead to another server by now
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", True),  # OOM: the connection still works
    ],
    ids=["READONLY", "OOM"],
)
def test_calls_fail_while_the_server_rejects_writes(
    redis_server: RedisServer, refuse: str, permit: str, kept: bool, awaited: bool
) -> None:
    with RedisServer(redis_server.binary) as server, store_of(server.url, awaited=awaited) as store:
        assert store.take(CHARGES)[0].remaining == 8
        before = speakers(server)
        assert len(before) == 1
        server.ask(refuse)
        with pytest.raises(StoreError):
            store.take(CHARGES)
        server.ask(permit)
        assert store.take(CHARGES)[0].remaining == 7
        assert (speakers(server) == before) is kept


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    "limit",
    [*(parse(f"9/minute using {name}")[0] for name in ALGORITHMS), Concurrency(9)],
    ids=lambda limit: limit.algorithm,
)
def test_full_server_stores_no_new_key(redis_server: RedisServer, limit: Limit) -> None:
    """Redis refuses only the first write of a script: a flood of new keys would grow far beyond `maxmemory`."""
    with RedisServer(redis_server.binary) as server, store_of(server.url, awaited=False) as store:
        store.take([Charge("old", limit)])
        server.ask("CONFIG SET maxmemory 1")
        with pytest.raises(StoreError):
            store.take([Charge("new", limit)])
        assert server.ask("DBSIZE") == ":1"
