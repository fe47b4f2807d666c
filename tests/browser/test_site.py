"""Tests the built docs in a real browser, with windows as wide as a phone and as a desktop screen.

The pages are served on loopback and request nothing from other hosts. Screenshots: docs/_build/screenshots.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest

from browser.devtools import Page, browser

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "docs/_build/screenshots"
QUESTIONS = tomllib.loads((Path(__file__).parent / "questions.toml").read_text("utf-8"))
WIDTHS = [390, 1300]
NAMES = sorted(
    str(path.relative_to(ROOT / "docs").with_suffix(""))
    for path in (ROOT / "docs").rglob("*.md")
    if "_build" not in path.parts
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "docs", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as page:
        yield page


def look(page: Page, site: str, name: str, width: int, query: str = "") -> None:
    page.open(f"{site}/{name}.html{query}", width)
    assert page.value("document.documentElement.scrollWidth") <= width


def keep(page: Page, name: str, width: int) -> None:
    """Save a screenshot, and check that the console is empty and that the page requested nothing from other hosts."""
    page.save(SCREENSHOTS / f"{name}-{width}.png")
    assert page.messages == []
    assert [url for url in page.requested if not url.startswith(("http://127.0.0.1:", "data:"))] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_front_page_shows_six_cards(page: Page, site: str, width: int) -> None:
    look(page, site, "index", width)
    assert page.value("document.querySelectorAll('.sd-card').length") == 6
    keep(page, "front", width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_tutorial_shows_one_framework_at_a_time(page: Page, site: str, width: int) -> None:
    look(page, site, "tutorial/first-app", width)
    page.value("document.querySelector('label[data-sync-id=flask]').click()")
    shown = "[...document.querySelectorAll('.sd-tab-content pre')].filter((one) => one.checkVisibility()).length"
    assert page.value(shown) == 3  # the commands to install, the app, the command to serve
    assert "from flask import" in page.value("document.body.innerText")
    assert "from fastapi import" not in page.value("document.body.innerText")
    keep(page, "tutorial", width)


@pytest.mark.parametrize("width", WIDTHS)
def test_each_page_fits_into_the_window(page: Page, site: str, width: int) -> None:
    wide = "[...document.querySelectorAll('.table-wrapper')].filter((one) => one.scrollWidth > one.clientWidth)"
    for name in NAMES:
        look(page, site, name, width)
        page.until("document.querySelectorAll('.highlight-mermaid').length === 0")
        assert (name, page.value(f"{wide}.length")) == (name, 0)
    assert page.messages == []


def test_wide_table_shows_rows_as_lists_in_a_narrow_window(page: Page, site: str) -> None:
    cell = "document.querySelector('.table-wrapper tbody tr').cells[3]"
    label = f"getComputedStyle({cell}, '::before').content"
    look(page, site, "reference/settings", 1300)
    assert page.value(label) == "none"
    look(page, site, "reference/settings", 390)
    assert "meaning" in page.value(label)
    assert page.value(f"{cell}.getBoundingClientRect().right") <= 390
    keep(page, "settings", 390)
    look(page, site, "explanation/faults", 1300)  # long names are broken on this page, so that the matrix stays a table
    assert page.value("document.querySelectorAll('.broken-names').length") == 1
    assert page.value("document.querySelectorAll('.rows-as-lists').length") == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_dark_color_scheme_shows_a_dark_page(page: Page, site: str, width: int) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    look(page, site, "explanation/architecture", width)
    page.until("document.querySelectorAll('figure.diagram svg').length === 2")
    color = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert max(page.value(color)) < 32
    keep(page, "dark", width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_search_finds_a_page(page: Page, site: str, width: int) -> None:
    look(page, site, "search", width, "?q=password")
    page.until("document.querySelectorAll('#search-results li').length > 2")
    assert "Stop password guessing" in page.value("document.querySelector('#search-results').innerText")
    keep(page, "search", width)


def test_the_search_finds_the_page_that_answers(page: Page, site: str) -> None:
    links = "[...document.querySelectorAll('#search-results li > a')].map((one) => one.getAttribute('href'))"
    missed = {}
    for question, answer in QUESTIONS.items():
        look(page, site, "search", 1300, f"?q={quote(question)}")
        page.until("document.querySelector('.search-summary')?.innerText")  # when all results are listed
        first = page.value(f"{links}.slice(0, 3)")
        if answer not in [link.partition(".html")[0] for link in first]:
            missed[question] = first
    assert len(QUESTIONS) == 53
    assert missed == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_drawn_algorithms_decide_as_the_python_ones(page: Page, site: str, width: int) -> None:
    look(page, site, "explanation/algorithms-drawn", width)
    assert page.value("document.querySelectorAll('#algorithms figure').length") == 7
    same, stored = page.value("Object.values(document.getElementById('algorithms').dataset)")
    assert same == stored
    assert int(stored) > 0
    keep(page, "algorithms", width)
    first = "document.querySelector('#algorithms figcaption').innerText"
    assert "fixed_window 15 of 28 admitted" in page.value(first)
    page.value("Object.assign(document.querySelector('select'), {value: 'none'}).dispatchEvent(new Event('change'))")
    assert "0 of 0 admitted" in page.value(first)
    box = "document.querySelector('.strip').getBoundingClientRect()"
    left, top, wide = page.value(f"[{box}.left, {box}.top, {box}.width]")
    for kind, part in (("mousePressed", 0.1), ("mouseMoved", 0.2), ("mouseMoved", 0.3), ("mouseReleased", 0.3)):
        place = {"x": left + part * wide, "y": top + 5, "button": "left", "clickCount": 1}
        page.call("Input.dispatchMouseEvent", type=kind, **place)
    page.until(f"{first}.includes('3 of 3 admitted')")
    assert page.messages == []


def test_diagrams_are_drawn(page: Page, site: str) -> None:
    look(page, site, "explanation/architecture", 1300)
    page.until("document.querySelectorAll('figure.diagram svg').length === 2")
    page.value("document.querySelector('figure.diagram').scrollIntoView()")
    keep(page, "diagram", 1300)
