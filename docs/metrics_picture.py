"""The picture of the dashboard in metrics.md: `python docs/metrics_picture.py` draws it from a new run.

The run lasts half a minute: twenty clients send steadily, and for ten seconds one sends as fast as it is answered.
Every half second a scrape reads the counts, as Prometheus would. It needs a redis-server.
"""  # noqa: INP001  # no package

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from prometheus_client import CollectorRegistry

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the benchmarks lie beside the docs
from benchmarks.redis_server import RedisServer
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.metrics import PrometheusCollector

PICTURE: Final = Path(__file__).resolve().parent / "how-to" / "metrics.svg"
SECONDS: Final = 30.0
FLOOD: Final = (10.0, 20.0)  # seconds from the start
EVERY: Final = 0.5  # seconds between scrapes
OVER: Final = 4  # scrapes that a rate is taken over
CLIENTS: Final = 20
PAUSE: Final = 0.25  # seconds between the requests of a steady client
FLOOD_PAUSE: Final = 0.004

Scrape = Mapping[str, float]
Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, GAP, TOP = 440, 210, 20, 40
TITLE: Final = "Rate limits: from second 10 to 20 one client floods two paths"
COLORS: Final = ("a", "b", "c")
STYLE: Final = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .end { text-anchor: end }
.page { fill: #ffffff } .panel { fill: none; stroke: #d0d7de } .grid { stroke: #d0d7de; stroke-dasharray: 2 4 }
.a { stroke: #2f6fb7 } .b { stroke: #c4560d } .c { stroke: #1a7f37 } polyline { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .panel { stroke: #30363d } .grid { stroke: #30363d }
  .a { stroke: #6cb0f5 } .b { stroke: #f0914a } .c { stroke: #56d364 }
}
"""


async def page(_scope: Any, _receive: Any, send: Any) -> None:
    """An app that does nothing else."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def client(app: Any, address: str, path: str, pause: float, span: tuple[float, float]) -> None:
    """Send requests from one address for a while."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(_: Any) -> None: ...

    begun = time.monotonic()
    await asyncio.sleep(span[0])
    while time.monotonic() - begun < span[1]:
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "client": (address, 1), "state": {}}
        await app(scope, receive, send)
        await asyncio.sleep(pause)


def scrape(registry: CollectorRegistry) -> Scrape:
    """Return the samples by name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


async def run(store: str) -> list[tuple[float, Scrape]]:
    """Return the scrapes of a run, each with its time."""
    rules = [{"name": "search", "path": "/search", "limits": "5/second using token_bucket"}]
    shadow = [{"limit": "20/second", "shadow": True, "name": "stricter"}]
    app = RateLimitMiddleware(
        page, limits=["100/second", *shadow], rules=rules, store=store, store_timeout=1, metrics=True, key="ip"
    )
    registry = CollectorRegistry()
    registry.register(PrometheusCollector())
    tasks = [
        asyncio.create_task(client(app, f"192.0.2.{n}", "/search" if n % 2 else "/", PAUSE, (n * 0.01, SECONDS)))
        for n in range(CLIENTS)
    ]
    tasks += [asyncio.create_task(client(app, "198.51.100.7", path, FLOOD_PAUSE, FLOOD)) for path in ("/", "/search")]
    begun = time.monotonic()
    found = []
    while (now := time.monotonic() - begun) < SECONDS:
        found.append((now, scrape(registry)))
        await asyncio.sleep(EVERY)
    await asyncio.gather(*tasks)
    return found


def rate(scrapes: Sequence[tuple[float, Scrape]], *parts: str) -> Points:
    """Return the rate of all samples whose name has these parts, as Prometheus' `rate` computes it."""

    def total(found: Scrape) -> float:
        return sum(value for name, value in found.items() if all(part in name for part in parts))

    pairs = zip(scrapes, scrapes[OVER:], strict=False)
    return [(late, (total(after) - total(before)) / (late - early)) for (early, before), (late, after) in pairs]


def ratio(above: Points, below: Points) -> Points:
    """Return one series over another."""
    return [(at, value / other if other else 0.0) for (at, value), (_, other) in zip(above, below, strict=True)]


def panel(title: str, unit: str, series: Mapping[str, Points], column: int, row: int) -> list[str]:
    """Draw one panel: lines, a scale and a legend."""
    left, top = GAP + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP)
    inside, floor = left + 60, top + HEIGHT - 46
    high = top + 40
    most = max([value for points in series.values() for _, value in points] or [1.0]) or 1.0
    parts = [
        f'<rect class="panel" x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" rx="4"/>',
        f'<text class="title" x="{left + 12}" y="{top + 22}">{escape(title)}</text>',
    ]
    for part in (0.0, 0.5, 1.0):
        y = floor - part * (floor - high)
        parts.append(f'<line class="grid" x1="{inside}" y1="{y:.1f}" x2="{left + WIDTH - 14}" y2="{y:.1f}"/>')
        parts.append(f'<text class="end" x="{inside - 6}" y="{y + 4:.1f}">{most * part:.3g}{unit}</text>')
    across = (WIDTH - 74) / SECONDS
    for color, (name, points) in zip(COLORS, series.items(), strict=False):
        line = " ".join(
            f"{inside + at * across:.1f},{floor - value / most * (floor - high):.1f}" for at, value in points
        )
        parts.append(f'<polyline class="{color}" points="{line}"/>')
        x = inside + 125 * COLORS.index(color)
        parts.append(
            f'<line class="{color}" x1="{x}" y1="{floor + 32}" x2="{x + 16}" y2="{floor + 32}" stroke-width="3"/>'
        )
        parts.append(f'<text x="{x + 22}" y="{floor + 36}">{escape(name)}</text>')
    seconds = [(second, inside + second * across - 8) for second in (0, 10, 20, 30)]
    return parts + [f'<text x="{x:.1f}" y="{floor + 16}">{second} s</text>' for second, x in seconds]


def drawn(scrapes: Sequence[tuple[float, Scrape]]) -> str:
    """Return the picture: the first panels of the dashboard."""
    requests = "ratelimit_requests_total"
    outcomes = {name: rate(scrapes, requests, f"'{name}'") for name in ("admitted", "refused")}
    shares = {
        rule: ratio(rate(scrapes, requests, f"'{rule}'", "'refused'"), rate(scrapes, requests, f"'{rule}'"))
        for rule in ("default", "search")
    }
    limits = {
        label: rate(scrapes, "ratelimit_refusals_total", f"'limit', '{label}'") for label in ("default", "search")
    }
    sources = {name: rate(scrapes, requests, f"'{name}'") for name in ("store", "remembered")}
    shadow = {"stricter": rate(scrapes, "ratelimit_refusals_total", "'stricter'")}
    calls = {"take": rate(scrapes, "ratelimit_store_seconds_count", "'take'")}
    parts = [
        *panel("Requests that met a rule, per second", "", outcomes, 0, 0),
        *panel("Share refused, by rule", "", shares, 1, 0),
        *panel("Refusals per second, by limit", "", limits, 0, 1),
        *panel("What shadow limits would refuse, per second", "", shadow, 1, 1),
        *panel("Decisions per second, by source", "", sources, 0, 2),
        *panel("Calls of Redis per second", "", calls, 1, 2),
    ]
    width, height = 2 * WIDTH + 3 * GAP, TOP + 3 * (HEIGHT + GAP)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>Rate limits while one client sends as fast as it is answered</title><style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            f'<text class="title" x="{GAP}" y="26">{TITLE}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Run, and write the picture."""
    with RedisServer() as redis:
        PICTURE.write_text(drawn(asyncio.run(run(redis.url))), "utf-8")


if __name__ == "__main__":
    main()
