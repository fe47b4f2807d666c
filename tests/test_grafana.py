"""The dashboard for Grafana begins with single numbers, and its panels and the alerts name pages that exist."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BOARD: dict[str, Any] = json.loads((ROOT / "examples/grafana/dashboard.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = BOARD["panels"]
LINKS: list[str] = [link["url"] for link in [*BOARD["links"], *(link for panel in PANELS for link in panel["links"])]]
RUNBOOKS = re.findall(r"^ +runbook: (\S+)$", (ROOT / "examples/grafana/alerts.yml").read_text("utf-8"), re.MULTILINE)


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    across, down = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return {(x, y) for x in across for y in down}


def test_first_row_has_single_numbers() -> None:
    first = [panel for panel in PANELS if panel["gridPos"]["y"] == 0]
    assert PANELS[: len(first)] == first
    assert {panel["type"] for panel in first} == {"stat"}
    assert [len(panel["targets"]) for panel in first] == [1] * 6
    assert {panel["gridPos"]["h"] for panel in first} == {4}
    assert [panel["gridPos"]["x"] for panel in first] == [0, 4, 8, 12, 16, 20]


def test_panels_fill_a_grid_of_24_columns_without_overlaps() -> None:
    occupied = [cell for panel in PANELS for cell in cells(panel)]
    height = max(y for _, y in occupied) + 1
    assert sorted(occupied) == [(x, y) for x in range(24) for y in range(height)]
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_each_query_is_for_the_selected_data_source_and_variables() -> None:
    variables = {"__rate_interval", *(variable["name"] for variable in BOARD["templating"]["list"])}
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["links"]
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
            assert target["expr"].count("ratelimit_") == target["expr"].count('instance=~"$instance"')


@pytest.mark.parametrize("link", [*LINKS, *RUNBOOKS])
def test_linked_page_and_section_exist(link: str) -> None:
    page, _, section = link.removeprefix("${docs:raw}/").removeprefix("docs/").partition("#")
    text = (ROOT / "docs" / page).with_suffix(".md").read_text("utf-8")
    assert Path(page).suffix == (".html" if link in LINKS else ".md")
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    assert section in {"", *(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)}


def test_every_alert_has_a_runbook() -> None:
    assert len(RUNBOOKS) == (ROOT / "examples/grafana/alerts.yml").read_text("utf-8").count("- alert: ")
