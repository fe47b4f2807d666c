"""A generated log of a day. The browser tests open its report, and the documentation shows it."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratelimit_mw.replay import replay
from ratelimit_mw.replay.html import html_report
from replay.replayed import combined

EVIL = "</script><script>document.title = 'evil'</script><img src=x onerror=alert(1)>"
SETTINGS: dict[str, Any] = {
    "limits": "60/minute",
    "key": "ip",
    "rules": [
        {"name": "login", "path": "/login", "limits": "5/minute; 20/hour"},
        {"name": "search", "path": "/search", "limits": "12/minute using gcra"},
        {"name": "reports", "path": "/reports/{id}", "limits": "4/minute", "shadow": True},
    ],
}
DAY = 86_400  # seconds


def day() -> Iterator[str]:
    """Yield a log of a day: more traffic at noon than at night, a scraper, and a client that guesses passwords."""
    dice = random.Random(11)  # noqa: S311  # a log
    lines: list[tuple[int, str, str]] = []
    for number in range(1500):
        for _ in range(dice.choice((1, 1, 2, 4))):
            at = int(dice.gauss(DAY / 2, DAY / 6)) % DAY
            for _ in range(min(40, 1 + int(dice.expovariate(0.15)))):
                path = dice.choice(("/", "/", "/search", f"/reports/{dice.randrange(9)}", "/login"))
                lines.append((at, f"10.0.{number >> 8}.{number & 255}", path))
                at = min(DAY - 1, at + dice.choice((1, 5, 20, 60)))
    lines += [(50_000 + index // 2, "198.51.100.7", "/search") for index in range(4000)]
    lines += [(30_000 + 4 * index, "198.51.100.8", "/login") for index in range(2500)]
    lines += [(60_000, EVIL.replace(" ", ""), f"/{EVIL}".replace(" ", "%20"))] * 90
    for at, client, path in sorted(lines):
        line = combined(at, client, f"GET {path} HTTP/1.1")  # hours may be up to 46; the next lines correct that
        hour = 22 + (at + 800) // 3600
        yield line.replace(f"14/Nov/2023:{hour:02}:", f"{14 + hour // 24}/Nov/2023:{hour % 24:02}:")


def report_of_the_day(folder: Path) -> str:
    """Return the HTML report of the day. `folder`: an empty folder for the log."""
    (folder / "access.log").write_text("".join(day()))
    return html_report(replay(SETTINGS, folder / "access.log", suggest=True, distributions=True))
