"""Tests that several processes of a server with one Redis admit exactly as many requests as one process."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack

import httpx
import pytest

from redis_servers import RedisServer
from web.real_servers import APPS, one_of_each_process
from web_servers import WebServer, serve_granian, serve_gunicorn, serve_hypercorn, serve_uvicorn, serve_uwsgi

pytestmark = pytest.mark.promise(3)

Serve = Callable[..., AbstractContextManager[WebServer]]
QUOTA = 20
SERVERS: dict[str, tuple[Serve, str, tuple[str, ...]]] = {
    "uvicorn": (serve_uvicorn, "shared_asgi:app", ("--workers", "2")),
    "hypercorn": (serve_hypercorn, "shared_asgi:app", ("--workers", "2")),
    "granian": (serve_granian, "shared_asgi:app", ("--workers", "2")),
    "granian-wsgi": (serve_granian, "shared_wsgi:app", ("--workers", "2", "--interface", "wsgi")),
    "gunicorn-gthread": (serve_gunicorn, "shared_wsgi:app", ("-w", "2", "--worker-class", "gthread", "--threads", "2")),
}


@pytest.fixture(scope="module")
def redis(redis_servers: Mapping[str, RedisServer]) -> Iterator[RedisServer]:
    """A Redis server for this module."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running


@pytest.mark.parametrize("name", SERVERS)
def test_two_processes_share_one_limit(name: str, redis: RedisServer) -> None:
    serve, app, options = SERVERS[name]
    redis.flush()
    with ExitStack() as stack:
        server = stack.enter_context(serve(app, APPS, *options, env={"STORE": redis.url}))
        clients = one_of_each_process(server, stack, 2)
        with ThreadPoolExecutor(len(clients)) as threads:
            statuses = Counter(status for found in threads.map(burst, clients) for status in found)
    assert statuses == {200: QUOTA, 429: QUOTA}


@pytest.mark.parametrize(
    ("serve", "options"),
    [
        (serve_gunicorn, ("--preload", "-w", "3", "--worker-class", "gthread", "--threads", "2")),
        (serve_uwsgi, ("--workers", "3", "--threads", "2")),
    ],
    ids=["gunicorn", "uwsgi"],
)
def test_forked_processes_open_connections_of_their_own(
    serve: Serve, options: tuple[str, ...], redis: RedisServer
) -> None:
    redis.flush()
    ports: dict[int, set[int]] = {}
    with ExitStack() as stack:
        server = stack.enter_context(serve("preloaded_wsgi:app", APPS, *options, env={"STORE": redis.url}))
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=120))
        statuses = Counter(client.get("/", headers={"connection": "close"}).status_code for _ in range(2 * QUOTA))
        deadline = time.monotonic() + 20
        while len(ports) < 3:
            assert time.monotonic() < deadline, server.output()
            found = client.get("/process", headers={"connection": "close"}).json()
            ports[found["process"]] = set(found["ports"])
    assert statuses == {200: QUOTA, 429: QUOTA}
    before = found["before"]
    assert before["process"] not in ports
    assert len(before["ports"]) == 1
    assert len(set().union(before["ports"], *ports.values())) == 1 + sum(map(len, ports.values()))
    assert all(ports.values())


def burst(client: httpx.Client) -> list[int]:
    """Send as many requests as the quota, one after another on one connection, and return their statuses."""
    return [client.get("/").status_code for _ in range(QUOTA)]
