"""The tests run against what a user installs."""

import os
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import ratelimit_mw
from ratelimit_mw.algorithms import ALGORITHMS, SCRIPTED

PACKAGE = Path(ratelimit_mw.__file__).resolve().parent
CHECKOUT = Path(__file__).resolve().parent.parent


def test_the_package_under_test_is_the_installed_one() -> None:
    if os.environ.get("TEST_INSTALLED"):  # tox says so
        assert PACKAGE.is_relative_to(Path(sys.prefix).resolve())
    else:
        assert PACKAGE == CHECKOUT / "ratelimit_mw"


def test_all_files_are_there() -> None:
    source = CHECKOUT / "ratelimit_mw"
    wanted = {path.relative_to(source) for kind in ("*.py", "*.lua", "py.typed") for path in source.rglob(kind)}
    assert wanted == {path.relative_to(PACKAGE) for path in [PACKAGE / name for name in wanted] if path.is_file()}
    assert len({path for path in wanted if path.suffix == ".lua"}) == len(SCRIPTED) + 7


def test_every_algorithm_has_both_files_vectors_and_docs() -> None:
    page = (CHECKOUT / "docs/reference/algorithms.md").read_text("utf-8")
    assert set(ALGORITHMS) < set(SCRIPTED)
    for name, algorithm in SCRIPTED.items():
        assert algorithm.algorithm == name
        assert (PACKAGE / "algorithms" / f"{name}.py").is_file()
        assert (PACKAGE / "algorithms" / f"{name}.lua").is_file()
        assert (CHECKOUT / "tests/vectors" / f"{name}.json").is_file()
        assert f"\n## {name}\n" in page
    stems = {path.stem for path in (CHECKOUT / "ratelimit_mw/algorithms").iterdir() if path.suffix in (".py", ".lua")}
    assert stems - {"__init__"} == set(SCRIPTED)


def test_what_is_required() -> None:
    if not os.environ.get("TEST_INSTALLED"):
        return
    needs = [need for need in requires("ratelimit-mw") or [] if "extra ==" not in need]
    assert [need.partition(">")[0] for need in needs] == ["msgspec"]
    extras = metadata("ratelimit-mw").get_all("Provides-Extra") or []
    assert {"redis", "starlette", "fastapi"} <= set(extras)
    assert metadata("ratelimit-mw")["License-Expression"] == "MIT"
    assert not [need for need in requires("ratelimit-mw") or [] if "<" in need.partition(";")[0]]  # no upper pins
