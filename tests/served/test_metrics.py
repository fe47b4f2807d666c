"""One scrape has the counts of all workers, also of those that were killed, and each request once."""

import os
import signal
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import httpx
import pytest

from web.real_servers import APPS
from web_servers import WebServer, serve_gunicorn, serve_uvicorn

WORKERS = 3
PATIENCE = 60.0  # seconds
SERVERS = {
    "gunicorn": (serve_gunicorn, "counted_wsgi:app", ("-w", str(WORKERS), "--worker-class", "gthread")),
    "gunicorn preloaded": (
        serve_gunicorn,
        "counted_wsgi:app",
        ("-w", str(WORKERS), "--worker-class", "gthread", "--preload"),
    ),
    "uvicorn": (serve_uvicorn, "counted_asgi:app", ("--workers", str(WORKERS))),
}


@pytest.mark.parametrize("name", SERVERS)
def test_the_sums_are_what_clients_saw_though_workers_were_killed(name: str, tmp_path: Path) -> None:
    serve, app, options = SERVERS[name]
    folder = tmp_path / "ratelimit_mw"
    env = {"METRICS_FOLDER": str(folder), "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    seen: Counter[str] = Counter()
    with serve(app, APPS, *options, env=env) as server:
        workers = admitting(server, seen, WORKERS)
        assert counted(server) == seen
        for process in sorted(workers)[:2]:
            os.kill(process, signal.SIGKILL)
        for process in sorted(workers)[:2]:
            wait_for_end(process)
        workers |= admitting(server, seen, 2, workers)
        for _ in range(2):
            assert counted(server) == seen
    assert len(workers) == WORKERS + 2
    assert min(seen["admitted"], seen["refused"]) >= len(workers)
    assert [path.name for path in folder.glob("*.new")] == []


def admitting(server: WebServer, seen: Counter[str], many: int, before: Collection[int] = ()) -> set[int]:
    """Send requests until so many workers that were not there before have admitted one; and 20 more."""
    found: set[int] = set()
    more = 20
    deadline = time.monotonic() + PATIENCE
    while more:
        assert time.monotonic() < deadline, server.output()
        response = httpx.get(f"{server.url}/", timeout=PATIENCE)  # a connection of its own: any worker may accept it
        seen[{200: "admitted", 429: "refused"}[response.status_code]] += 1
        if response.status_code == 200:
            found |= {int(response.text)} - set(before)
        more -= len(found) >= many
    return found


def wait_for_end(process: int) -> None:
    """Return once a process is gone: one that is only being killed may still accept a connection."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"{process} has not ended")


def counted(server: WebServer) -> dict[str, int]:
    """Requests by outcome, as a scrape shows them."""
    text = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text
    found = Counter[str]()
    for line in text.splitlines():
        if line.startswith("ratelimit_requests_total{"):
            labels, _, value = line.rpartition(" ")
            found["admitted" if 'outcome="admitted"' in labels else "refused"] += int(float(value))
    return dict(found)
