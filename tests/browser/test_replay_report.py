"""The HTML report of a replay, in a real browser from a file; screenshots are in docs/_build/screenshots."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.devtools import Page, browser
from ratelimit_mw.replay import replay
from ratelimit_mw.replay.html import html_report
from replay.replayed import combined

SCREENSHOTS = Path(__file__).resolve().parents[2] / "docs/_build/screenshots"
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
    """Yield a log of a day: more traffic at noon than at night, a scraper, and a guesser of passwords."""
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
        line = combined(at, client, f"GET {path} HTTP/1.1")  # at hours up to 46, which are those of the next day
        hour = 22 + (at + 800) // 3600
        yield line.replace(f"14/Nov/2023:{hour:02}:", f"{14 + hour // 24}/Nov/2023:{hour % 24:02}:")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "access.log").write_text("".join(day()))
    found = replay(SETTINGS, folder / "access.log", suggest=True, distributions=True)
    (path := folder / "report.html").write_text(html_report(found), "utf-8")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as page:
        yield page


def test_a_day_has_at_most_250_kilobytes(report: Path) -> None:
    assert report.stat().st_size <= 250_000


@pytest.mark.parametrize("width", [390, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_needs_nothing_but_itself(page: Page, report: Path, width: int, scheme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.open(report.as_uri(), width)
    page.until("document.querySelectorAll('canvas').length >= 8")
    page.save(SCREENSHOTS / f"replay-{scheme}-{width}.png")
    assert page.messages == []
    assert page.requested == [report.as_uri()]
    assert page.value("document.documentElement.scrollWidth") <= width
    sections = "[...document.querySelectorAll('section')]"
    named = "[one.querySelector('h2').innerText, one.querySelectorAll('canvas').length]"
    assert page.value(f"{sections}.map((one) => {named})") == [
        ["login", 2],
        ["search", 2],
        ["reports", 2],
        ["default", 2],
    ]
    assert page.value("document.title") == "Replay of an access log"
    assert page.value("document.images.length") == 0
    assert page.value("[...document.querySelectorAll('canvas')].every((one) => one.width > 200 && one.height > 100)")
    page.value("document.querySelector('section').scrollIntoView()")
    page.save(SCREENSHOTS / f"replay-charts-{scheme}-{width}.png")
