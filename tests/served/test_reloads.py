"""Tests that each process of a server takes over changed settings, while it answers requests."""

import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import httpx
import pytest

from profiles import PROOF
from web.real_servers import APPS
from web_servers import WebServer, serve_gunicorn, serve_uvicorn

pytestmark = pytest.mark.promise(9)

RELOADS = 20
_PATIENCE = 300.0  # seconds
_PAUSE = 0.25  # seconds between changes
FIRST = 1_000_000  # the quota, which each change raises by one
HEALTH = ("--timeout-worker-healthcheck", "300")  # a busy machine must not look like a dead worker
THREADS = ("--worker-class", "gthread", "--threads", "2", "--workers", "2", "--timeout", "300")
SERVERS: dict[str, tuple[Callable[..., AbstractContextManager[WebServer]], str, tuple[str, ...], int]] = {
    "uvicorn": (serve_uvicorn, "reloaded:asgi", ("--factory", "--workers", "2", *HEALTH), 2),
    "gunicorn with Flask": (serve_gunicorn, "reloaded:flask()", THREADS, 2),
    "gunicorn with Django, which forks": (serve_gunicorn, "reloaded:django()", ("--preload", *THREADS), 2),
}


def write(file: Path, quota: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(f'limits = "{quota}/hour"\nreload = true\nrefresh = 0.1\n')
    new.rename(file)


class Load:
    """Requests of several threads, one after the other on new connections, so that they reach all processes."""

    def __init__(self, url: str, processes: int) -> None:
        self.quotas: dict[int, int] = {}  # of each process, in its latest response
        self.seen: set[int] = set()
        self.failures: list[str] = []
        self._url = url
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(2 * processes)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with httpx.Client(timeout=_PATIENCE, headers={"connection": "close"}) as client:
            while not self._ended.is_set():
                try:
                    answer = client.get(self._url)
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                    continue
                policy = re.fullmatch(r'"default";q=(\d+);w=3600', answer.headers.get("ratelimit-policy", ""))
                if answer.status_code != 200 or policy is None:
                    self.failures.append(f"{answer.status_code} {answer.headers} {answer.text:.500}")
                else:
                    self.quotas[int(answer.text)] = int(policy[1])
                    self.seen.add(int(policy[1]))

    def wait_for(self, quota: int, processes: int) -> bool:
        """Wait until all processes have answered with this quota, of those that answer from now on."""
        self.quotas.clear()
        end = time.monotonic() + _PATIENCE
        while len(self.quotas) < processes or set(self.quotas.values()) != {quota}:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True


@pytest.mark.parametrize("name", SERVERS if PROOF else ["uvicorn", "gunicorn with Django, which forks"])
def test_each_process_takes_over_changes_and_no_request_fails(name: str, tmp_path: Path) -> None:
    serve, app, options, processes = SERVERS[name]
    file = tmp_path / "limits.toml"
    write(file, FIRST)
    with serve(app, APPS, *options, env={"LIMITS": str(file)}) as server, Load(server.url, processes) as load:
        assert load.wait_for(FIRST, processes), (load.quotas, load.failures[:3], server.output())
        for number in range(1, RELOADS + 1):
            write(file, FIRST + number)
            time.sleep(_PAUSE)
        assert load.wait_for(FIRST + RELOADS, processes), (load.quotas, load.failures[:3], server.output())
        file.write_text("limits = [")
        end = time.monotonic() + _PATIENCE
        while server.output().count("not taken over") < processes:
            assert time.monotonic() < end, server.output()
            time.sleep(0.02)
    assert load.failures == []
    assert load.seen <= set(range(FIRST, FIRST + RELOADS + 1))
