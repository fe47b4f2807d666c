"""Serves apps with a real server, and sends bursts of requests with wrk."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final, Protocol

import ratelimit_mw
from benchmarks.lab import Lab, Missing, package
from benchmarks.runner import Batch, Contender
from benchmarks.trees import ROOT
from benchmarks.web import Answer

_CONNECTIONS: Final = 32
_PATH: Final = "/items/42"
_REPORT: Final = Path(__file__).with_name("wrk_report.lua")
_SECONDS: Final = 1  # of a burst; wrk's minimum


class Server(AbstractContextManager["Server", None]):
    """One worker of uvicorn on a free loopback port, with the app that `made_by` makes from `arguments`.

    `folder`: it imports ratelimit_mw from there; None means the same package as this program. The constructor returns
    once it listens. Raises `Missing` without uvicorn, and RuntimeError if it does not start.
    """

    def __init__(self, made_by: str, *arguments: object, folder: Path | None = None) -> None:
        package("uvicorn")
        path = os.pathsep.join([str(folder or Path(ratelimit_mw.__file__).parents[1]), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.serve", made_by, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.__exit__()
            raise RuntimeError(f"{made_by}: its server ended, with code {self._process.returncode}")
        self.port: int = json.loads(line)["port"]
        self.pid = self._process.pid

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=10)  # it ends at the end of its input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def ask(server: Server) -> Answer:
    """Send one request."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", _PATH)
        response = connection.getresponse()
        response.read()
        return Answer(response.status, {name.lower() for name, _ in response.getheaders()})
    finally:
        connection.close()


def wrk_program() -> str:
    """Return the path of wrk, which sends the requests. Raises `Missing`."""
    wrk = shutil.which("wrk")
    if wrk is None:
        raise Missing("wrk: not on PATH (apt-get install wrk, or brew install wrk)")
    return wrk


class Listening(Protocol):
    """A server that listens on a loopback port."""

    @property
    def port(self) -> int:
        """Its port."""


def bursts(server: Listening, path: str = _PATH, fields: Sequence[str] = ()) -> Contender:
    """Return a contender that sends requests for a second over 32 connections. Raises `Missing` without wrk.

    `fields`: of the header, such as `Accept: */*`.
    """
    wrk = wrk_program()
    options = ["--threads", "1", "--connections", str(_CONNECTIONS), "--duration", str(_SECONDS)]
    options += [part for field in fields for part in ("-H", field)]
    url = f"http://127.0.0.1:{server.port}{path}"

    def burst(_: int) -> Batch:
        done = subprocess.run(
            [wrk, *options, "--script", str(_REPORT), url], capture_output=True, text=True, timeout=60, check=True
        )
        told = json.loads(done.stdout.splitlines()[-1])
        assert not told["failed"], f"{url}: {told['failed']} requests without an answer"
        return Batch(told["microseconds"] * 1000, told["requests"] - told["refused"], told["refused"])

    return burst


def rate(batch: Batch) -> float:
    """Return the requests per nanosecond of a burst."""
    return (batch.admitted + batch.refused) / batch.nanoseconds


def microseconds(batches: Sequence[Batch]) -> float | None:
    """Return the microseconds per request, as the median of bursts; None without any."""
    return median(0.001 / rate(batch) for batch in batches) if batches else None


def started(lab: Lab, made_by: str, *arguments: object, folder: Path | None = None) -> Server:
    """Start a server that runs until the end of the run."""
    return lab.closing.enter_context(Server(made_by, *arguments, folder=folder))
