"""The files of a SQLite store: which users can read and write them, and which files the store leaves alone."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ratelimit_mw import Charge, ConfigError, FixedWindow
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.stores.url import open_store

TEN = FixedWindow(10, 60)
TAKE = [Charge("k", TEN)]
ENDINGS = ("", "-wal", "-shm", ".lock")

WORKER = """
import os, sys
from ratelimit_mw import Charge, FixedWindow
from ratelimit_mw.stores.sqlite import SQLiteStore
path, user, group, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
os.umask(0o077)
store = SQLiteStore(path, timeout=5)
assert store.take([Charge("k", FixedWindow(10, 60))])[0].remaining == left
print(*(f"{os.stat(path + ending).st_mode & 0o777:o}" for ending in ("", "-wal", "-shm", ".lock")), flush=True)
if left == 9:
    os._exit(0)  # without closing, so that the next worker finds all files
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


def modes(path: Path) -> list[int]:
    return [Path(f"{path}{ending}").stat().st_mode & 0o777 for ending in ENDINGS]


def work_as(path: Path, user: int, group: int, left: int) -> str:
    """Take one unit in a process of another user, and return the permissions of the files."""
    command = [sys.executable, "-c", WORKER, str(path), str(user), str(group), str(left)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.promise(8)
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_only_the_user_of_the_app_can_read_and_lock_new_files(path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with closing(SQLiteStore(path, timeout=5)) as store:
            store.take(TAKE)
            assert modes(path) == [0o600] * 4
            path.unlink()
        with closing(SQLiteStore(path, timeout=5)) as store:
            store.take(TAKE)
            assert modes(path) == [0o600] * 4
    finally:
        os.umask(before)


@pytest.mark.promise(8)
def test_users_of_a_group_share_a_file_created_for_the_group() -> None:
    group = 65533 if os.getuid() == 0 else os.getgid()
    with TemporaryDirectory() as name:  # not in `tmp_path`, which others cannot enter
        folder, path = Path(name), Path(name) / "limits.db"
        os.chown(folder, -1, group)
        folder.chmod(0o2770)
        path.touch()
        path.chmod(0o660)
        assert work_as(path, 65532, group, 9) == "660 660 660 660\n"
        assert work_as(path, 65531, group, 8) == "660 660 660 660\n"
        path.write_bytes(b"SQLite format 3\0 but broken")
        assert work_as(path, 65531, group, 9) == "660 660 660 660\n"  # the group can use the new file too
        assert work_as(path, 65532, group, 8) == "660 660 660 660\n"
        path.unlink()
        assert work_as(path, 65532, group, 9) == "660 660 660 660\n"


def test_permissions_of_an_existing_file_stay(path: Path) -> None:
    SQLiteStore(path).close()
    path.chmod(0o644)
    Path(f"{path}.lock").unlink()
    with closing(SQLiteStore(path, timeout=5)) as store:
        store.take(TAKE)
        assert modes(path) == [0o644] * 4


@pytest.mark.promise(9)
def test_files_of_another_user_are_a_config_error() -> None:
    with TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "limits.db"
        SQLiteStore(path).close()
        folder.chmod(0o777)
        if os.getuid() != 0:
            Path(f"{path}.lock").chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", WORKER, str(path), "65532", "65533", "9"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert f"store: cannot use {path}.lock (Permission denied); check its owner and its permis" in done.stderr


@pytest.mark.promise(9)
@pytest.mark.parametrize("start", [b"a text\n", b"a text of some length\n" * 500, b"SQLite format 4\0" * 100])
def test_file_that_is_not_a_database_is_a_config_error_and_stays_unchanged(path: Path, start: bytes) -> None:
    path.write_bytes(start)
    with pytest.raises(ConfigError, match=r"limits\.db is not an SQLite file; name another path, or remove the file"):
        SQLiteStore(path)
    assert path.read_bytes() == start
    assert not Path(f"{path}.broken").exists()


@pytest.mark.promise(8)
@pytest.mark.parametrize("start", [b"SQLite format 3\0" * 100, b"SQLite for", bytes(4096)])
def test_database_with_a_broken_header_is_moved_aside(path: Path, start: bytes) -> None:
    path.write_bytes(start)
    with closing(SQLiteStore(path, timeout=5)) as store:
        assert store.take(TAKE)[0].remaining == 9
    assert Path(f"{path}.broken").read_bytes() == start


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with closing(SQLiteStore(path, timeout=5)) as store:
        assert store.take(TAKE)[0].remaining == 9
    assert not Path(f"{path}.broken").exists()


def test_store_follows_a_link_to_a_name_with_special_characters(tmp_path: Path) -> None:
    target, link = tmp_path / "my ?#%20limits.db", tmp_path / "link.db"
    link.symlink_to(target)
    with closing(SQLiteStore(link, timeout=5)) as store, closing(SQLiteStore(target, timeout=5)) as other:
        assert [one.take(TAKE)[0].remaining for one in (store, other)] == [9, 8]
        assert modes(target) == [0o600] * 4


@pytest.mark.promise(9)
@pytest.mark.parametrize("url", ["sqlite://:memory:", "sqlite:///:memory:", "sqlite:////run/:memory:"])
def test_memory_path_is_a_config_error_that_names_the_memory_scheme(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"got :memory:, expected the path of a file; for a store in .* use memory://"
    ):
        open_store(url, 1.0)
    with pytest.raises(ConfigError, match="use memory://"):
        SQLiteStore(":memory:")


@pytest.mark.promise(9)
def test_named_pipe_is_a_config_error(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is no regular file, expected the path of a file"):
        SQLiteStore(path)
