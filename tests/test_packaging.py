"""The tests run against the package as a user installs it, and the package is complete."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata, requires, version
from pathlib import Path

import pytest

import ratelimit_mw
from ratelimit_mw.algorithms import ALGORITHMS, SCRIPTED
from test_layers import THIRD_PARTY

PACKAGE = Path(ratelimit_mw.__file__).resolve().parent
CHECKOUT = Path(__file__).resolve().parent.parent
EXTRAS = {"prometheus_client": "prometheus"}  # libraries whose extra has another name
INSTALLED = bool(os.environ.get("TEST_INSTALLED"))  # set by tox
of_the_wheel = pytest.mark.skipif(not INSTALLED, reason="needs the metadata of the built wheel; type: tox")


def test_tests_run_against_the_installed_package_or_the_checkout() -> None:
    if INSTALLED:
        assert PACKAGE.is_relative_to(Path(sys.prefix).resolve())
    else:
        assert PACKAGE == CHECKOUT / "ratelimit_mw"


def test_package_contains_all_files() -> None:
    source = CHECKOUT / "ratelimit_mw"
    kinds = ("*.py", "*.lua", "py.typed", "assets/**/*")
    wanted = {path.relative_to(source) for kind in kinds for path in source.rglob(kind) if path.is_file()}
    assert wanted == {path.relative_to(PACKAGE) for path in [PACKAGE / name for name in wanted] if path.is_file()}
    assert len({path for path in wanted if path.suffix == ".lua"}) == len(SCRIPTED) + 17


def test_every_algorithm_has_both_files_vectors_and_docs() -> None:
    page = (CHECKOUT / "docs/reference/algorithms.md").read_text("utf-8")
    assert set(ALGORITHMS) < set(SCRIPTED)
    for name, algorithm in SCRIPTED.items():
        assert algorithm.algorithm == name
        assert (PACKAGE / "algorithms" / f"{name}.py").is_file()
        assert (PACKAGE / "algorithms" / f"{name}.lua").is_file()
        assert (CHECKOUT / "tests/vectors" / f"{name}.json").is_file()
        assert f"\n## {name}\n" in page
    assert {path.stem for path in (CHECKOUT / "ratelimit_mw/algorithms").glob("*.lua")} == set(SCRIPTED)


def test_the_version_is_the_same_everywhere() -> None:
    installed = version("ratelimit-mw")
    assert re.fullmatch(r"\d+\.\d+\.\d+", installed)
    assert ratelimit_mw.__version__ == installed
    for command in ([sys.executable, "-m", "ratelimit_mw"], [str(Path(sys.executable).with_name("ratelimit-mw"))]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"ratelimit-mw {installed}\n"


def test_security_policy_lists_this_version() -> None:
    minor = ratelimit_mw.__version__.rpartition(".")[0]
    assert f"\n| {minor}.x | yes |\n" in (CHECKOUT / "SECURITY.md").read_text("utf-8")


@of_the_wheel
def test_metadata_contains_the_readme_without_relative_links() -> None:
    shown = str(metadata("ratelimit-mw"))
    assert "\n# ratelimit_mw\n" in shown
    assert re.findall(r"\]\((?!https:)[^)]*\)", shown) == []


def test_importing_the_package_reads_no_metadata() -> None:
    code = "import sys, ratelimit_mw; print(ratelimit_mw.__version__, 'importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [ratelimit_mw.__version__, "False"]


def test_the_extra_all_has_every_framework_and_store() -> None:
    known = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (everything,) = known["all"]
    assert set(everything.partition("[")[2].rstrip("]").split(",")) == set(known) - {"all", "demo"}


def test_every_client_and_framework_with_a_module_of_its_own_has_an_extra() -> None:
    known = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {name for name, places in THIRD_PARTY.items() if name in {place.rpartition(".")[2] for place in places}}
    named |= EXTRAS.keys()
    assert {EXTRAS.get(name, name) for name in named} == set(known) - {"all", "demo", "serve"}


@of_the_wheel
def test_metadata_requires_only_msgspec_without_upper_pins() -> None:
    needs = [need for need in requires("ratelimit-mw") or [] if "extra ==" not in need]
    assert [need.partition(">")[0] for need in needs] == ["msgspec"]
    extras = metadata("ratelimit-mw").get_all("Provides-Extra") or []
    named = {"redis", "starlette", "fastapi", "flask", "django", "prometheus", "opentelemetry"}
    assert set(extras) == named | {"serve", "grpc", "all", "demo"}
    assert metadata("ratelimit-mw")["License-Expression"] == "MIT"
    assert not [need for need in requires("ratelimit-mw") or [] if "<" in need.partition(";")[0]]  # no upper pins
