"""Tests the HTML report of a replay, opened as a file in a real browser. Screenshots: docs/_build/screenshots."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.devtools import BEYOND, Page, browser
from replay.day import report_of_the_day

SCREENSHOTS = Path(__file__).resolve().parents[2] / "docs/_build/screenshots"
LEGENDS = """[...document.querySelectorAll(".u-legend")].map((legend) =>
  [...legend.querySelectorAll(".u-series")].map((one) =>
    [one.querySelector(".u-label").innerText, one.querySelector(".u-value").innerText]))"""
ROWS = """[...document.querySelectorAll(".table")].map((table) => [...table.querySelectorAll("tbody tr")].map((row) =>
  [...row.cells].map((cell) => [getComputedStyle(cell, "::before").content, cell.innerText,
    cell.getBoundingClientRect().top])))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (path := folder / "report.html").write_text(report_of_the_day(folder), "utf-8")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path) as page:
        yield page


def test_report_of_a_day_has_at_most_250_kilobytes(report: Path) -> None:
    assert report.stat().st_size <= 250_000


@pytest.mark.parametrize("width", [390, 1300])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_loads_no_other_file_and_fits_the_window(page: Page, report: Path, width: int, scheme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.open(report.as_uri(), width)
    page.until("document.querySelectorAll('canvas').length >= 8")
    page.save(SCREENSHOTS / f"replay-{scheme}-{width}.png")
    assert page.messages == []
    assert page.requested == [report.as_uri()]
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(BEYOND) == []
    sections = "[...document.querySelectorAll('section')]"
    named = "[one.querySelector('h2').innerText, one.querySelectorAll('canvas').length]"
    assert page.value(f"{sections}.map((one) => {named})") == [
        ["login", 3],  # it has two limits
        ["search", 2],
        ["reports", 2],
        ["default", 2],
    ]
    assert page.value("document.title") == "Replay of an access log"
    assert page.value("document.images.length") == 0
    assert page.value("[...document.querySelectorAll('canvas')].every((one) => one.width > 200 && one.height > 100)")
    page.value("document.querySelector('section').scrollIntoView()")
    page.save(SCREENSHOTS / f"replay-charts-{scheme}-{width}.png")
    page.value("[...document.querySelectorAll('h2')].at(-1).scrollIntoView()")
    page.save(SCREENSHOTS / f"replay-suggestions-{scheme}-{width}.png")


def test_narrow_window_shows_rows_as_cards(page: Page, report: Path) -> None:
    page.open(report.as_uri(), 1300)
    rules = page.value(ROWS)[0]
    login = ["login", "6,618", "2,445", "36.9 %", "2"]
    assert [text for _, text, _ in rules[0]] == login
    assert {name for row in rules for name, _, _ in row} == {"none"}
    assert all(len({top for _, _, top in row}) == 1 for row in rules)
    page.open(report.as_uri(), 390)
    rules, *others = page.value(ROWS)
    [suggestions] = [rows for rows in others if len(rows[0]) == 4]
    names = ['"requests"', '"refused"', '"share"', '"clients touched"']
    assert [(name, text) for name, text, _ in rules[0]] == list(zip(["none", *names], login, strict=True))
    for rows in (rules, suggestions):
        assert all(sorted({top for _, _, top in row}) == [top for _, _, top in row] for row in rows)
    assert [name for name, _, _ in suggestions[0]] == [
        "none",
        '"window"',
        '"peak: half / 99 % / all"',
        '"a clear gap?"',
    ]
    most = [row for rows in others for row in rows if len(row) == 6]
    assert [text for _, text, _ in most[0]] == [
        "198.51.100.8",
        "2,444",
        "11-15 06:33:40 to 11-15 09:19:56",
        "GET /login",
        "200 500",
        "1",
    ]
    assert [name for name, _, _ in most[0]][1:] == [
        '"refused"',
        '"when, UTC"',
        '"most often"',
        '"statuses"',
        '"agents"',
    ]
    for width in (320, 767, 769, 980):
        page.open(report.as_uri(), width)
        assert (width, page.value(BEYOND)) == (width, [])


@pytest.mark.parametrize("width", [390, 1300])
def test_legends_show_the_sums_or_the_values_at_the_pointer(page: Page, report: Path, width: int) -> None:
    page.open(report.as_uri(), width)
    legends = page.value(LEGENDS)
    assert len(legends) == 9
    assert all(label and value for legend in legends for label, value in legend)
    assert legends[0] == [["UTC", "11-14 22:19 to 11-15 22:03"], ["admitted", "4,173"], ["refused", "2,445"]]
    assert legends[1] == [["peak", "any"], ["clients within the quota", "1,187"], ["above it in a window", "2"]]
    for place, label in ((0, "UTC"), (1, "peak")):
        page.value(f"document.querySelectorAll('.u-over')[{place}].scrollIntoView({{block: 'center'}})")
        box = f"document.querySelectorAll('.u-over')[{place}].getBoundingClientRect()"
        left, top, wide, high = page.value(f"[{box}.left, {box}.top, {box}.width, {box}.height]")
        for part in (0.4, 0.9):
            page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + part * wide, y=top + high / 2)
            page.until(f"{LEGENDS}[{place}][0][1] !== {legends[place][0][1]!r}")
            pointed = page.value(LEGENDS)[place]
            assert pointed[0][0] == label
            assert all(value for _, value in pointed)
            assert page.value(BEYOND) == []
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        page.until(f"{LEGENDS}[{place}][0][1] === {legends[place][0][1]!r}")
    assert page.value(LEGENDS) == legends
    assert page.messages == []
