"""Makes the table and the drawings of the README: `python docs/readme_parts.py`. With `--check` it changes nothing.

The table is drawn from benchmarks/attacked/compared.json, the chart from docs/explanation/performance.json.
`--demo` runs `ratelimit-mw demo` and draws its output as a terminal.
"""  # noqa: INP001  # no package

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

ROOT: Final = Path(__file__).resolve().parents[1]
README: Final = ROOT / "README.md"
STATIC: Final = ROOT / "docs/_static"
RENEW: Final = "python docs/readme_parts.py"
_MARKED: Final = re.compile(r"(<!-- compared[^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)
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
    """The answers of each library, one row for each question."""
    names = list(found["versions"])
    lines = [
        f"| measured {found['date']} | " + " | ".join(f"{name} {found['versions'][name]}" for name in names) + " |"
    ]
    lines.append("|---" * (len(names) + 1) + "|")
    for question, answers in found["answers"].items():
        lines.append(f"| {question} | " + " | ".join(answers[name] for name in names) + " |")
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


def made() -> dict[Path, str]:
    """Each file, made again of what it is drawn from."""
    compared = json.loads((ROOT / "benchmarks/attacked/compared.json").read_text("utf-8"))
    measured = json.loads((ROOT / "docs/explanation/performance.json").read_text("utf-8"))
    text = README.read_text("utf-8")
    return {
        README: _MARKED.sub(lambda marked: f"{marked[1]}\n{table(compared)}\n{marked[2]}", text),
        STATIC / "requests.svg": chart(measured),
    }


def main(arguments: Sequence[str]) -> int:
    """Renew the files, or with `--check` name those that are stale. Returns the exit code."""
    files = made()
    if "--check" not in arguments:
        if "--demo" in arguments:
            command = [sys.executable, "-m", "ratelimit_mw", "demo", "--port", "8000"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # our own
            files[STATIC / "demo.svg"] = terminal(done.stdout)
        for path, text in files.items():
            path.write_text(text, "utf-8")
        return 0
    stale = [path.name for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text]
    if stale:
        sys.stdout.write(f"stale: {', '.join(stale)}. This renews them: {RENEW}\n")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
