"""Slots on Redis: at most N requests are in progress, even if a process is killed; its slots become free in time.

A check that does not use slots confirms this: there are N files, and each request in progress locks one of them. The
system releases the locks of a killed process. So if all files are locked, N other requests are in progress.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from ratelimit_mw import Concurrency, Limiter
from ratelimit_mw.stores.redis import RedisStore
from redis_cluster import RedisCluster
from redis_servers import RedisServer

AT_WORK = 3
LIFETIME = 3.0  # seconds; a busy machine may delay a process by one second
LIMIT = Concurrency(AT_WORK, LIFETIME)
PATIENCE = 10.0  # seconds
PROCESSES = 8

WORKER = """
import fcntl, sys, time
from contextlib import suppress
from ratelimit_mw import Concurrency, Limiter, RateLimited
from ratelimit_mw.stores.redis import RedisStore

url, folder, most, lifetime, stays = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
files = [open(f"{folder}/{n}", "w") for n in range(most)]
limiter, limit = Limiter(RedisStore(url, timeout=10)), Concurrency(most, lifetime)
too_many = done = 0

def lock():
    for file in files:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file

print("ready", flush=True)
sys.stdin.readline()
until = time.monotonic() + 5
while stays == "stays" or time.monotonic() < until:
    try:
        with limiter.slot(limit, "everybody"):
            file = lock()
            if stays == "stays":
                print("at work", flush=True)
                time.sleep(60)
            time.sleep(0.001)
            too_many += file is None
            done += 1
            if file is not None:
                fcntl.flock(file, fcntl.LOCK_UN)
    except RateLimited:
        time.sleep(0.0005)
print(too_many, done)
"""


@pytest.fixture
def limiter(redis_url: str) -> Iterator[Limiter]:
    store = RedisStore(redis_url, timeout=PATIENCE)
    yield Limiter(store)
    store.close()


def worker(url: str, folder: Path, stays: str) -> subprocess.Popen[str]:
    arguments = [url, str(folder), str(AT_WORK), str(LIFETIME), stays]
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def left(limiter: Limiter) -> int:
    return limiter.peek(LIMIT, "everybody").remaining


def server_time(client: Redis) -> int:
    """Return the server's time in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


@pytest.mark.one_redis
@pytest.mark.promise(3)
def test_processes_never_exceed_the_slots_even_after_a_kill(
    limiter: Limiter, redis_url: str, client: Redis, tmp_path: Path
) -> None:
    victim, *others = workers = [worker(redis_url, tmp_path, "stays" if n == 0 else "goes") for n in range(PROCESSES)]
    assert [heard(one) for one in workers] == ["ready"] * PROCESSES
    go(victim)
    assert heard(victim) == "at work"
    (key,) = client.keys()
    name = client.zrange(key, 0, -1)[0]
    assert isinstance(name, bytes)
    first_end = client.zscore(key, name) or 0.0
    for one in others:
        go(one)
    while server_time(client) <= first_end:  # longer than a slot lasts without a renewal
        assert left(limiter) <= AT_WORK - 1
        time.sleep(0.02)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    killed = server_time(client)
    end = client.zscore(key, name)
    assert end is not None
    assert killed < end <= killed + LIFETIME * 1_000_000
    found = [one.communicate(timeout=60)[0].split() for one in others]
    assert [int(too_many) for too_many, _ in found] == [0] * len(others)
    assert all(int(done) > 0 for _, done in found)
    while server_time(client) < end:
        time.sleep(0.02)
    assert left(limiter) == AT_WORK


@pytest.mark.promise(6)
@pytest.mark.parametrize("forgets", ["flushall", "script_flush"])
def test_renewal_takes_lost_slots_again(forgets: str, limiter: Limiter, client: Redis) -> None:
    with limiter.slot(LIMIT, "everybody", 2):
        getattr(client, forgets)()
        end = time.monotonic() + PATIENCE
        while left(limiter) > AT_WORK - 2 and time.monotonic() < end:
            time.sleep(0.02)
        assert left(limiter) == AT_WORK - 2
    assert left(limiter) == AT_WORK


def test_cluster_takes_slots_on_several_nodes_all_or_none(redis_cluster: RedisCluster) -> None:
    store = RedisStore(redis_cluster.url, timeout=PATIENCE)
    limiter = Limiter(store)
    keys = [f"key {n}" for n in range(6)]
    one = Concurrency(1)
    with limiter.slot(one, keys[0]):
        for key in keys[1:]:
            charges = [limiter.peek(one, each, 1).charges[0] for each in (key, keys[0])]
            assert [decision.allowed for decision in store.take(charges)] == [True, False]
            assert limiter.peek(one, key).remaining == 1  # its slot was released
    with limiter.slot([one, Concurrency(2, name="two")], keys[0]):
        assert limiter.peek(one, keys[0]).remaining == 0
    assert limiter.peek(one, keys[0]).remaining == 1
    store.close()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(redis_server.url) as client:
        client.flushall()
        yield client
        client.flushall()
