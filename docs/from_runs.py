"""Makes figures and pictures of the documentation from runs: `python docs/from_runs.py` renews them.

- `figures`: the tables of performance.md and benchmarks/README.md, and their chart, from performance.json.
- `readme`: the table and the chart of the README, from benchmarks/attacked/compared.json and performance.json.
- `replay`: the picture of a replay's report, drawn in Chromium, from the log that the tests have. The file keeps a
  digest of the page that it shows; `--check` compares this digest with the page of today.
- `demo`: the output of `ratelimit-mw demo`, drawn as a terminal, from a new run.
- `metrics`: the dashboard in metrics.md, from a new run of half a minute, which needs a redis-server.

With names of parts it renews only these. With `--check` it changes nothing, shows what is stale, and returns 1 if
anything is; `demo` and `metrics`, which differ in each run, are then left out.
"""  # noqa: INP001  # no package

import argparse
import asyncio
import contextlib
import difflib
import io
import json
import math
import re
import struct
import subprocess
import sys
import time
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from benchmarks.chart import chart as chart_of_rows  # noqa: E402  # in the folders that were added above
from ratelimit_mw.asgi import RateLimitMiddleware  # noqa: E402

Files = Mapping[Path, str | bytes]  # files with their new content
Part = Callable[[argparse.Namespace], Files]


def marked(text: str, word: str, made: Callable[[str], str]) -> str:
    """The text of a page with new content between each `<!-- word NAME ... -->` and `<!-- end -->`."""
    places = re.compile(rf"(<!-- {word}(?: (\w+))?\b[^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
    return places.sub(lambda found: f"{found[1]}{made(found[2])}\n{found[3]}", text)


def renew(program: str, about: str | None, parts: Mapping[str, Part], arguments: Sequence[str]) -> int:
    """Renew what the arguments of a script name, or all its parts; or with `--check` show by what they are stale.

    Returns the exit code.
    """
    parser = argparse.ArgumentParser(program, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all without it: {', '.join(parts)}")
    parser.add_argument("--check", action="store_true", help="change nothing; return 1 if a file is stale")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="the checkout with the files")
    parser.add_argument("--redis", metavar="URL", help="a Redis server, instead of one started for this")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in parts]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(parts)}")
    stale = 0
    for name in options.parts or parts:
        files = parts[name](options)
        if not options.check:
            for path, content in files.items():
                path.write_bytes(_bytes(content))
        elif lines := [line for path, content in files.items() for line in _difference(path, content)]:
            sys.stdout.write("\n".join([*lines, f"This is stale, and renewed by: python {program} {name}", ""]))
            stale = 1
    return stale


def _difference(path: Path, content: str | bytes) -> list[str]:
    before = path.read_bytes() if path.exists() else b""
    if before == _bytes(content):
        return []
    if isinstance(content, bytes):
        return [f"{path.name} shows something else"]
    lines = before.decode("utf-8").splitlines(), content.splitlines()
    return [*difflib.unified_diff(*lines, path.name, "renewed", lineterm="")]


def _bytes(content: str | bytes) -> bytes:
    return content.encode("utf-8") if isinstance(content, str) else content


# The figures of explanation/performance.md and benchmarks/README.md

_UNITS: Final = {"x": "", "us": " us", "bytes": " bytes", "calls": " calls"}
_COSTS: Final = {  # row, and which of its times: what it is the cost of
    ("memory-default", "ours"): "one `take` of a `MemoryStore`, one limit, one key",
    ("memory-keys", "ours"): "one of a token bucket, of 100,000 keys in turn",
    ("memory-refused-default", "ours"): "one `take` that refuses",
    ("asgi", "ours"): "added to an ASGI request by the middleware, memory, `RateLimit` headers",
    ("limits-3", "ours"): "the same under three limits",
    ("wsgi", "ours"): "added to a WSGI request",
    ("asgi-refused", "ours"): "an ASGI request that is refused, including the response",
    ("redis-sync-1", "ours"): "one `take` of a `RedisStore` on the same machine, waiting included",
    ("lua-sliding_window_counter", "ours"): "the script alone, one charge, time of the server",
    ("redis-node-sync-1", "value"): "a request of one limit, all that the server does for it",
    ("redis-node-async-1", "value"): "the same, of 64 tasks that share a store",
    ("redis-node-async-3", "value"): "the same of three limits",
    ("redis-app-async-3", "value"): "what an app's process does for the same, without the middleware",
}
_GROWTH: Final = {  # what grows: what is compared, and its two times
    "rules, from 5 to 500": ("in memory, added to a request", ("rules-500", "ours"), ("rules-500", "peer")),
    "limits, from 1 to 3": ("in memory, added to a request", ("limits-3", "ours"), ("limits-3", "peer")),
    "limits, from 1 to 3, in Redis": (
        "the server's time per request, of 64 tasks",
        ("redis-node-async-3", "value"),
        ("redis-node-async-1", "value"),
    ),
    "keys, from 1 to 100,000": ("in memory, one `take`", ("memory-keys", "ours"), ("memory-token", "ours")),
    "keys, from 1 to 100,000, in Redis": (
        "one `take`, waiting included",
        ("redis-sync-keys", "ours"),
        ("redis-sync-1", "ours"),
    ),
}
_PLAN: Final = """
import math

wanted = 1_000_000  # requests per second
busy = 0.7  # of a node's core: the rest is for peaks, and for the nodes that are left when one fails
node = {node}  # microseconds of a node's core for a request of three limits
added = {added} + {store}  # microseconds of an app's core for it: the middleware, and what sends and reads
lease = 100  # units of a hot limit that a process takes ahead

per_node = busy * 1e6 / node
print(f"a node carries {{per_node:,.0f}} requests per second, a cluster needs {{math.ceil(wanted / per_node)}} nodes")
print(f"the limits take {{wanted * added / 1e6:.0f}} cores of all the apps together")
print(f"one key carries {{per_node:,.0f}} requests per second, with a lease of {{lease}} {{per_node * lease:,.0f}}")
"""


def figures(options: argparse.Namespace) -> Files:
    """The two pages with new figures, and the chart."""
    folder = options.root / "docs/explanation"
    found = json.loads((folder / "performance.json").read_text("utf-8"))
    rows = {row["row"]: row for row in found["rows"]}
    made = {
        "machine": _machine(found),
        "rows": _rows(rows),
        "costs": _costs(rows),
        "growth": _growth(rows),
        "served": _served(rows),
        "plan": _plan(rows),
    }
    pages = {
        page: marked(page.read_text("utf-8"), "figures", lambda name: f"\n{made[name]}")
        for page in (folder / "performance.md", options.root / "benchmarks/README.md")
    }
    return {**pages, options.root / "benchmarks/rows.svg": chart_of_rows(found)}


def _machine(found: dict[str, Any]) -> str:
    versions = {**found["versions"]}
    ours = versions.pop("ratelimit-mw")
    others = ", ".join(f"{name} {version}" for name, version in versions.items() if version != "not installed")
    machine = found["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {found['rounds']} rounds"
    return f"Measured on: {where}. ratelimit-mw {ours}, {others}.\n"


def _rows(rows: dict[str, Any]) -> str:
    lines = ["| row | what | median | middle half | target | |", "|---|---|---|---|---|---|"]
    for row in rows.values():
        if row["value"] is None or row["unit"] not in _UNITS:
            continue
        half = "" if row["half"] is None else "{:.2f} to {:.2f}".format(*row["half"])
        sign = "≥" if row["at_least"] else "≤"
        target = "" if row["target"] is None else f"{sign} {row['target']:.2f}"
        value = f"{row['value']:.2f}{_UNITS[row['unit']]}"
        lines.append(f"| `{row['row']}` | {row['what']} | {value} | {half} | {target} | {row['verdict']} |")
    return "".join(f"{line}\n" for line in lines)


def _costs(rows: dict[str, Any]) -> str:
    lines = ["| what | microseconds | row |", "|---|---|---|"]
    for (row, field), what in _COSTS.items():
        lines.append(f"| {what} | {rows[row][field]:.1f} | `{row}` |")
    return "".join(f"{line}\n" for line in lines)


def _served(rows: dict[str, Any]) -> str:
    """Return what users see: the requests per second that an app keeps."""
    lines = ["| app that does nothing else, under uvicorn | keeps of its requests per second |", "|---|---|"]
    for row, where in (("served-memory", "limits in memory"), ("served-redis", "limits in Redis on the same machine")):
        lines.append(f"| {where} | {rows[row]['value']:.0%} |")
    return "".join(f"{line}\n" for line in lines)


def _growth(rows: dict[str, Any]) -> str:
    lines = ["| what grows | what is compared | factor |", "|---|---|---|"]
    for what, (compared, (more, its), (less, field)) in _GROWTH.items():
        lines.append(f"| {what} | {compared} | {rows[more][its] / rows[less][field]:.1f} |")
    return "".join(f"{line}\n" for line in lines)


def _plan(rows: dict[str, Any]) -> str:
    """The arithmetic, and what it prints."""
    node = math.ceil(rows["redis-node-async-3"]["value"])
    added, store = math.ceil(rows["asgi"]["ours"]), math.ceil(rows["redis-app-async-3"]["value"])
    code = _PLAN.format(node=node, added=added, store=store).strip()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})  # noqa: S102  # what the page shows, as the page says
    return f"```python\n{code}\n```\n\n```text\n{output.getvalue()}```\n"


# The table and the drawings of the README

_FONT: Final = "text { font: 13px system-ui, sans-serif; fill: #1f2328 } .page { fill: #ffffff }"
_DARK: Final = "text { fill: #e6edf3 } .page { fill: #0d1117 } .ours { fill: #6cb0f5 } .other { fill: #6e7681 }"
_BARS: Final = {  # title of a group: what is drawn, its row and which of its times
    "Counting in memory": {
        "no limit": ("served-memory", "peer"),
        "ratelimit_mw": ("served-memory", "ours"),
        "asgi-ratelimit": ("served-memory-asgi-ratelimit", "ours"),
        "slowapi": ("served-memory-slowapi", "ours"),
    },
    "Counting in Redis": {
        "no limit": ("served-redis", "peer"),
        "ratelimit_mw": ("served-redis", "ours"),
        "asgi-ratelimit": ("served-redis-asgi-ratelimit", "ours"),
        "slowapi": ("served-redis-slowapi", "ours"),
    },
}


def table(found: dict[str, Any]) -> str:
    """The answers of each library, one row for each library: few columns, so that none is cut on a narrow page."""
    questions = found["answers"]
    lines = [f"| {found['date']} | {' | '.join(questions)} |", "|---" * (len(questions) + 1) + "|"]
    for name, version in found["versions"].items():
        lines.append(f"| {name} {version} | {' | '.join(answers[name] for answers in questions.values())} |")
    return "\n".join(lines) + "\n"


def chart(found: dict[str, Any]) -> str:
    """Bars: requests per second of one process."""
    rows = {row["row"]: row for row in found["rows"]}
    speeds = {
        title: {name: 1e6 / rows[row][field] for name, (row, field) in bars.items()} for title, bars in _BARS.items()
    }
    most = max(max(bars.values()) for bars in speeds.values())
    parts, y = [], 34
    for title, bars in speeds.items():
        parts.append(f'<text class="group" x="10" y="{y + 14}">{title}</text>')
        y += 26
        for name, speed in bars.items():
            length, kind = 480 * speed / most, "ours" if name == "ratelimit_mw" else "other"
            parts.append(f'<text x="10" y="{y + 13}">{name}</text>')
            parts.append(f'<rect class="{kind}" x="130" y="{y + 2}" width="{length:.0f}" height="14" rx="2"/>')
            parts.append(f'<text x="{138 + length:.0f}" y="{y + 13}">{speed:,.0f}</text>')
            y += 22
        y += 10
    style = (
        f"{_FONT} .title, .group {{ font-weight: 600 }} .ours {{ fill: #2f6fb7 }} .other {{ fill: #afb8c1 }}"
        f" @media (prefers-color-scheme: dark) {{ {_DARK} }}"
    )
    title = "Requests per second: one process of uvicorn, one CPU core, more is better"
    head = [f'<rect class="page" width="720" height="{y}"/>', f'<text class="title" x="10" y="20">{title}</text>']
    return _svg(720, y, style, [*head, *parts], title)


def terminal(output: str) -> str:
    """The command and its output, as a terminal shows them."""
    lines = ["$ python3 -m ratelimit_mw demo", *output.rstrip("\n").split("\n")]
    style = (
        "text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre }"
        " .page { fill: #0d1117 } .bar { fill: #30363d } .refused { fill: #f0914a } .admitted { fill: #7ee2a8 }"
        " @media (prefers-color-scheme: light) { text { fill: #1f2328 } .page { fill: #f6f8fa } .bar { fill: #d0d7de }"
        " .refused { fill: #b35900 } .admitted { fill: #1a7f37 } }"
    )
    height = 50 + 19 * len(lines)
    parts = [f'<rect class="page" width="600" height="{height}" rx="8"/>']
    parts += [f'<circle class="bar" cx="{18 + 18 * dot}" cy="16" r="5"/>' for dot in range(3)]
    for number, line in enumerate(lines):
        status = re.match(r" +\d+ +(\d+) ", line)
        kind = {"200": "admitted", "429": "refused"}.get(status[1] if status else "", "")
        parts.append(f'<text class="{kind}" x="16" y="{50 + 19 * number}">{escape(line)}</text>')
    return _svg(600, height, style, parts, "The output of ratelimit-mw demo")


def _svg(width: int, height: int, style: str, parts: Sequence[str], title: str) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(title)}</title>'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>", ""])


def readme(options: argparse.Namespace) -> Files:
    """The README with the table, and the chart."""
    compared = json.loads((options.root / "benchmarks/attacked/compared.json").read_text("utf-8"))
    measured = json.loads((options.root / "docs/explanation/performance.json").read_text("utf-8"))
    page = options.root / "README.md"
    return {
        page: marked(page.read_text("utf-8"), "compared", lambda _: f"\n{table(compared)}"),
        options.root / "docs/_static/requests.svg": chart(measured),
    }


def demo(options: argparse.Namespace) -> Files:
    """The demo as a terminal shows it."""
    if options.check:
        return {}
    command = [sys.executable, "-m", "ratelimit_mw", "demo", "--port", "8000"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # our own
    return {options.root / "docs/_static/demo.svg": terminal(done.stdout)}


# The picture of a replay's report

PAGE_WIDTH: Final = 985
SHOWN: Final = "document.querySelector('section').getBoundingClientRect().bottom"  # all above it, and the first rule
MARGIN: Final = 10
KEYWORD: Final = b"Digest\0"
TEXT: Final = b"tEXt"
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def chunks(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each chunk of a PNG."""
    at = len(SIGNATURE)
    while at < len(image):
        (length,) = struct.unpack_from(">I", image, at)
        yield image[at + 4 : at + 8], image[at + 8 : at + 8 + length]
        at += 12 + length


def with_digest(image: bytes, digest: str) -> bytes:
    """Return a PNG that has a digest."""
    content = TEXT + KEYWORD + digest.encode()
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    end = image.rindex(b"IEND") - 4
    return image[:end] + chunk + image[end:]


def digest_of(image: bytes) -> str:
    """Return the digest that a PNG has; empty without one."""
    found = [content for kind, content in chunks(image) if kind == TEXT and content.startswith(KEYWORD)]
    return found[0].removeprefix(KEYWORD).decode() if found else ""


def draw(page: str, folder: Path) -> bytes:
    """Return a picture of the top of a page."""
    from browser.devtools import browser  # noqa: PLC0415  # it needs websockets, and a check does not

    (path := folder / "report.html").write_text(page, "utf-8")
    with browser(folder) as tab:
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        tab.call("Emulation.setScrollbarsHidden", hidden=True)
        tab.open(path.as_uri(), PAGE_WIDTH)
        tab.until("document.querySelectorAll('canvas').length >= 8")
        clip = {"x": 0, "y": 0, "width": PAGE_WIDTH, "height": round(tab.value(SHOWN)) + MARGIN, "scale": 1}
        return b64decode(tab.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])


def replay(options: argparse.Namespace) -> Files:
    """The picture of the report; in a check, the present picture with the digest of the report of today."""
    picture = options.root / "docs/images/replay-report.png"
    from replay.day import report_of_the_day  # noqa: PLC0415  # figures are also made where no tests are set up

    with TemporaryDirectory() as name:
        page = report_of_the_day(Path(name))
        digest = sha256(page.encode()).hexdigest()
        if not options.check:
            return {picture: with_digest(draw(page, Path(name)), digest)}
    return {} if digest_of(picture.read_bytes()) == digest else {picture: b"a picture of another report"}


# The picture of the dashboard

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


def scrape(registry: Any) -> Scrape:
    """Return the samples by name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


async def run(store: str) -> list[tuple[float, Scrape]]:
    """Return the scrapes of a run, each with its time."""
    from prometheus_client import CollectorRegistry  # noqa: PLC0415  # only this part needs it

    from ratelimit_mw.metrics import PrometheusCollector  # noqa: PLC0415  # as above

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


def metrics(options: argparse.Namespace) -> Files:
    """The dashboard of a new run."""
    if options.check:
        return {}
    from benchmarks.redis_server import RedisServer  # noqa: PLC0415  # only this part needs redis-py

    with RedisServer() as redis:
        return {options.root / "docs/how-to/metrics.svg": drawn(asyncio.run(run(redis.url)))}


PARTS: Final[Mapping[str, Part]] = {
    "figures": figures,
    "readme": readme,
    "replay": replay,
    "demo": demo,
    "metrics": metrics,
}

if __name__ == "__main__":
    sys.exit(renew("docs/from_runs.py", __doc__, PARTS, sys.argv[1:]))
