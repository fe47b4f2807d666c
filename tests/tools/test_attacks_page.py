"""Tests the program that attacks this and other packages, and the page with its results."""

from pathlib import Path

from attacks.attack import Attack, Seen
from attacks.table import ATTACKS
from benchmark_program import ROOT, run

PAGE = ROOT / "benchmarks" / "attacks.md"


def test_page_shows_that_ratelimit_mw_withstands_each_attack() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    names, places = [row[0] for row in rows[2:]], rows[0]
    assert names == [attack.name for attack in ATTACKS]
    for row, attack in zip(rows[2:], ATTACKS, strict=True):
        assert row[places.index("ratelimit_mw")] == f"held ({Seen([*attack.exact])})"


def test_program_writes_the_results_of_an_attack(tmp_path: Path) -> None:
    page = tmp_path / "attacks.md"
    done = run(tmp_path, "-m", "benchmarks.attacks", "--only", "a path in the Host header", "--output", str(page))
    assert done.returncode == 0, done.stderr
    assert "| held (3x200 3x429) |" in page.read_text("utf-8")
    assert "ratelimit_mw 1 of 1" in page.read_text("utf-8")


def test_attack_is_withstood_only_within_its_bounds_and_without_forgery() -> None:
    attack = Attack("", "", "", "", lambda _: Seen([]), (200, 429), most=1, least=1)
    for seen, held in ((Seen([200, 429]), True), (Seen([200, 200]), False), (Seen([429]), False)):
        assert attack.held(seen) is held
    assert not attack.held(Seen([200], forged=1))
    assert str(Seen([429, 200, 429], forged=2)) == "1x200 2x429, 2 forged"
