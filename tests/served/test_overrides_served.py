"""Tests that overrides and switches, set by commands, act in each process of a server under load.

A process looks for them `refresh` seconds after the look before, when a request comes. So the tests count rounds of
requests to each process from that time on, instead of seconds, in which a busy machine may get nothing done.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

import httpx
import pytest
from redis import Redis

from profiles import PROOF
from redis_servers import RedisServer
from web.real_servers import APPS, one_of_each_process
from web_servers import WebServer, serve_gunicorn, serve_uvicorn

pytestmark = pytest.mark.promise(9)

REFRESH = 0.5  # seconds
_PATIENCE = 300.0  # seconds
_IN_ONE_LOOK = 4  # rounds in which a process may look: two calls to the store
_BEHIND_IT = 10
BOB, OTHER = "192.0.2.7", "192.0.2.8"
WORKERS = ("--workers", "2", "--timeout-worker-healthcheck", "300", "--timeout-keep-alive", "300")
THREADS = ("--worker-class", "gthread", "--threads", "4", "--workers", "2", "--timeout", "300", "--keep-alive", "300")
Answer = tuple[str, int]  # client, status
SERVERS: dict[str, tuple[Callable[..., AbstractContextManager[WebServer]], str, tuple[str, ...], int]] = {
    "uvicorn": (serve_uvicorn, "reloaded:asgi", ("--factory", *WORKERS), 2),
    "gunicorn with Flask": (serve_gunicorn, "reloaded:flask()", THREADS, 2),
    "gunicorn with Django, which forks": (serve_gunicorn, "reloaded:django()", ("--preload", *THREADS), 2),
}


@pytest.fixture(scope="module")
def redis(redis_servers: Mapping[str, RedisServer]) -> Iterator[RedisServer]:
    """A Redis server for this module."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running


class Asker:
    """Rounds of requests on the connection to one process: one of each of two clients.

    A call to the store ends each round, so that a store on a busy machine does not look like a slow process.
    """

    def __init__(self, connection: httpx.Client, store: Redis) -> None:
        self.rounds: list[tuple[float, set[Answer]]] = []  # when it began
        self.failures: list[str] = []
        self._connection, self._store = connection, store
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self.rounds.append((began, {(client, self._get(client)) for client in (BOB, OTHER)}))
            except httpx.HTTPError as error:
                self.failures.append(repr(error))
            self._store.ping()
            time.sleep(0.01)  # load, but not all that the machine has

    def _get(self, client: str) -> int:
        return self._connection.get("/", headers={"x-forwarded-for": client}).status_code

    def answers_after(self, change: float) -> list[set[Answer]]:
        """Return what differs among the answers of rounds behind the first look after a change."""
        end = time.monotonic() + _PATIENCE
        while True:
            later = [answers for began, answers in [*self.rounds] if began >= change + REFRESH]
            if len(later) >= _IN_ONE_LOOK + _BEHIND_IT:
                found = later[_IN_ONE_LOOK:]
                return [answers for number, answers in enumerate(found) if answers not in found[:number]]
            assert time.monotonic() < end, (self.failures, self.rounds[-5:])
            time.sleep(0.02)


BOTH_REFUSED = {(BOB, 429), (OTHER, 429)}
BOTH_ADMITTED = {(BOB, 200), (OTHER, 200)}
STEPS = [
    (["switch", "off"], BOTH_ADMITTED),
    (["switch", "on"], BOTH_REFUSED),
    (["override", "set", "--ip", BOB, "--exempt"], {(BOB, 200), (OTHER, 429)}),
    (["override", "clear", "--all", "--yes"], BOTH_REFUSED),
]


@pytest.mark.parametrize("name", SERVERS if PROOF else ["uvicorn", "gunicorn with Django, which forks"])
def test_changes_act_in_all_processes_after_one_look_and_no_request_fails(
    name: str, redis: RedisServer, tmp_path: Path
) -> None:
    serve, app, options, processes = SERVERS[name]
    redis.flush()
    file = tmp_path / "limits.toml"
    file.write_text(
        f'limits = "5/hour"\nstore = "{redis.url}"\nstore_timeout = 10\nrefresh = {REFRESH}\n'
        'exempt = ["/process"]\ntrusted_proxies = ["127.0.0.1"]\n'
    )

    def run(command: str, *words: str) -> float:
        """Run a command of the package. Return a time when its change was in the store."""
        verbs, rest = ([command, words[0]], words[1:]) if command == "override" else ([command], words)
        subprocess.run([sys.executable, "-m", "ratelimit_mw", *verbs, str(file), *rest], check=True, cwd=tmp_path)
        return time.monotonic()

    with ExitStack() as stack:
        server = stack.enter_context(serve(app, APPS, *options, env={"LIMITS": str(file)}))
        connections = one_of_each_process(server, stack, processes)
        store = stack.enter_context(Redis.from_url(redis.url, socket_timeout=_PATIENCE))
        askers = [stack.enter_context(Asker(connection, store)) for connection in connections]
        change = time.monotonic()
        for words, expected in [([], BOTH_REFUSED), *STEPS]:
            change = run(*words) if words else change
            seen = [asker.answers_after(change) for asker in askers]
            assert seen == [[expected]] * processes, (words, server.output())
    assert [asker.failures for asker in askers] == [[]] * processes
    answers = set().union(*(answers for asker in askers for _, answers in asker.rounds))
    assert answers == BOTH_REFUSED | BOTH_ADMITTED
