"""Overloads real servers, with and without a latency goal: `python -m benchmarks.overload --json FILE --svg OUT.svg`.

Clients come at random instants, whether the others were answered or not, and leave after a second. Counted is what was
answered by then, as a part of what the server can answer: 400 requests a second behind a semaphore of 20 for 50 ms;
for the endpoint that is bound by the processor, what four clients get that ask again and again. There, uvicorn runs
without uvloop, which accepts one connection in each turn of its loop: new clients of a busy app wait where no
middleware sees them.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from typing import Any, Final
from xml.sax.saxutils import escape

from benchmarks.ours.overloaded import GOAL, SECONDS, SLOTS
from benchmarks.serve import LOOP
from benchmarks.served import Server
from benchmarks.trees import ROOT

_PATIENCE: Final = 1.0  # seconds of a client
_LATENCY_GOAL: Final = 0.25  # seconds
_THREADS: Final = 200  # of gunicorn
_CONNECTIONS: Final = 200  # that clients open before the first request
_START: Final = 30.0  # seconds until a server answers at most
_CLOSED_LOOP: Final = 4  # clients
_WIDTH, _HEIGHT, _LEFT, _TOP = 620, 300, 50, 46  # pixels
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 }
.page { fill: #ffffff } .axis { stroke: #8c959f; stroke-width: 1 } path { fill: none; stroke-width: 2.5 }
.with { stroke: #2f6fb7 } .without { stroke: #c4560d } text.with { fill: #2f6fb7; stroke: none }
text.without { fill: #c4560d; stroke: none }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .with { stroke: #6cb0f5 } .without { stroke: #f0914a }
  text.with { fill: #6cb0f5 } text.without { fill: #f0914a }
}
"""


class Clients:
    """Clients with connections that they keep, unless they gave up: then the connection is closed."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connect(self, number: int) -> None:
        """Open connections. uvloop accepts one in each turn of its loop, so that a busy server is slow to accept."""
        self._idle += [await asyncio.open_connection("127.0.0.1", self._port) for _ in range(number)]

    def close(self) -> None:
        """Close all connections that are idle."""
        for _, writer in self._idle:
            writer.close()

    async def in_time(self) -> bool:
        """Send a request. Return whether it was admitted, and answered before the client gave up."""
        writer = None
        try:
            async with asyncio.timeout(_PATIENCE):
                reader, writer = (
                    self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
                )
                writer.write(self._request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
                status = int(head.split()[1])
            if b"connection: close" not in head:
                self._idle.append((reader, writer))
                writer = None
            return status == 200  # noqa: PLR2004, TRY300  # the status
        except (OSError, EOFError, TimeoutError, IndexError, ValueError):
            return False
        finally:
            if writer is not None:
                writer.close()


async def answered(port: int, path: str, rate: float, seconds: float, settling: float) -> float:
    """Return how many answers come in time in a second, of requests at `rate` a second.

    `settling`: seconds at the start that do not count.
    """
    instants, loop = random.Random(1), asyncio.get_running_loop()  # noqa: S311  # no secret
    tasks: list[tuple[float, asyncio.Task[bool]]] = []
    clients = Clients(port, path)
    await clients.connect(_CONNECTIONS)
    began = now = loop.time()
    while now < began + settling + seconds:
        now += instants.expovariate(rate)
        if (wait := now - loop.time()) > 0:
            await asyncio.sleep(wait)
        tasks.append((now, asyncio.ensure_future(clients.in_time())))
    results = await asyncio.gather(*(task for _, task in tasks))
    clients.close()
    counted = [result for (at, _), result in zip(tasks, results, strict=True) if at >= began + settling]
    return sum(counted) / seconds


async def closed_loop(port: int, path: str, seconds: float) -> float:
    """Return how many answers a second a few clients get that ask again and again."""
    until = time.monotonic() + seconds
    clients = Clients(port, path)

    async def client() -> int:
        number = 0
        while time.monotonic() < until:
            number += await clients.in_time()
        return number

    number = sum(await asyncio.gather(*(client() for _ in range(_CLOSED_LOOP))))
    clients.close()
    return number / seconds


@contextmanager
def uvicorn(goal: float) -> Iterator[int]:
    """Serve the ASGI app; yields the port."""
    with Server("benchmarks.ours.overloaded:asgi", goal) as server:
        yield server.port


@contextmanager
def gunicorn(goal: float) -> Iterator[int]:
    """Serve the WSGI app in one worker with many threads; yields the port."""
    with create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    options = ["--worker-class", "gthread", "--threads", str(_THREADS), "--keep-alive", "60", "--log-level", "critical"]
    command = [sys.executable, "-P", "-m", "gunicorn", *options, "--bind", f"127.0.0.1:{port}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), GOAL: str(goal)}
    process = subprocess.Popen([*command, "benchmarks.ours.overloaded:wsgi()"], env=environment)
    try:
        asyncio.run(_until_ready(port))
        yield port
    finally:
        process.terminate()
        process.wait(20)


async def _until_ready(port: int) -> None:
    until = time.monotonic() + _START
    while not await (clients := Clients(port, "/ready")).in_time():
        if time.monotonic() > until:
            raise RuntimeError(f"no answer on port {port} within {_START:g} s")
        await asyncio.sleep(0.05)
    clients.close()


SERVERS: Final = {"uvicorn": uvicorn, "gunicorn": gunicorn}


def measure(server: str, path: str, loads: Sequence[float], seconds: float, settling: float) -> dict[str, Any]:
    """Return the goodput at some loads, with and without the goal, as parts of the capacity."""
    os.environ[LOOP] = "asyncio" if path == "/work" else "auto"
    capacity = SLOTS / SECONDS
    if path == "/work":
        with SERVERS[server](0.0) as port:
            capacity = asyncio.run(closed_loop(port, path, seconds))
    row: dict[str, Any] = {"server": server, "path": path, "capacity": round(capacity, 1), "loads": [*loads]}
    for name, goal in (("with", _LATENCY_GOAL), ("without", 0.0)):
        row[name] = []
        for load in loads:
            with SERVERS[server](goal) as port:  # a server of its own: an overload outlives its clients
                found = asyncio.run(answered(port, path, load * capacity, seconds, settling)) / capacity
            row[name].append(round(found, 3))
            sys.stdout.write(f"{server} {path} at {load:g} of {capacity:.0f}/s, {name} a goal: {found:.2f}\n")
            sys.stdout.flush()
    return row


def picture(row: dict[str, Any]) -> str:
    """Return an SVG of the answers in time against the load, with and without a goal."""
    most = max(row["loads"])

    def place(load: float, part: float) -> str:
        return f"{_LEFT + load / most * (_WIDTH - _LEFT - 20):.1f} {_TOP + (1.1 - min(part, 1.1)) / 1.1 * _HEIGHT:.1f}"

    parts = [f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT + _TOP + 50}"/>']
    parts.append('<text class="title" x="10" y="22">Answers within a second, as a part of the capacity</text>')
    for part in (0.0, 0.5, 1.0):
        x, y = place(0, part).split()
        parts.append(
            f'<path class="axis" d="M{x} {y}H{_WIDTH - 20}"/><text x="14" y="{float(y) + 4:.0f}">{part:g}</text>'
        )
    for load in row["loads"]:
        x = place(load, 0).split()[0]
        parts.append(f'<text x="{float(x) - 8:.0f}" y="{_HEIGHT + _TOP + 20}">{load:g}</text>')
    title = escape(f"load, as a part of {row['capacity']:g} requests a second ({row['server']})")
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT + _TOP + 42}">{title}</text>')
    for name, text in (("with", "with latency_goal = 0.25"), ("without", "without")):
        points = "L".join(place(load, part) for load, part in zip(row["loads"], row[name], strict=True))
        x, y = place(most, row[name][-1]).split()
        parts.append(f'<path class="{name}" d="M{points}"/>')
        parts.append(f'<text class="{name}" text-anchor="end" x="{x}" y="{float(y) - 8:.0f}">{text}</text>')
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT + _TOP + 50}" role="img" aria-label="Answers in time against the load"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{"".join(parts)}</svg>\n'


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=[*SERVERS])
    parser.add_argument("--paths", nargs="+", choices=("/wait", "/work"), default=["/wait", "/work"])
    parser.add_argument("--loads", nargs="+", type=float, default=[0.5, 1.0, 1.2, 1.5, 2.0, 3.0])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    parser.add_argument("--settling", type=float, default=4.0, help="seconds of each run that do not count")
    parser.add_argument("--json", type=Path, help="write what was measured")
    parser.add_argument("--svg", type=Path, help="draw the first server and path")
    parser.add_argument("--draw", type=Path, help="draw this file, which --json wrote, and measure nothing")
    options = parser.parse_args(arguments)
    if options.draw is not None:
        rows = json.loads(options.draw.read_text("utf-8"))
    else:
        places = [(server, path) for server in options.servers for path in options.paths]
        rows = [measure(server, path, options.loads, options.seconds, options.settling) for server, path in places]
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    if options.svg is not None:
        options.svg.write_text(picture(rows[0]), "utf-8")


if __name__ == "__main__":
    main()
