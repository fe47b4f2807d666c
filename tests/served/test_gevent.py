"""Tests gunicorn's gevent workers, which patch threads and sockets after `--preload` has imported the app."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from profiles import PROOF
from redis_servers import RedisServer
from web.real_servers import APPS
from web_servers import serve_gunicorn

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(8)]

QUOTA = 20  # the quota in tests/apps/shared_wsgi.py
CLIENTS = 10
PATIENT = 30  # seconds
GEVENT = ("--worker-class", "gevent", "--workers", "1")


@pytest.fixture(scope="module")
def redis(redis_servers: Mapping[str, RedisServer]) -> Iterator[RedisServer]:
    """A Redis server for this module."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("store", "preload"), [("memory", True), ("redis", True), *([("redis", False)] if PROOF else [])]
)
def test_gevent_workers_count_exactly_and_end_on_sigterm(redis: RedisServer, store: str, *, preload: bool) -> None:
    """Sends 60 requests, ten at a time; then SIGTERM, which the server passes on to its workers."""
    redis.flush()
    options = (*GEVENT, *(["--preload"] if preload else []))
    env = {"STORE": redis.url if store == "redis" else "memory://"}
    with serve_gunicorn("shared_wsgi:app", APPS, *options, env=env) as server:
        worker = int(httpx.get(f"{server.url}/process", timeout=PATIENT).text)

        def ask(_: int) -> int:
            return httpx.get(server.url, timeout=PATIENT).status_code

        with ThreadPoolExecutor(CLIENTS) as threads:
            statuses = Counter(threads.map(ask, range(3 * QUOTA)))
        assert statuses == {200: QUOTA, 429: 2 * QUOTA}, server.output()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENT) == 0
        until = time.monotonic() + PATIENT
        while alive(worker) and time.monotonic() < until:
            time.sleep(0.05)
        assert not alive(worker)
    assert "WORKER TIMEOUT" not in server.output()
