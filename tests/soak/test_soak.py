"""Checks that memory, sockets and keys do not grow under load over Redis.

`tox -e soak` runs for 10 minutes, `SOAK_MINUTES=1 tox -e soak` for one. Half of the load comes from new clients. Sizes
are read from /proc, so this needs Linux.
"""

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from redis_servers import RedisServer
from soak.load import CONNECTIONS, Load
from web_servers import WebServer, serve_uvicorn

APPS = Path(__file__).resolve().parent.parent / "apps"
SECONDS = 60 * float(os.environ.get("SOAK_MINUTES", "10"))
EVERY = 2.0  # seconds between samples
LIMITS = 3  # buckets of one client
LIVES = 15  # seconds until a key has expired
POOL = 32  # connections to Redis at most
GROWTH = 1.03, 1024  # factor, and kB added, by which memory may grow in the later half: an allocator is not exact


class Sample(NamedTuple):
    """The sizes of the server at one moment."""

    memory: int  # resident, kB
    sockets: int
    keys: int
    clients: int  # that sent requests within the lifetime of a key


@pytest.fixture
def redis(redis_servers: Mapping[str, RedisServer]) -> Iterator[RedisServer]:
    """Run a Redis server for this test alone."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running


@pytest.fixture
def server(redis: RedisServer) -> Iterator[WebServer]:
    with serve_uvicorn("soaked_asgi:app", APPS, "--no-access-log", env={"STORE": redis.url}) as running:
        yield running


def memory_of(server: WebServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text("utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def sockets_of(server: WebServer) -> int:
    found = 0
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            found += str(descriptor.readlink()).startswith("socket:")
        except FileNotFoundError:  # closed after it was listed
            continue
    return found


def keys_of(redis: RedisServer) -> int:
    return int(redis.ask("DBSIZE", timeout=5.0).removeprefix(":"))


def without_end(redis: RedisServer) -> int:
    """Return the number of keys that never expire, from `db0:keys=9,expires=9,...`."""
    found = redis.ask("INFO keyspace", timeout=5.0)
    if "db0:" not in found:
        return 0
    counts = dict(pair.split("=") for pair in found.partition("db0:")[2].split("\r")[0].split(","))
    return int(counts["keys"]) - int(counts["expires"])


def test_memory_sockets_and_keys_do_not_grow_under_load(server: WebServer, redis: RedisServer) -> None:
    at_rest = sockets_of(server)
    samples: list[Sample] = []
    end = time.monotonic() + SECONDS
    with Load(int(server.url.rpartition(":")[2])) as load:
        while time.monotonic() < end and not load.errors:
            time.sleep(EVERY)
            keys = keys_of(redis)
            samples.append(Sample(memory_of(server), sockets_of(server), keys, load.clients_since(LIVES)))
            assert without_end(redis) == 0
    report = f"{load.statuses.total()} requests, {dict(load.statuses)}; first {samples[0]}, last {samples[-1]}"
    print(report)  # noqa: T201  # pytest -s shows the report
    assert load.errors == []
    assert set(load.statuses) == {200, 429}, report
    assert all(sample.keys <= LIMITS * sample.clients for sample in samples), report
    assert all(at_rest < sample.sockets <= at_rest + CONNECTIONS + POOL for sample in samples), report
    assert_flat(samples, report)
    time.sleep(LIVES)
    assert keys_of(redis) == 0
    assert sockets_of(server) <= at_rest + POOL
    assert "Traceback" not in server.output()


def assert_flat(samples: list[Sample], report: str) -> None:
    """Check that the later half uses no more than the earlier one, without the first third, in which caches fill."""
    settled = samples[len(samples) // 3 :]
    half = len(settled) // 2
    early, late = (median(sample.memory for sample in part) for part in (settled[:half], settled[half:]))
    assert late <= early * GROWTH[0] + GROWTH[1], (early, late, report)
    early, late = (median(sample.sockets for sample in part) for part in (settled[:half], settled[half:]))
    assert late <= early + 2, (early, late, report)
