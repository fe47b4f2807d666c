"""The diagrams of docs/explanation/architecture.md match the code."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from checking import python
from redis_servers import RedisServer
from test_layers import RANK, SOURCES, graph, reached

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
FENCE = re.compile(r"^```mermaid\n(\w+).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LONGEST = 15  # steps of a diagram that can be read without scrolling

DIAGRAMS = dict(FENCE.findall(PAGE.read_text("utf-8")))


@pytest.fixture(scope="module")
def url(redis_servers: Mapping[str, RedisServer]) -> str:
    return next(iter(redis_servers.values())).url


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python(str(ROOT / "docs/from_code.py"), "architecture", *arguments)


def test_diagrams_match_the_code(url: str) -> None:
    done = run("--check", "--redis", url)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_check_of_a_stale_page_prints_the_difference_and_the_fix(url: str, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "explanation" / PAGE.name
    page.parent.mkdir(parents=True)
    stale = (
        PAGE.read_text("utf-8").replace("wsgi --> engine", "wsgi --> rules").replace("short_way() → Way", "short_way()")
    )
    page.write_text(stale, "utf-8")

    there = ("--root", str(tmp_path), "--redis", url)
    shown = run("--check", *there)
    assert shown.returncode == 1
    assert "-    wsgi --> rules\n" in shown.stdout
    assert "+    wsgi --> engine\n" in shown.stdout
    assert "+    engine->>rules: RuleSet.short_way() → Way\n" in shown.stdout
    assert "python docs/from_code.py architecture" in shown.stdout
    assert run(*there).returncode == 0
    assert page.read_text("utf-8") == PAGE.read_text("utf-8")


def test_arrows_between_packages_match_the_imports() -> None:
    arrows: dict[str, set[str]] = {package: set() for package in RANK}
    for source, target in re.findall(r"(\w+) --> (\w+)", DIAGRAMS["flowchart"]):
        arrows[source].add(target)
    imports: dict[str, set[str]] = {package: set() for package in RANK}
    for module, others in graph(SOURCES).items():
        if (package := module.partition(".")[0]) in RANK:
            imports[package] |= {other.partition(".")[0] for other in others} - {package}
    assert {package: reached(arrows, package) for package in RANK} == {
        package: reached(imports, package) for package in RANK
    }
    for package, targets in arrows.items():  # no arrow is implied by a longer path
        assert targets <= imports[package]
        assert not targets & {far for near in targets for far in reached(arrows, near)}


def test_request_diagram_starts_and_ends_at_the_server_in_few_steps() -> None:
    steps = re.findall(r"(\w+)->>(\w+): (.+)", DIAGRAMS["sequenceDiagram"])
    assert len(steps) < LONGEST
    assert steps[0][0] == steps[-1][1] == "server"
    assert ("stores", "Redis", "EVALSHA") in steps
    assert ("engine", "rules", "RuleSet.short_way() → Way") in steps
    assert ("asgi", "http", "raw_headers()") in steps
