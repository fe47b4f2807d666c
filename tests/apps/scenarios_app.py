"""Serves the table of scenarios on a real server, with an app per scenario, made when its first step is requested.

`X-Step` of a request specifies the scenario and the step, and the parts of the step that could not be sent. These
parts, and values that no client on loopback can send, are put into the scope or environ before the middleware.

With METRICS_FOLDER, requests are counted there, and several workers run a scenario together, each with its own store.
`X-Step: metrics` returns the counts of all workers, and `X-Worker` is the process that answers.
"""

import asyncio
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest

from ratelimit_mw.metrics import PrometheusCollector
from ratelimit_mw.testing import Clock
from web.faces import ASGI, WSGI, asgi_parts, wsgi_parts
from web.scenario import Scenario, Step
from web.scenarios import SCENARIOS
from web.scenarios_settlements import AFTER
from web.table import LONG, RecordingAsyncRedis, RecordingRedis, TableStore, begin, tell_time

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from starlette.types import Message, Receive, Scope, Send

ROWS = (*SCENARIOS, *AFTER)
TRIES = 500  # waits of 0.01 seconds for work after a response
FACE, URL = os.environ["FACE"], os.environ["STORE"]
FOLDER = os.environ.get("METRICS_FOLDER")
COUNTED = {"metrics": True, "metrics_folder": FOLDER} if FOLDER else {}
METRICS = "metrics"
clock = Clock()
memory = tell_time(clock)


class Table:
    """The scenario that runs now."""

    app: Any
    store: TableStore
    row: Scenario | None = None
    due = 0  # settlements after the last step

    def __init__(self) -> None:
        self._make = {**ASGI, **WSGI}[FACE]
        if URL != "memory://":
            self.store = RecordingAsyncRedis(URL, clock) if FACE in ASGI else RecordingRedis(URL, clock)

    def turn(self, told: str) -> tuple[Step, list[str]]:
        """Return the step that `told`, `SCENARIO STEP [PART ...]`, specifies, and the parts that were not sent."""
        scenario, number, *unsent = told.split()
        row = ROWS[int(scenario)]
        if number == "0" or row is not self.row:  # another worker may have had its first step
            self.row = row
            clock.now = Clock().now
            if URL == "memory://":
                self.store = memory()
            settings = {"store": self.store, "store_timeout": LONG, **COUNTED, **row.settings}
            self.app = self._make(settings)
        step = row.steps[int(number)]
        self.due = 0 if COUNTED else step.settled  # a worker that skipped the earlier steps may have nothing to settle
        begin(self.store, clock, step)
        return step, unsent

    @property
    def settled(self) -> int:
        """The number of settlements that the last step has sent after its response."""
        return [verb for verb, _ in self.store.calls].count("settle") if self.due else 0


table = Table()
one_by_one = asyncio.Lock()  # a client may receive the response before the app's call ends


async def asgi(scope: "Scope", receive: "Receive", send: "Send") -> None:
    """The app for ASGI servers."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    headers = [(name.lower(), value) for name, value in scope["headers"]]

    async def counted(message: "Message") -> None:
        if message["type"] == "http.response.start":
            own = [(name.lower().encode(), value.encode()) for name, value in outside(before)]
            message = {**message, "headers": [*message["headers"], *own]}
        await send(message)

    async with one_by_one:
        for _ in range(TRIES if table.settled < table.due else 0):
            if table.settled >= table.due:
                break
            await asyncio.sleep(0.01)
        before = table.settled
        told = dict(headers)[b"x-step"].decode()
        if told == METRICS:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": counts()})
            return
        step, unsent = table.turn(told)
        own = asgi_parts(step, step.path if "path" in unsent else scope["path"])
        own["headers"] = [line for line in headers if line[0] != b"x-step"]
        if "headers" in unsent:
            own["headers"] += [(name.lower().encode(), value.encode("latin-1")) for name, value in step.all_headers]
        await table.app({**scope, **own}, receive, counted)


def wsgi(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    """The app for WSGI servers."""

    def counted(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        return start_response(status, [*headers, *outside(before)], exc_info)

    for _ in range(TRIES if table.settled < table.due else 0):
        if table.settled >= table.due:
            break
        time.sleep(0.01)
    before = table.settled
    told = environ.pop("HTTP_X_STEP")
    if told == METRICS:
        start_response("200 OK", [])
        return [counts()]
    step, unsent = table.turn(told)
    environ.update(wsgi_parts(step))
    if "path" in unsent:
        environ["PATH_INFO"] = step.path.encode().decode("latin-1")
    if "headers" in unsent:
        lines: dict[str, list[str]] = {}
        for name, value in step.all_headers:
            lines.setdefault(f"HTTP_{name.upper().replace('-', '_')}", []).append(value)
        environ.update({name: ",".join(values) for name, values in lines.items()})
    answer: Iterable[bytes] = table.app(environ, counted)
    return answer


def outside(settled: int) -> list[tuple[str, str]]:
    """Return response headers about the step, to be added outside of the middleware."""
    asked = ",".join(verb for verb, _ in table.store.calls if verb != "peek")
    worker = [("X-Worker", str(os.getpid()))] if COUNTED else []
    return [("X-Asked", asked), ("X-Settled", str(settled)), *worker]


def counts() -> bytes:
    """Return the counts of all workers."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(FOLDER))  # also in a worker that has no app yet
    return generate_latest(registry)
