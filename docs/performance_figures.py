"""The figures of performance.md and benchmarks.md, from one run: `python docs/performance_figures.py` renews them.

With `--check` it changes nothing, shows what is stale, and returns 1 if anything is. The chart is renewed too.
"""  # noqa: INP001  # no package

import contextlib
import difflib
import io
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the benchmarks lie beside the docs
from benchmarks.chart import chart

FOLDER: Final = Path(__file__).resolve().parent / "explanation"
PAGES: Final = ("performance.md", "benchmarks.md")
RENEW: Final = "python docs/performance_figures.py"
_MARKED: Final = re.compile(r"(<!-- figures (\w+)[^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)
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


def renewed(text: str, found: dict[str, Any]) -> str:
    """The text of the page with new figures."""
    rows = {row["row"]: row for row in found["rows"]}
    made = {
        "machine": _machine(found),
        "rows": _rows(rows),
        "costs": _costs(rows),
        "growth": _growth(rows),
        "served": _served(rows),
        "plan": _plan(rows),
    }
    return _MARKED.sub(lambda marked: f"{marked[1]}\n{made[marked[2]]}\n{marked[3]}", text)


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


def main(arguments: Sequence[str]) -> int:
    """Renew page and chart; or with `--check` show by what they are stale. Returns the exit code."""
    found = json.loads((FOLDER / "performance.json").read_text("utf-8"))
    pages = [FOLDER / name for name in PAGES]
    made = {page: renewed(page.read_text("utf-8"), found) for page in pages} | {
        FOLDER / "performance.svg": chart(found)
    }
    if "--check" not in arguments:
        for path, text in made.items():
            path.write_text(text, "utf-8")
        return 0
    stale: list[str] = []
    for path, text in made.items():
        before = path.read_text("utf-8") if path.exists() else ""
        stale += difflib.unified_diff(before.splitlines(), text.splitlines(), path.name, "from the run", lineterm="")
    if stale:
        sys.stdout.write("\n".join([*stale, f"The figures are stale. This renews them: {RENEW}", ""]))
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
