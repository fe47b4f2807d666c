"""Rows of the requests per second of four workers of a server with limits, in a file and with Redis."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from socket import create_server
from tempfile import TemporaryDirectory
from typing import Final

import ratelimit_mw
from benchmarks.lab import Lab, Missing, package
from benchmarks.line import Line
from benchmarks.ours.served import STORE, UPDATE
from benchmarks.runner import Batch, Contender, Row, turns
from benchmarks.served import bursts, microseconds, rate, wrk_program
from benchmarks.trees import ROOT
from benchmarks.web import IETF

_WORKERS: Final = 4
_ROUNDS: Final = 15  # at most, because a round lasts three seconds
_PATIENCE: Final = 30.0  # seconds until a server answers
_COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "gunicorn": (
        *(
            "gunicorn",
            "--worker-class",
            "gthread",
            "--threads",
            "4",
            "--workers",
            str(_WORKERS),
            "--log-level",
            "error",
        ),
        *("--keep-alive", "60", "--bind", "127.0.0.1:{port}", "benchmarks.ours.served:flask()"),
    ),
    "uvicorn": (
        *("uvicorn", "--workers", str(_WORKERS), "--log-level", "error", "--no-access-log", "--port", "{port}"),
        *("--factory", "benchmarks.ours.served:asgi"),
    ),
}


class Workers(AbstractContextManager["Workers", None]):
    """Four workers of a server on a free loopback port. The constructor returns once they answer."""

    def __init__(self, server: str, store: str) -> None:
        package(server)
        with create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        path = os.pathsep.join([str(Path(ratelimit_mw.__file__).parents[1]), str(ROOT)])
        command = [sys.executable, "-P", "-m", *(word.format(port=self.port) for word in _COMMANDS[server])]
        self._process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path, STORE: store})
        try:
            fields = self._fields()
            assert not store or fields >= IETF, f"{server}: the limit is not in its header fields"
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _fields(self) -> set[str]:
        """Wait for the first response, and return the names of its header fields."""
        until = time.monotonic() + _PATIENCE
        while True:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
            try:
                connection.request("GET", "/items/42")
                return {name.lower() for name, _ in connection.getresponse().getheaders()}
            except OSError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise
                time.sleep(0.05)
            finally:
                connection.close()


@dataclass(frozen=True, kw_only=True)
class ServedByWorkers:
    """Rows of the requests per second with a store in a file, and in Redis, over those without limits.

    `updates`: a row of an app that only updates a row of a file, too.
    """

    name: str
    server: str
    app: str
    target: float  # of the file
    redis_target: float | None = None
    updates: bool = False

    @property
    def what(self) -> str:
        """What is measured."""
        return f"requests/s of {self.app} under {self.server}, {_WORKERS} workers"

    def run(self, lab: Lab) -> Sequence[Line]:
        """Return a line for each store."""
        targets = {"file": self.target, "redis": self.redis_target} | ({"update": None} if self.updates else {})
        try:
            wrk_program()
            folder = lab.closing.enter_context(TemporaryDirectory())
            stores = {"bare": "", "file": f"sqlite://{folder}/limits.db", "redis": lab.redis_url()}
            if self.updates:
                stores["update"] = f"{UPDATE}{folder}/update.db"
            contenders: dict[str, Contender] = {
                name: bursts(lab.closing.enter_context(Workers(self.server, store))) for name, store in stores.items()
            }
        except Missing as reason:
            return [self._line(store, {}, target, f"skipped, {reason}") for store, target in targets.items()]
        batches = turns(lab, contenders, 0, min(lab.rounds, _ROUNDS))
        return [self._line(store, batches, target) for store, target in targets.items()]

    def _line(self, store: str, batches: Mapping[str, Sequence[Batch]], target: float | None, note: str = "") -> Line:
        ours, bare = (batches[store], batches["bare"]) if batches else ((), ())
        return Line(
            row=f"{self.name}-{store}",
            what=f"{self.what}: {store} / bare",
            values=tuple(rate(a) / rate(b) for a, b in zip(ours, bare, strict=True)),
            ours=microseconds(ours),
            peer=microseconds(bare),
            target=target,
            at_least=True,
            admitted=sum(batch.admitted for batch in ours),
            refused=sum(batch.refused for batch in ours),
            notes=(note,) if note else (),
            problems=tuple(f"{store}: {batch.refused} refused, not 0" for batch in ours if batch.refused),
        )


ROWS: Final[Sequence[Row]] = [
    ServedByWorkers(name="workers-flask", server="gunicorn", app="Flask", target=0.75, redis_target=0.75, updates=True),
    ServedByWorkers(name="workers-starlette", server="uvicorn", app="Starlette", target=0.55),
]
