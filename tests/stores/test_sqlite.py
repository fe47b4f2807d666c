"""The SQLite store: where its file may be, which faults it survives, how it stays small, asyncio and forks."""

import asyncio
import errno
import gc
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec import Struct

from profiles import PROOF
from ratelimit_mw import (
    Charge,
    Concurrency,
    ConfigError,
    Decision,
    FixedWindow,
    Limit,
    Limiter,
    MemoryStore,
    SlidingWindowLog,
    StoreError,
    TokenBucket,
)
from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.stores.inventory import AsyncInventory, Inventory, KeyPage, Refusal
from ratelimit_mw.stores.sqlite import SQLiteStore, opening
from ratelimit_mw.stores.sqlite.room import LIMITS, STATES
from ratelimit_mw.stores.url import open_async_store, open_store
from ratelimit_mw.testing import Clock, freeze
from stores.model_store import ModelStore
from stores.random_steps import RandomSteps

TEN = FixedWindow(10, 60)
TAKE = [Charge("k", TEN)]
STEPS = 20_000 if PROOF else 150


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(path, clock=clock, timeout=5, deny_cache=0)) as store:
        yield store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Hold the file's write lock."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as other:
        found: int = other.execute(f"SELECT count(*) FROM {STATES}").fetchone()[0]
        (counted,) = other.execute(f"SELECT keys FROM {LIMITS} WHERE bucket = x''").fetchone()
        (of_limits,) = other.execute(f"SELECT coalesce(sum(keys), 0) FROM {LIMITS} WHERE bucket != x''").fetchone()
    assert found == counted == of_limits
    return found


def left(store: SQLiteStore, key: str = "k", limit: Limit = TEN) -> int:
    return store.peek([Charge(key, limit, 0)])[0].remaining


# where the file may be


@pytest.mark.parametrize("opened", [open_store, open_async_store])
@pytest.mark.parametrize("slashes", ["//", "///"])
def test_url_contains_the_absolute_path_of_the_file(path: Path, opened: Any, slashes: str) -> None:
    store = opened(f"sqlite:{slashes}{path}", 5)
    assert isinstance(store, SQLiteStore)
    assert store.path == path
    assert store.take(TAKE)[0].remaining == 9
    store.close()
    assert rows(path) == 1


def test_url_path_is_percent_decoded(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/my%20limits%2B.db", 5)
    assert isinstance(store, SQLiteStore)
    assert store.path == tmp_path / "my limits+.db"


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("sqlite://limits.db", "path 'limits.db', expected that of a file, from the root: sqlite:///run/"),
        ("sqlite://", "path '', expected that of a file"),
        ("sqlite:///run/app/", "path '/run/app/', expected that of a file"),
        ("sqlite:///run/app/x.db?max_keys=5", "sqlite:// has no options; create a SQLiteStore with them"),
        ("sqlite:///no/such/folder/x.db", "folder /no/such/folder does not exist; create it, with write permission"),
        ("sqlite:///usr/bin", "/usr/bin is a folder, expected the path of a file"),
        (
            "sqlite:///limits.db",
            "path '/limits.db', directly in /, expected a file in a folder: paths begin at the root, so sqlite:///run/app",
        ),
        ("sqlite:////limits.db", "got the path '/limits.db', directly in /, expected a file in a folder"),
        ("sqlite:///run/../limits.db", "got the path '/limits.db', directly in /, expected a file in a folder"),
        ("sqlit:///run/app/x.db", "got the scheme 'sqlit', did you mean"),
    ],
)
def test_invalid_url_is_a_config_error(given: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(given, 1.0)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_keys": 0}, "max_keys: got 0"),
        ({"timeout": 0}, "timeout: got 0"),
        ({"deny_cache": -1}, "deny_cache: got -1"),
        ({"clock": 5}, "clock: got 5"),
        ({"path": 5}, "path: got 5"),
        ({"path": b"/tmp/x.db"}, "path: got b'"),
    ],
)
def test_invalid_argument_is_a_config_error(options: dict[str, Any], told: str, path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        SQLiteStore(**{"path": path, **options})
    assert told in str(raised.value)


READ_ONLY = """
import os, sys
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.stores.sqlite import SQLiteStore
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    SQLiteStore(sys.argv[1])
except ConfigError as error:
    print(error)
"""


def as_nobody(path: Path) -> str:
    """Return the error that a user without any rights gets."""
    return subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True, check=True, cwd="/"
    ).stdout


@pytest.mark.promise(9)
def test_read_only_folder_or_file_is_a_config_error() -> None:
    with TemporaryDirectory() as name:  # not in `tmp_path`, which others cannot enter
        folder = Path(name)
        path = folder / "limits.db"
        folder.chmod(0o555)
        assert f"store: cannot write {path}.lock (Permission denied); give the app's user" in as_nobody(path)
        folder.chmod(0o777)
        SQLiteStore(path).close()
        assert f"store: cannot use {path}.lock (Permission denied); check its owner" in as_nobody(path)
        path.chmod(0o444)
        Path(f"{path}.lock").chmod(0o666)
        assert f"store: cannot use {path} (attempt to write a readonly database); check its owner" in as_nobody(path)


@pytest.mark.promise(9)
def test_network_file_system_is_a_config_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "file_system", lambda _: "nfs4")
    with pytest.raises(ConfigError, match=r"is on a network file system \(nfs4\)"):
        SQLiteStore(path)


def test_a_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    (tmp_path / "a b" / "c").mkdir(parents=True)
    escaped = str(tmp_path).replace(" ", "\\040")
    mounts.write_text(f"/dev/x / ext4 rw 0 0\nhost:/x {escaped}/a\\040b nfs4 rw 0 0\nshort\n")
    found = [opening.file_system(folder, mounts) for folder in (tmp_path, tmp_path / "a b", tmp_path / "a b" / "c")]
    assert found == ["ext4", "nfs4", "nfs4"]
    assert opening.file_system(tmp_path, tmp_path / "nothing") == ""


@pytest.mark.promise(9)
def test_file_system_without_flock_is_a_config_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(ConfigError, match=r"does not support flock \(No locks available\); use a folder"):
        SQLiteStore(path)


def test_file_of_another_program_is_a_config_error_and_stays_unchanged(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE users (name)")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="belongs to another program"):
        SQLiteStore(path)
    assert path.read_bytes() == before
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA application_id = {opening.APPLICATION_ID}")
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(ConfigError, match="has format 7, expected 1"):
        SQLiteStore(path)
    assert not Path(f"{path}.broken").exists()


# faults that the store survives


def broken(path: Path, how: str) -> None:
    with path.open("r+b") as file:
        if how == "garbage":
            file.truncate(0)
            file.write(b"no database" * 1000)
        elif how == "header":
            file.seek(16)
            file.write(b"no database" * 1000)
        else:
            file.seek(1024)
            file.write(b"\xff" * 20_000)


@pytest.mark.promise(8)
@pytest.mark.parametrize("how", ["header", "pages"])
def test_a_broken_file_is_moved_aside_at_start(path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(SQLiteStore(path, timeout=5)) as store:
        for number in range(200):
            store.take([Charge(f"key {number}", TEN)])
    broken(path, how)
    with closing(SQLiteStore(path, timeout=5)) as store:
        assert Path(f"{path}.broken").exists()
        assert f"so it was moved to {path}.broken; clients may use at most one more quota" in caplog.text
        assert store.take([Charge("key 1", TEN)])[0].remaining == 9
    assert rows(path) == 1


@pytest.mark.promise(8)
@pytest.mark.parametrize("how", ["garbage", "pages"])
def test_file_that_breaks_while_open_fails_few_calls_and_is_replaced(
    path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [Charge(f"key {number}", TEN) for number in range(200)]
    with closing(SQLiteStore(path, timeout=5)) as store, closing(SQLiteStore(path, timeout=5)) as other:
        for key in keys:
            store.take([key])
        database(store).close()  # moves the content of the WAL to the file
        other.take(TAKE)
        other.close()
        broken(path, how)
        failed = 0
        for key in keys:
            try:
                store.take([key])
            except StoreError:
                failed += 1
        assert 1 <= failed <= 3
        assert left(store, "key 199") == 9
        assert caplog.text.count("clients may use at most one more quota") == 1
        assert left(other, "key 199") == 9  # the other store finds the new file


@pytest.mark.promise(8)
@pytest.mark.parametrize("gone", ["unlink", "replace"])
def test_store_creates_a_new_file_after_the_file_is_removed_or_renamed(path: Path, gone: str) -> None:
    with closing(SQLiteStore(path, timeout=5)) as store, closing(SQLiteStore(path, timeout=5)) as other:
        assert [one.take(TAKE)[0].remaining for one in (store, other)] == [9, 8]
        if gone == "unlink":
            path.unlink()
        else:
            path.rename(f"{path}.old")
        for one in (store, other):
            database(one)._look_at = 0.0  # as if a second had passed
        assert [one.take(TAKE)[0].remaining for one in (store, other)] == [9, 8]


def database(store: SQLiteStore) -> Any:
    below: Any = store._store
    return below._database


@pytest.mark.promise(8)
def test_unreadable_state_counts_as_empty(
    path: Path, store: SQLiteStore, caplog: pytest.LogCaptureFixture, unthrottled_log: None
) -> None:
    log = Charge("k", SlidingWindowLog(10, 60))
    slots = Charge("k", Concurrency(10, 60))
    charges = [*TAKE, log, slots]
    for charge in charges:
        for written in (b"\0", b"\0\xc1nonsense", b"\0" + b"12345678" * 3, b"\0\x01", b""):
            store.take([charge])
            with closing(sqlite3.connect(path)) as other:
                other.execute(f"UPDATE {STATES} SET state = ?", (written,))
                other.commit()
            assert store.peek([charge])[0].allowed
            assert store.take([charge])[0].remaining in {9, 6}
            store.reset([charge])
    assert "a state cannot be read, and starts again" in caplog.text


@pytest.mark.promise(8)
def test_lasting_lock_raises_store_error_and_charges_nothing(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=0.02, deny_cache=0)) as store:
        store.take(TAKE)
        with write_lock(path):
            for call in (store.take, store.settle, store.reset):
                with pytest.raises(StoreError, match="no write lock in time"):
                    call(TAKE)
        assert left(store) == 9
        assert store.take(TAKE)[0].remaining == 8


@pytest.mark.promise(8)
def test_peek_does_not_wait_for_a_writer(path: Path, store: SQLiteStore) -> None:
    store.take(TAKE)
    with write_lock(path):
        assert left(store) == 9


@pytest.mark.promise(8)
def test_three_failures_open_the_circuit_breaker(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=0.01)) as store, write_lock(path):
        errors = []
        for _ in range(4):
            with pytest.raises(StoreError) as raised:
                store.take(TAKE)
            errors.append(str(raised.value)[:18])
    assert errors == ["no write lock in t"] * 3 + ["not queried during"]


@pytest.mark.promise(8)
def test_store_recovers_from_a_full_disk(path: Path, store: SQLiteStore) -> None:
    store.take(TAKE)
    connection = database(store)._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    taken = 0
    with suppress(StoreError):
        for number in range(1000):
            assert store.take([Charge(f"key {number}", TEN)])[0].allowed
            taken += 1
    with pytest.raises(StoreError, match="full"):
        store.take([Charge("one more", TEN)])
    connection.execute("PRAGMA max_page_count = 100000")
    database(store)._look_at = 0.0
    store.guard.clear()  # the breaker's pause is over
    assert store.take(TAKE)[0].remaining == 8
    assert rows(path) == taken + 1


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, pages: int) -> Iterator[None]:
    """Let no file have more than so many pages."""
    connect = opening._connect

    def connect_on_full_disk(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(opening, "_connect", connect_on_full_disk)
        yield


@pytest.mark.promise(8)
@pytest.mark.parametrize("pages", [1, 5])  # of about ten
def test_full_disk_at_start_is_an_outage(
    path: Path, pages: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with full_disk(monkeypatch, pages):
        store = SQLiteStore(path, timeout=5, deny_cache=0)
        assert f"no answer at start ({path}: database or disk is full); on_store_error decides" in caplog.text
        with pytest.raises(StoreError, match="full"):
            store.take(TAKE)
        with pytest.raises(StoreError, match="full"):
            asyncio.run(atake(store))
    assert [store.take(TAKE)[0].remaining, asyncio.run(atake(store))[0].remaining] == [9, 8]
    store.close()


async def atake(store: SQLiteStore) -> Any:
    return await store.atake(TAKE)


OUTAGES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE)
MISTAKES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


@pytest.mark.promise(8)
@pytest.mark.parametrize("code", OUTAGES, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["limits.db", "limits.db.lock"])
def test_file_that_cannot_be_created_for_a_while_is_an_outage(
    path: Path, name: str, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing_open(name, code))
        store = SQLiteStore(path, timeout=5, deny_cache=0)
        assert f"no answer at start ({path.parent / name}: {os.strerror(code)}); on_store_error decides" in caplog.text
        for take in (lambda: store.take(TAKE), lambda: asyncio.run(atake(store))):
            with pytest.raises(StoreError) as raised:
                take()
            assert str(raised.value) == f"{path.parent / name}: {os.strerror(code)}"
    assert store.take(TAKE)[0].remaining == 9
    store.close()


@pytest.mark.promise(9)
@pytest.mark.parametrize("code", MISTAKES, ids=errno.errorcode.get)
@pytest.mark.parametrize("name", ["limits.db", "limits.db.lock"])
def test_file_that_must_not_be_created_is_a_config_error(
    path: Path, name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", failing_open(name, code))
    with pytest.raises(ConfigError) as raised:
        SQLiteStore(path)
    assert f"store: cannot write {path.parent / name} ({os.strerror(code)}); give the app's user" in str(raised.value)


def failing_open(name: str, code: int) -> Any:
    """Return `os.open`, which cannot create files with this name."""
    real = os.open

    def failing(path: Any, flags: int, *mode: Any, **options: Any) -> int:
        if flags & os.O_CREAT and Path(path).name == name:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *mode, **options)

    return failing


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    ("code", "is_fault"),
    [
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_IOERR_WRITE, True),
        (sqlite3.SQLITE_IOERR_SHMSIZE, True),
        (sqlite3.SQLITE_CANTOPEN, True),  # in a folder that can be written: too many open files, or no inode is left
        (sqlite3.SQLITE_NOLFS, True),
        (sqlite3.SQLITE_READONLY_DIRECTORY, False),
        (sqlite3.SQLITE_PERM, False),
    ],
)
def test_errors_of_sqlite_at_start_are_faults_or_mistakes(
    path: Path, code: int, is_fault: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        error = sqlite3.OperationalError("as SQLite says")
        error.sqlite_errorcode = code
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(opening, "_create_tables", fail)
        if is_fault:
            SQLiteStore(path, timeout=5).close()
            assert f"no answer at start ({path}: as SQLite says); on_store_error decides" in caplog.text
        else:
            with pytest.raises(
                ConfigError, match=r"limits\.db \(as SQLite says\); check its owner and its permissions"
            ):
                SQLiteStore(path)


FULL_AT_START = """
import logging, resource, signal, sys
from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores.sqlite import SQLiteStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))
store, take = SQLiteStore(sys.argv[1], timeout=5), [Charge("k", FixedWindow(10, 60))]
errors = 0
try:
    store.take(take)
except StoreError:
    errors += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(errors, store.take(take)[0].remaining)
"""


@pytest.mark.promise(8)
@pytest.mark.parametrize("size", [0, 500, 3000])
def test_store_starts_under_a_file_size_limit_and_recovers_from_it(path: Path, size: int) -> None:
    command = [sys.executable, "-c", FULL_AT_START, str(path), str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1 9\n"
    assert "no answer at start" in done.stderr


FULL = """
import resource, signal, sys
from pathlib import Path
from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores.sqlite import SQLiteStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store, limit = SQLiteStore(sys.argv[1], timeout=5), FixedWindow(10, 60)
store.take([Charge("k", limit)])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
size = Path(sys.argv[1] + "-wal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, hard))
errors = 0
for number in range(40):
    try:
        store.take([Charge(f"key {number}", limit)])
    except StoreError:
        errors += 1
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(errors, store.take([Charge("k", limit)])[0].remaining)
"""


@pytest.mark.promise(8)
def test_store_recovers_from_a_file_size_limit(path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True).stdout
    assert told == "1 8\n"


def test_locked_file_at_start_logs_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    SQLiteStore(path).close()
    monkeypatch.setattr("ratelimit_mw.stores.sqlite.database._START_TIMEOUT", 0.01)
    with write_lock(path):
        store = SQLiteStore(path, timeout=0.01)
        assert "no answer at start (" in caplog.text
    assert store.take(TAKE)[0].remaining == 9
    store.close()


# each algorithm


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", SCRIPTED)
def test_each_algorithm_decides_like_the_model(algorithm: str, path: Path) -> None:
    steps = RandomSteps(algorithm, 7, both_ways=False, apart=True)
    model = ModelStore(steps.clock)
    with closing(SQLiteStore(path, clock=steps.clock, timeout=5, deny_cache=0)) as store:
        for number in range(STEPS):
            verb, charges = steps.next()
            expected, found = getattr(model, verb)(charges), getattr(store, verb)(charges)
            if verb in {"take", "peek"}:
                assert [*found] == expected, (number, verb, charges)
            if verb == "take":
                steps.heard(charges, expected)
            if number % 50 == 0:
                store.close()


class Pairs(Limit, frozen=True):
    """A limit whose states are tuples, which are read back as lists."""

    algorithm = "pairs"

    def decide(self, state: Any, now: int, cost: int, max_delay: int | None) -> tuple[Decision, Any]:
        used = (state[0] if state else 0) + cost
        return Decision(used <= self.quota, self.quota, self.quota - used, 0.0, 0.0, 0.0, 0.0, now), self.state(used)

    def state(self, used: int) -> Any:
        return (used, 0)

    def expires(self, state: Any) -> int:
        return 2**52


class Count(Struct, frozen=True, array_like=True):
    used: int
    more: int

    def __getitem__(self, index: int) -> int:
        return self.used


class Annotated(Pairs, frozen=True):
    algorithm = "annotated"

    def state(self, used: int) -> Count:
        return Count(used, 0)

    def expires(self, state: Count) -> int:
        return 2**52


class Untyped(Pairs, frozen=True):
    algorithm = "untyped"

    def state(self, used: int) -> list[int]:
        return [used, 0]


def test_custom_algorithm_works_if_its_states_can_be_written(store: SQLiteStore) -> None:
    for limit in (Annotated(5, 60), Untyped(5, 60)):
        assert [store.take([Charge("k", limit)])[0].remaining for _ in range(3)] == [4, 3, 2]
    with pytest.raises(ConfigError, match="Pairs: its states cannot be written to a file; annotate the parameter"):
        store.take([Charge("k", Pairs(5, 60))])


# how the file stays small


@pytest.mark.promise(7)
def test_flood_of_new_keys_evicts_no_refused_key(path: Path, clock: Clock) -> None:
    one = FixedWindow(1, 600)
    with closing(SQLiteStore(path, max_keys=100, clock=clock, timeout=5, deny_cache=0)) as store:
        refused = [Charge(f"refused {number}", one) for number in range(30)]
        costly = Charge("costly", TEN, 11)  # has room for a smaller cost
        store.take([Charge("costly", TEN)])
        for charge in refused:
            assert [store.take([charge])[0].allowed for _ in range(2)] == [True, False]
        assert store.take([costly])[0].allowed is False
        for number in range(1000):
            assert store.take([Charge(f"flood {number}", TEN)])[0].allowed
        assert rows(path) == 100
        assert [store.take([charge])[0].allowed for charge in refused] == [False] * 30
        assert left(store, "costly") == 9


@pytest.mark.promise(7)
def test_new_keys_share_a_bucket_when_no_key_can_be_evicted(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, unthrottled_log: None
) -> None:
    one = FixedWindow(1, 600)
    with closing(SQLiteStore(path, max_keys=10, clock=clock, timeout=5, deny_cache=0)) as store:
        for number in range(10):
            store.take([Charge(f"key {number}", one)])
            store.take([Charge(f"key {number}", one)])
        assert store.peek([Charge("new", one)])[0].allowed
        answers = [store.take([Charge(f"new {number}", one)])[0].allowed for number in range(5)]
        assert answers == [True, False, False, False, False]
        assert not store.peek([Charge("new", one)])[0].allowed
        both = [Charge("a", FixedWindow(1, 600, name="x")), Charge("b", FixedWindow(1, 600, name="x"))]
        assert [one.allowed for one in store.take(both)] == [True, False]  # both share one bucket
        assert "full with 10 keys: new keys of a limit share a bucket" in caplog.text
        assert rows(path) == 11
        clock.advance(600)
        assert store.take([Charge("later", one)])[0].remaining == 0
        assert store.take([Charge("later", one)])[0].allowed is False
        assert rows(path) == 11


@pytest.mark.promise(7)
@pytest.mark.parametrize("max_keys", [1, 2, 3])
@pytest.mark.parametrize("names", [(None, None, None), ("x", "y", "z")])
@pytest.mark.parametrize("quota", [1, 5])
def test_group_of_more_new_keys_than_an_empty_file_may_have_is_decided_as_in_memory(
    path: Path, clock: Clock, max_keys: int, names: tuple[str | None, ...], quota: int
) -> None:
    group = [Charge(f"key {at}", FixedWindow(quota, 60, name=name)) for at, name in enumerate(names)]
    memory = MemoryStore(max_keys=max_keys, clock=clock)
    with closing(SQLiteStore(path, max_keys=max_keys, clock=clock, timeout=5, deny_cache=0)) as store:
        for verb in ("peek", "take", "take", "peek"):
            assert [*getattr(store, verb)(group)] == [*getattr(memory, verb)(group)]


@pytest.mark.promise(7)
def test_flood_evicts_no_key_of_a_limit_with_fewer_keys(path: Path, clock: Clock) -> None:
    other = FixedWindow(10, 60, name="other")
    with closing(SQLiteStore(path, max_keys=100, clock=clock, timeout=5)) as store:
        for number in range(20):
            store.take([Charge(f"key {number}", other)])
        for number in range(1000):
            store.take([Charge(f"flood {number}", TEN)])
        assert [left(store, f"key {number}", other) for number in range(20)] == [9] * 20
        assert rows(path) == 100


@pytest.mark.promise(7)
def test_group_does_not_evict_its_own_keys(path: Path, clock: Clock) -> None:
    with closing(SQLiteStore(path, max_keys=2, clock=clock, timeout=5)) as store:
        pair = [Charge("a", TEN), Charge("b", TEN)]
        assert [store.take(pair)[0].remaining for _ in range(2)] == [9, 8]
        assert store.take([Charge("a", TEN), Charge("c", TEN)])[0].remaining == 7
        assert (left(store, "a"), left(store, "b"), left(store, "c"), rows(path)) == (7, 10, 9, 2)


@pytest.mark.promise(7)
def test_expired_keys_are_deleted_after_an_eighth_as_many_writes(path: Path, clock: Clock) -> None:
    keys = 1_000_000 if PROOF else 10_000
    with closing(SQLiteStore(path, clock=clock, timeout=5)) as store:
        short = FixedWindow(10, 1)
        for number in range(0, keys, 100):
            store.settle([Charge(f"{{{number + more:032x}}}:default", short, 1) for more in range(100)])
        assert rows(path) == keys
        store.close()
        assert path.stat().st_size <= keys * 400
        clock.advance(1)
        for _ in range(keys // 8):
            store.take(TAKE)
            clock.advance(6)
    assert rows(path) == 1


@pytest.mark.promise(3)
def test_take_is_charged_once_when_its_cleanup_finds_the_file_busy(path: Path, clock: Clock) -> None:
    with closing(SQLiteStore(path, clock=clock, timeout=5)) as store, closing(SQLiteStore(path, clock=clock)) as other:
        store.take([Charge("k", FixedWindow(1000, 60))])
        below: Any = store._store
        table = below._table
        tidy = table.room.tidy
        tries = []

        def tidy_while_another_writes(connection: Any, now: int) -> None:
            connection.execute("ROLLBACK")
            other.take([Charge("other", TEN, 0)])
            tries.append(now)
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

        table.room.tidy = tidy_while_another_writes
        for _ in range(99):
            store.take([Charge("k", FixedWindow(1000, 60))])
        table.room.tidy = tidy
        assert tries
        assert left(store, "k", FixedWindow(1000, 60)) == 900


@pytest.mark.promise(7)
def test_wal_is_truncated_after_a_long_read_transaction_ends(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ratelimit_mw.stores.sqlite.database._LONG_LOG", 6_000_000)
    charges = [Charge(f"key {number}", FixedWindow(1000, 60)) for number in range(300)]

    def sizes(rounds: int) -> list[int]:
        """Return the sizes of the WAL after rounds of 300 takes."""
        found = []
        for _ in range(rounds):
            for charge in charges:
                opened.take([charge])
            database(opened)._look_at = 0.0  # as if a second had passed
            found.append(Path(f"{path}-wal").stat().st_size)
        return found

    with closing(SQLiteStore(path, clock=clock, timeout=5)) as opened, closing(sqlite3.connect(path)) as reader:
        assert max(sizes(10)) < 2_000_000
        for times in (1, 2):
            reader.execute("BEGIN")
            reader.execute(f"SELECT count(*) FROM {STATES}").fetchone()
            assert max(sizes(25)) > 6_000_000
            reader.execute("ROLLBACK")
            assert sizes(10)[-1] <= 4_000_000
            assert caplog.text.count(f"{path}-wal has ") == times
    assert "grows, because a program reads the file in a transaction that it does not end; end that" in caplog.text


def test_refunds_and_reset_leave_no_row(path: Path, store: SQLiteStore) -> None:
    (decision,) = store.take(TAKE)
    assert rows(path) == 1
    for _ in range(2):  # the second one has nothing to refund
        store.settle([Charge("k", TEN, -1, at=decision.at)])
        assert rows(path) == 0
    store.take(TAKE)
    assert rows(path) == 1
    store.reset(TAKE)
    assert rows(path) == 0


# in tests of users


def test_freeze_controls_the_clock_and_starts_with_an_empty_store(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=5)) as store:
        assert left(store) == 10
        store.take(TAKE)
        with freeze() as control:
            assert [store.take(TAKE)[0].allowed for _ in range(11)] == [True] * 10 + [False]
            control.advance(60)
            assert store.take(TAKE)[0].remaining == 9
            for _ in range(100):
                store.take([Charge("other", TEN, 0), Charge("more", FixedWindow(1000, 1))])
            control.reset()
            assert left(store) == 10
        assert left(store) == 9  # the frozen clock did not expire the unit taken before


# for operators


@pytest.mark.parametrize("opened", ["threads", "asyncio"])
def test_inventory_lists_keys_and_refused_clients(path: Path, opened: str) -> None:
    with closing(SQLiteStore(path, timeout=5)) as store:
        assert isinstance(store, Inventory)
        assert isinstance(store, AsyncInventory)
        assert [*store.list_keys()] == [KeyPage([], 1.0)]
        for number in range(2500):
            store.take([Charge(f"{{{number}}}:rule", TEN)])
        pages = [*store.list_keys()]
        assert [len(page.keys) for page in pages] == [1000, 1000, 500]
        assert [page.seen for page in pages] == [0.4, 0.8, 1.0]
        found = {key for page in pages for key in page.keys}
        assert found == {f"{{{number}}}:rule:{TEN.bucket}" for number in range(2500)}
        now = time.time()
        latest = [Refusal(f"{{{number}}}:rule", TEN.notation, now, math.inf) for number in range(3)]
        counts = {f"{{{number}}}:rule": number for number in range(1, 1500)}
        for _ in range(2):
            if opened == "asyncio":
                asyncio.run(store.aadd_refused(counts, latest))
            else:
                store.add_refused(counts, latest)
        most = store.most_refused(now - 60)
        assert len(most) in {1000, 1001, 1500, 2000}  # counted in one minute, or in two
        assert most["{1499}:rule"] == 2998
        assert store.most_refused(now + 120) == {}
        numbered = store.latest_refusals(None, 4)
        assert [one.refusal for one in numbered] == [latest[2], *latest]
        assert store.latest_refusals(numbered[1].number, 10) == numbered[2:]


# asyncio


@pytest.mark.promise(8)
def test_locked_file_does_not_block_the_event_loop(path: Path) -> None:
    async def main() -> None:
        store = SQLiteStore(path, timeout=0.2)
        assert (await store.atake(TAKE))[0].remaining == 9
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        with write_lock(path):
            ticker = asyncio.create_task(tick())
            calls = [store.atake(TAKE), store.asettle(TAKE), store.areset(TAKE), store.atake(TAKE)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            await store.aclose()  # no call is in the thread after this
            ticker.cancel()
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 4
        assert ticks >= 5
        assert (await store.apeek(TAKE))[0].remaining == 8  # the units that a take would leave
        await store.aclose()

    asyncio.run(main())


def test_waiting_call_is_charged_once_and_a_canceled_call_not_at_all(path: Path) -> None:
    async def main() -> None:
        store = SQLiteStore(path, timeout=20)
        await store.atake(TAKE)
        with write_lock(path):
            waiting = [asyncio.create_task(store.atake(TAKE)) for _ in range(5)]
            await asyncio.sleep(0.01)
            for task in waiting[1:3]:
                task.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(answer) is asyncio.CancelledError for answer in answers] == [False, True, True, False, False]
        assert (await store.apeek([Charge("k", TEN, 0)]))[0].remaining == 6
        assert store.loop is asyncio.get_running_loop()
        await store.aclose()

    before = set(threading.enumerate())
    asyncio.run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) <= before


# forks


def in_child(call: Any) -> int:
    """Return what the call returns in a forked child, a small number."""
    child = os.fork()
    if not child:
        code = 255
        try:
            code = call()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.promise(3)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 and later: forks with threads
def test_forked_child_and_its_parent_share_the_file(path: Path, store: SQLiteStore) -> None:
    store.take(TAKE)
    assert in_child(lambda: store.take(TAKE)[0].remaining) == 8
    assert store.take(TAKE)[0].remaining == 7
    assert in_child(lambda: in_child(lambda: store.take(TAKE)[0].remaining)) == 6
    store.close()
    assert in_child(lambda: store.take(TAKE)[0].remaining) == 5
    assert left(store) == 5


@pytest.mark.promise(3)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forks_during_takes_of_other_threads_lose_no_charge(path: Path) -> None:
    many = [Charge("k", FixedWindow(10**9, 3600))]  # more than the threads can take during the forks
    with closing(SQLiteStore(path, timeout=20)) as store:
        counts = [0] * 3
        over = threading.Event()

        def work(index: int) -> None:
            while not over.is_set():
                store.take(many)
                counts[index] += 1

        threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        codes = [in_child(lambda: 0 if store.take(many)[0].allowed else 1) for _ in range(20)]
        over.set()
        for thread in threads:
            thread.join()
        assert codes == [0] * 20
        assert left(store, "k", many[0].limit) == 10**9 - sum(counts) - 20


def test_stores_of_one_file_in_one_process_share_their_buckets(path: Path) -> None:
    stores = [SQLiteStore(path, timeout=5) for _ in range(5)]
    assert [store.take(TAKE)[0].remaining for store in stores] == [9, 8, 7, 6, 5]
    for store in stores[1:]:
        store.close()
    assert stores[0].take(TAKE)[0].remaining == 4
    stores[0].close()


@pytest.mark.promise(3)
def test_threads_share_a_quota_exactly(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=20)) as store:
        limiter = Limiter(store)
        counts = [0] * 8

        def work(index: int) -> None:
            counts[index] = sum(limiter.hit("300/hour using gcra", "all").allowed for _ in range(50))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(counts) == 300


def test_limiters_of_one_file_share_slots(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=5)) as store, closing(SQLiteStore(path, timeout=5)) as other:
        limit = Concurrency(2, 15)
        with Limiter(store).slot(limit, "k"), Limiter(other).slot(limit, "k"):
            assert Limiter(store).peek(limit, "k").remaining == 0
        assert Limiter(other).peek(limit, "k").remaining == 2


def open_files() -> int:
    return len([*Path("/dev/fd").iterdir()])


def test_twenty_threads_keep_one_connection_open(path: Path) -> None:
    """A connection has three files: the database, its log and its index."""
    with closing(SQLiteStore(path, timeout=5)) as store:
        threads = [threading.Thread(target=store.take, args=(TAKE,)) for _ in range(20)]
        before = open_files()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert open_files() - before == 3


def test_token_bucket_with_max_delay_delays_and_refuses(store: SQLiteStore) -> None:
    limit = TokenBucket(60, 60, burst=1, max_delay=2)
    assert [store.take([Charge("k", limit)])[0].delay for _ in range(3)] == [0.0, 1.0, 2.0]
    refused = store.take([Charge("k", limit, max_delay=0.5)])[0]
    assert (refused.allowed, refused.retry_after) == (False, 2.5)


def test_garbage_collected_store_leaves_no_file_open(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "limits.db")
    assert store.take([Charge("a", FixedWindow(1, 60))])[0].allowed
    files = [path for path in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(path)]
    assert files
    del store
    gc.collect()  # from CPython 3.13 on, an open connection is a ResourceWarning here
    assert [path for path in files if path.exists() and str(tmp_path) in os.path.realpath(path)] == []
