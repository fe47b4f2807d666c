"""Rows of the decision service's processor time per decision, over uvicorn's for an empty response."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import ratelimit_mw
from benchmarks import web
from benchmarks.lab import Lab, Missing, package
from benchmarks.line import Line
from benchmarks.ours.served import empty
from benchmarks.runner import Batch, Contender, Row, turns
from benchmarks.served import bursts, started
from benchmarks.trees import ROOT

_CONNECTIONS: Final = 32
_ROUNDS: Final = 15  # at most, because a round lasts a second per contender
_SECONDS: Final = 1.0  # of a burst with gRPC
_LISTENING: Final = re.compile(r"on http://127\.0\.0\.1:([0-9]+)")
_FORWARDED: Final = ("X-Forwarded-Method: GET", "X-Forwarded-Uri: /items/42", "X-Forwarded-For: 192.0.2.7")


class Service(AbstractContextManager["Service", None]):
    """The service on a free port, started by its command. `grpc`: its address for gRPC, if any."""

    def __init__(self, url: str, grpc: str = "") -> None:
        package("uvicorn")
        self._folder = tempfile.TemporaryDirectory()
        believed = 'trusted_proxies = ["127.0.0.1", "unix:"]'
        settings = f'limits = "{web.PLENTY}/hour"\nstore = "{url}"\nstore_timeout = 1.0\n{believed}\n'
        file = Path(self._folder.name) / "limits.toml"
        file.write_text(settings, "utf-8")
        path = os.pathsep.join([str(Path(ratelimit_mw.__file__).parents[1]), str(ROOT)])
        command = [sys.executable, "-P", "-m", "ratelimit_mw", "serve", str(file), "--bind", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, *(["--grpc", grpc] if grpc else [])],
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        found = _LISTENING.search(self.process.stdout.readline())
        if found is None:
            self.__exit__()
            raise RuntimeError(f"the service ended, with code {self.process.returncode}")
        self.port = int(found[1])

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()
        self._folder.cleanup()


@dataclass(frozen=True, kw_only=True)
class Serve:
    """A row of a decision by forward authentication, or by gRPC, over an empty response of uvicorn."""

    name: str
    redis: bool = False  # else in memory
    grpc: bool = False
    target: float | None = None

    @property
    def what(self) -> str:
        """What is measured."""
        kind = "by gRPC" if self.grpc else "by forward auth"
        return f"processor time of a decision {kind} over {'Redis' if self.redis else 'memory'}, over an empty answer"

    def run(self, lab: Lab) -> Sequence[Line]:
        """Return one line."""
        try:
            url = lab.redis_url() if self.redis else "memory://"
            bare = started(lab, f"{empty.__module__}:{empty.__name__}")
            contenders = {"peer": _timed(bare.pid, bursts(bare, "/"))}
            if self.grpc:
                contenders["ours"] = self._by_grpc(lab, url)
            else:
                service = lab.closing.enter_context(Service(url))
                contenders["ours"] = _timed(service.process.pid, bursts(service, "/v1/forward", _FORWARDED))
        except Missing as reason:
            return [Line(row=self.name, what=self.what, target=self.target, notes=(f"skipped, {reason}",))]
        return [self._line(turns(lab, contenders, 0, min(lab.rounds, _ROUNDS)))]

    def _by_grpc(self, lab: Lab, url: str) -> Contender:
        package("grpc", "grpcio")
        with tempfile.TemporaryDirectory() as folder:  # only for an unused name
            address = f"unix:{folder}.sock"
        service = lab.closing.enter_context(Service(url, address))
        return _timed(service.process.pid, lambda _: lab.wait(_grpc_burst(address)))

    def _line(self, batches: Mapping[str, Sequence[Batch]]) -> Line:
        ours, peer = ([_each(batch) for batch in batches[name]] for name in ("ours", "peer"))
        refused = sum(batch.refused for batch in batches["ours"])
        return Line(
            row=self.name,
            what=self.what,
            values=tuple(a / b for a, b in zip(ours, peer, strict=True)),
            ours=median(ours),
            peer=median(peer),
            target=self.target,
            admitted=sum(batch.admitted for batch in batches["ours"]),
            refused=refused,
            problems=(f"{refused} refused, not 0",) if refused else (),
        )


def _each(batch: Batch) -> float:
    """Microseconds of processor time per request."""
    return batch.nanoseconds / (batch.admitted + batch.refused) / 1000


def _timed(pid: int, burst: Contender) -> Contender:
    """Return a contender that measures a burst in a process's processor time. Raises `Missing` without /proc."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        raise Missing("/proc: not there")

    def spent() -> int:
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def run(calls: int) -> Batch:
        before = spent()
        batch = burst(calls)
        return Batch(spent() - before, batch.admitted, batch.refused)

    return run


async def _grpc_burst(address: str) -> Batch:
    """Call for a second over one channel, 32 times concurrently. Returns how many were admitted and refused."""
    aio = package("grpc").aio
    messages = package("ratelimit_mw.service.grpc_messages")
    request = messages.MESSAGES["RateLimitRequest"](domain="web")
    entries = request.descriptors.add().entries
    entries.add(key=b"remote_address", value=b"192.0.2.7")
    entries.add(key=b"path", value=b"/items/42")
    sent, counts = request.SerializeToString(), [0, 0]
    async with aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/{messages.SERVICE}/ShouldRateLimit",
            response_deserializer=messages.MESSAGES["RateLimitResponse"].FromString,
        )
        await call(sent, wait_for_ready=True)
        until = time.monotonic() + _SECONDS

        async def one() -> None:
            while time.monotonic() < until:
                answer = await call(sent)
                counts[answer.overall_code != messages.OK] += 1

        await asyncio.gather(*(one() for _ in range(_CONNECTIONS)))
    return Batch(round(_SECONDS * 1e9), *counts)


ROWS: Final[Sequence[Row]] = [
    Serve(name="serve-memory", target=1.8),
    Serve(name="serve-redis", redis=True, target=2.6),
    Serve(name="serve-grpc", grpc=True),
]
