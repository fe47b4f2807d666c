"""Tests that one scrape has the counts of all workers, including killed ones, and counts each request once.

This is checked after each row of the table of scenarios, with ASGI and WSGI.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from profiles import PROOF
from served.test_scenarios_served import Stand, asked, played
from test_docs import ROOT, blocks
from web.real_servers import APPS, KINDS
from web.scenario import Answer, Step
from web.table import ALL_ROWS, REFUSED
from web_servers import WebServer, serve_gunicorn, serve_uvicorn, serve_uwsgi, serve_waitress

Serve = Callable[[str, Path], AbstractContextManager[WebServer]]

WORKERS = 3
PATIENCE = 60.0  # seconds
SERVERS: dict[str, tuple[Callable[..., AbstractContextManager[WebServer]], str, tuple[str, ...]]] = {
    "gunicorn": (serve_gunicorn, "counted_wsgi:app", ("-w", str(WORKERS), "--worker-class", "gthread")),
    "gunicorn preloaded": (
        serve_gunicorn,
        "counted_wsgi:app",
        ("-w", str(WORKERS), "--worker-class", "gthread", "--preload"),
    ),
    "uvicorn": (serve_uvicorn, "counted_asgi:app", ("--workers", str(WORKERS))),
    "uwsgi": (serve_uwsgi, "counted_wsgi:app", ("--workers", str(WORKERS))),
}
if sys.version_info < (3, 13):  # from 3.13 on, uWSGI's workers end with a fatal error of Python, before any import
    SERVERS["uwsgi with Python's hooks"] = (
        serve_uwsgi,
        "counted_wsgi:app",
        ("--workers", str(WORKERS), "--threads", "2", "--py-call-osafterfork"),
    )
if not PROOF:
    SERVERS = {name: SERVERS[name] for name in ("gunicorn preloaded", "uvicorn")}
# tests/web/test_scenarios.py counts every scenario in every integration
STANDS = (Stand("uvicorn", "asgi"), *([Stand("gunicorn-gthread", "wsgi")] if PROOF else []))


@pytest.mark.parametrize("name", SERVERS)
def test_scrape_counts_each_request_once_despite_killed_workers(name: str, tmp_path: Path) -> None:
    serve, app, options = SERVERS[name]
    folder = tmp_path / "ratelimit_mw"
    env = {"METRICS_FOLDER": str(folder), "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    seen: Counter[str] = Counter()
    with serve(app, APPS, *options, env=env) as server:
        workers = admitting(server, seen, WORKERS)
        assert counted(server) == seen
        owners = {int(path.name.partition("-")[0]) for path in folder.glob("*.counts")}
        assert workers <= owners  # each has a file of its own
        kill(sorted(workers)[:2])
        workers |= admitting(server, seen, 2, workers)
        for _ in range(2):
            assert counted(server) == seen
    assert len(workers) == WORKERS + 2
    assert min(seen["admitted"], seen["refused"]) >= len(workers)
    assert [path.name for path in folder.glob("*.new")] == []


@pytest.mark.parametrize(("serve", "recipes"), [(serve_uvicorn, 1), (serve_waitress, 2)])
def test_recipe_of_the_docs_shows_all_counts_to_a_prometheus_that_scrapes_more_than_the_limit(
    serve: Serve, recipes: int, tmp_path: Path
) -> None:
    """The second recipe continues the first one."""
    python = [block.text for block in blocks(ROOT / "docs/how-to/metrics.md") if block.language == "python"]
    tmp_path.joinpath("recipe.py").write_text("\n".join(python[:recipes]), "utf-8")
    with (
        serve("recipe:app", tmp_path) as server,
        httpx.Client(base_url=server.url, follow_redirects=True) as client,  # Prometheus follows them, too
    ):
        assert Counter(client.get("/none").status_code for _ in range(103)) == {404: 100, 429: 3}
        scrapes = [client.get("/metrics") for _ in range(102)]
    assert {scrape.status_code for scrape in scrapes} == {200}
    lines = scrapes[-1].text.splitlines()
    assert 'ratelimit_requests_total{outcome="admitted",rule="default",source="store"} 100.0' in lines
    assert len([line for line in lines if line.startswith("ratelimit_requests_total{")]) >= 2


@pytest.mark.parametrize("stand", STANDS, ids=str)
def test_scrape_counts_each_request_once_in_each_scenario(stand: Stand, tmp_path: Path) -> None:
    """Each worker has its own store. So the outcome of a step depends on the worker, but every outcome is counted."""
    kind, scenarios = KINDS[stand.kind], [row.values[0] for row in ALL_ROWS]
    env = {"FACE": stand.face, "STORE": "memory://", "PYTHONPATH": str(APPS.parent), "METRICS_FOLDER": str(tmp_path)}
    app, options = f"scenarios_app:{kind.interface}", (*kind.options, "--workers", str(WORKERS))
    seen: Counter[str] = Counter()
    workers: set[int] = set()
    killed: list[int] = []
    with kind.serve(app, APPS, *options, env=env) as server:

        def play(number: int, at: int) -> None:
            step = scenarios[number].steps[at]
            answer = played(stand, server, step, f"{number} {at}")
            workers.update(map(int, answer.field("x-worker")))
            seen.update(outcomes(step, answer))

        for number, scenario in [*enumerate(scenarios)][::4]:
            for at in range(len(scenario.steps)):
                play(number, at)
            if number % 16 == 0:
                assert counts_of(metrics(server)) == seen, scenario.name
            if not killed and number >= len(scenarios) // 3 and len(workers) == WORKERS:
                killed = sorted(workers)[:2]
                kill(killed)
        deadline = time.monotonic() + PATIENCE
        while len(workers) < WORKERS + 2:  # until the new workers have responded, too
            assert time.monotonic() < deadline, server.output()
            play(0, 0)
        assert counts_of(metrics(server)) == seen
    assert len(killed) == 2
    assert min(seen["admitted"], seen["refused"]) >= 20


def outcomes(step: Step, answer: Answer) -> list[str]:
    """Return the outcome that a client saw of a request that matched a rule; nothing for other requests."""
    if step.usage is not None:
        return []
    if answer.status in REFUSED:
        return ["refused"]
    return ["admitted"] if step.source or step.status in REFUSED else []


def metrics(server: WebServer) -> str:
    return asked(server, "GET", "/", [("X-Step", "metrics")]).body.decode()


def admitting(server: WebServer, seen: Counter[str], many: int, before: Collection[int] = ()) -> set[int]:
    """Send requests until `many` workers that are not in `before` have admitted one; then 20 more.

    Returns the process ids of these workers.
    """
    found: set[int] = set()
    more = 20
    deadline = time.monotonic() + PATIENCE
    while more:
        assert time.monotonic() < deadline, server.output()
        response = httpx.get(f"{server.url}/", timeout=PATIENCE)  # a new connection, which any worker may accept
        seen[{200: "admitted", 429: "refused"}[response.status_code]] += 1
        if response.status_code == 200:
            found |= {int(response.text)} - set(before)
        more -= len(found) >= many
    return found


def kill(processes: Sequence[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)
    for process in processes:
        wait_for_end(process)


def wait_for_end(process: int) -> None:
    """Wait until a process has ended. Until then, a killed process may still accept a connection."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"{process} has not ended")


def counted(server: WebServer) -> dict[str, int]:
    """Return the number of requests by outcome, as a scrape shows them."""
    return counts_of(httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text)


def counts_of(text: str) -> dict[str, int]:
    found = Counter[str]()
    for line in text.splitlines():
        if line.startswith("ratelimit_requests_total{"):
            labels, _, value = line.rpartition(" ")
            found["admitted" if 'outcome="admitted"' in labels else "refused"] += int(float(value))
    return dict(found)
