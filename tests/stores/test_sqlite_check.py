"""Tests `python -m ratelimit_mw check` with a SQLite store: what it reports, and that it creates no files."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.cli import main
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.sqlite import SQLiteStore, opening
from ratelimit_mw.stores.sqlite.inspection import inspect_file

pytestmark = pytest.mark.promise(9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder / "limits.db"


def check(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[str]]:
    file = path.parent.parent / "limits.toml"
    file.write_text(f'limits = "5/minute"\nstore = "sqlite://{path}"\n', "utf-8")
    code = main(["check", str(file), *options])
    return code, capsys.readouterr().out.replace(str(file), "FILE").replace(str(path.parent), "FOLDER").splitlines()


@pytest.mark.parametrize("options", [(), ("--wsgi",), ("--request", "GET /")])
def test_check_does_not_create_a_missing_file(
    path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    code, lines = check(path, capsys, *options)
    assert (code, lines[:2]) == (
        0,
        [
            "FILE: no mistakes; 0 rules, no warnings",
            "  store: FOLDER/limits.db does not exist yet; the first start creates it",
        ],
    )
    assert [*path.parent.iterdir()] == []


@pytest.mark.parametrize("options", [(), ("--wsgi",), ("--request", "GET /"), ("--store",)])
def test_check_does_not_create_the_metrics_folder(tmp_path: Path, options: tuple[str, ...]) -> None:
    file, folder = tmp_path / "limits.toml", tmp_path / "counts"
    file.write_text(f'limits = "5/minute"\nmetrics = true\nmetrics_folder = "{folder}"\n', "utf-8")
    assert main(["check", str(file), *options]) == 0
    assert [*tmp_path.iterdir()] == [file]


def test_missing_folder_is_a_warning(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.parent.rmdir()
    problem = "store: folder FOLDER does not exist; create it, with write permission for the app's user"
    expected = ["FILE: no mistakes; 0 rules, 1 warning", f"  {problem}"]
    assert check(path, capsys) == (0, expected)
    report = ["", "Store sqlite://FOLDER/limits.db:", f"  rejects this app: {problem}"]
    assert check(path, capsys, "--store") == (1, [*expected, *report])
    assert not path.parent.exists()
    with pytest.raises(ConfigError, match=r"folder .* does not exist"):
        SQLiteStore(path)


def test_check_reports_a_usable_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SQLiteStore(path).close()
    before = sorted(path.parent.iterdir())
    found = "FOLDER/limits.db can be read and written"
    expected = ["FILE: no mistakes; 0 rules, no warnings", f"  store: {found}"]
    report = ["", "Store sqlite://FOLDER/limits.db:", f"  {found}"]
    assert check(path, capsys, "--store") == (0, [*expected, *report])
    assert sorted(path.parent.iterdir()) == before


def test_check_warns_about_a_broken_file_and_does_not_move_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, problem in (
        (
            b"SQLite format 3\0" * 1000,
            "is broken (file is not a database); the next start moves it to FOLDER/limits.db.broken",
        ),
        (b"no database" * 1000, "is not an SQLite file; name another path, or remove the file"),
    ):
        path.write_bytes(content)
        expected = ["FILE: no mistakes; 0 rules, 1 warning", f"  store: FOLDER/limits.db {problem}"]
        assert check(path, capsys) == (0, expected)
        assert [*path.parent.iterdir()] == [path]


def test_unusable_file_is_a_config_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE users (name)")
    with pytest.raises(ConfigError, match="belongs to another program"):
        inspect_file(path)
    monkeypatch.setattr("os.access", lambda at, _: at != path)
    with pytest.raises(ConfigError, match=r"cannot use .* \(no permission to read and write it\); check its owner"):
        inspect_file(path)
    lock = Path(f"{path}.lock")
    lock.touch()
    monkeypatch.setattr("os.access", lambda at, _: at != lock)
    with pytest.raises(ConfigError, match=r"cannot use .*\.lock \(no permission to read and write it\); check its"):
        inspect_file(path)
    lock.unlink()
    monkeypatch.setattr("os.access", lambda at, _: at != path.parent)
    with pytest.raises(ConfigError, match=r"cannot write .*\.lock \(no write permission\); give the app's user"):
        inspect_file(path)
    monkeypatch.setattr(opening, "file_system", lambda _: "nfs4")
    with pytest.raises(ConfigError, match="network file system"):
        inspect_file(path)


def test_file_locked_by_another_connection_counts_as_usable(path: Path) -> None:
    SQLiteStore(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        assert inspect_file(path) == f"{path} can be read and written"


def test_gate_creates_the_file_at_its_start(path: Path) -> None:
    settings = Settings(limits="5/minute", store=f"sqlite://{path}")
    Gate(settings).close()
    assert path.exists()
    path.parent.joinpath("other").mkdir()
    AsyncGate(Settings(limits="5/minute", store=f"sqlite://{path.parent}/other/limits.db"))
    assert (path.parent / "other" / "limits.db").exists()
