"""Tests that benchmarks with `--against` run the right trees and count correctly. No test depends on speed."""

import compileall
import json
import os
import subprocess
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree

import pytest

from benchmark_program import PACKAGE, ROOT, SMALL, put_wrk, row, run, written
from ratelimit_mw import asgi

REFUSES = """
class RateLimitMiddleware:
    def __init__(self, app, limits): ...

    async def __call__(self, scope, receive, send):
        headers = [(b"ratelimit", b""), (b"ratelimit-policy", b"")]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
"""
ADMITTED = ("memory-default", "memory-token", "asgi-added", "wsgi-added", "rules-added")


def git(folder: Path, *arguments: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    done = subprocess.run(
        ["git", *who, *arguments],  # noqa: S607
        cwd=folder,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: Path, title: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", title)
    return git(folder, "rev-parse", "--short", "HEAD")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of three commits: the program alone, a package that only refuses, the package under test."""
    folder = tmp_path_factory.mktemp("repository")
    copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text("__pycache__\n*.json\n")
    git(folder, "init", "--quiet")
    commit(folder, "no package")
    (folder / "ratelimit_mw").mkdir()
    (folder / "ratelimit_mw" / "__init__.py").touch()
    (folder / "ratelimit_mw" / "asgi.py").write_text(REFUSES)
    commit(folder, "refuses")
    rmtree(folder / "ratelimit_mw")
    copytree(PACKAGE, folder / "ratelimit_mw", ignore=ignore_patterns("__pycache__"))
    commit(folder, "the package")
    compileall.compile_dir(folder, quiet=1)  # once, instead of at the start of each test's program
    return folder


@pytest.fixture
def checkout(repository: Path, tmp_path: Path) -> Path:
    """Return a copy of the repository, which a test may change."""
    return copytree(repository, tmp_path / "checkout")


def against(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(checkout), "GIT_CEILING_DIRECTORIES": str(checkout.parent)} | environment
    return run(checkout, "-m", "benchmarks", "--json", "it.json", "--against", *arguments, **own)


def test_rows_of_both_trees_have_the_expected_counts(checkout: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    put_wrk(tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = against(checkout, "HEAD", *SMALL, TMPDIR=str(temporary), PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    short = git(checkout, "rev-parse", "--short", "HEAD")
    assert f"\nagainst {short} the package\n" in done.stdout
    assert f" this us  {short} us " in done.stdout
    for name in ADMITTED:
        assert row(done.stdout, name)[-2:] == ["40", "0"]
    assert row(done.stdout, "memory-refused")[-2:] == ["0", "40"]
    rows = written(checkout / "it.json")
    for name in ("served-memory", "served-redis"):
        assert (rows[name]["admitted"] > 0, rows[name]["refused"]) == (True, 0)
        assert rows[name]["ours"] > 0 < rows[name]["peer"]
    assert {name: found["target"] for name, found in rows.items() if found["target"]} == {"asgi-added": 1.1}
    for found in rows.values():
        assert (len(found["values"]), found["problems"], found["notes"]) == (2, [], [])
    assert json.loads((checkout / "it.json").read_text())["against"] == f"{short} the package"
    assert not list(temporary.iterdir())


def test_benchmark_runs_the_package_of_the_commit(checkout: Path) -> None:
    done = against(checkout, "HEAD~1", "--only", "asgi-added", *SMALL)
    assert done.returncode == 1, done.stdout + done.stderr
    found = written(checkout / "it.json")["asgi-added"]
    assert (found["admitted"], found["refused"]) == (40, 0)
    assert found["problems"] == ["peer: 0 admitted and 20 refused, not 20 and 0"] * 2


def test_server_imports_the_package_of_the_commit(checkout: Path, tmp_path: Path) -> None:
    put_wrk(tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = against(checkout, "HEAD~1", "--only", "served-memory", *SMALL, PATH=path)
    assert done.returncode == 1
    assert "TypeError: RateLimitMiddleware.__init__() got an unexpected keyword argument 'store'" in done.stderr


def test_rounds_run_in_successive_workers(checkout: Path) -> None:
    done = against(checkout, "HEAD", "--only", "memory-refused", "--rounds", "21", "--calls", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    found = written(checkout / "it.json")["memory-refused"]
    assert (found["admitted"], found["refused"], found["problems"]) == (0, 105, [])


def test_import_missing_in_the_commit_is_noted(checkout: Path) -> None:
    done = against(checkout, "HEAD~1", "--only", "memory-default", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    found = written(checkout / "it.json")["memory-default"]
    assert (found["admitted"], found["refused"], found["values"]) == (40, 0, [])
    assert "ImportError: cannot import name 'Charge'" in found["notes"][0]


def test_uncommitted_changes_are_measured(checkout: Path) -> None:
    (checkout / Path(str(asgi.__file__)).relative_to(PACKAGE.parent)).write_text(REFUSES)
    done = against(checkout, "HEAD", "--only", "asgi-added", *SMALL)
    assert done.returncode == 1, done.stdout + done.stderr
    found = written(checkout / "it.json")["asgi-added"]
    assert found["problems"] == ["ours: 0 admitted and 20 refused, not 20 and 0"] * 2


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nope", "no such commit"),
        ("--all", "expected one argument"),
        ("HEAD~2", "ratelimit_mw"),
        ("HEAD:benchmarks", "no such"),
    ],
)
def test_invalid_commit_is_an_error(checkout: Path, name: str, told: str) -> None:
    done = against(checkout, name, *SMALL)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_git_or_repository_is_an_error(checkout: Path) -> None:
    done = against(checkout, "HEAD", PATH=str(checkout))
    assert done.returncode == 2
    assert done.stderr.endswith("--against HEAD: git: not on PATH\n")
    rmtree(checkout / ".git")
    done = against(checkout, "HEAD")
    assert done.returncode == 2
    assert "not a git repository" in done.stderr


def test_row_that_cannot_compare_trees_is_an_error_with_valid_rows(checkout: Path) -> None:
    done = against(checkout, "HEAD", "--only", "lua")
    assert done.returncode == 2
    assert "asgi-added" in done.stderr
