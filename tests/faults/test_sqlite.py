"""Tests faults of a store in a file, under load over ASGI and WSGI, until the file works again."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from faults.load import Load, settled
from ratelimit_mw.stores.sqlite import SQLiteStore

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(8)]

Tell = Callable[[float], None]

STOPS = """
import os, signal, sys
from ratelimit_mw import Charge, FixedWindow
from ratelimit_mw.stores.sqlite import SQLiteStore
class Stopping(FixedWindow, frozen=True):
    def decide(self, *arguments):
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().decide(*arguments)
SQLiteStore(sys.argv[1], timeout=30).take([Charge("k", Stopping(5, 60))])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


def database_of(store: SQLiteStore) -> Any:
    below: Any = store._store
    return below._database


@contextmanager
def stopped_amid_a_take(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that is stopped while it has the write lock."""
    with subprocess.Popen([sys.executable, "-c", STOPS, str(path)]) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield process


def test_app_survives_a_process_that_is_stopped_during_a_take(
    served: type[Load], path: Path, tell_recovery: Tell
) -> None:
    with served(store=f"sqlite://{path}") as load:
        load.goes_on()
        with stopped_amid_a_take(path) as process:
            load.goes_on_without()
            process.send_signal(signal.SIGCONT)
            tell_recovery(load.recovers())
    load.held()


def test_app_survives_a_process_that_is_killed_during_a_take(
    served: type[Load], path: Path, tell_recovery: Tell
) -> None:
    with served(store=f"sqlite://{path}") as load:
        load.goes_on()
        with stopped_amid_a_take(path) as process:
            load.goes_on_without()
            process.kill()
            tell_recovery(load.recovers())
    load.held()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_app_survives_a_file_that_breaks(served: type[Load], path: Path, tell_recovery: Tell) -> None:
    store = SQLiteStore(path)
    with served(store=store) as load:
        load.goes_on()
        database = database_of(store)
        with database._lock:
            database._close()  # the file then has all content, and is read again
            with path.open("r+b") as file:
                file.write(b"no database" * 500)
        tell_recovery(load.recovers())
        load.end()  # a request after the store's close would open it again
        store.close()
    load.held(quotas=2)
    assert Path(f"{path}.broken").exists()


def test_app_survives_a_file_that_is_removed(served: type[Load], path: Path) -> None:
    with served(store=f"sqlite://{path}") as load:
        load.goes_on()
        for ending in ("", "-wal", "-shm", ".lock"):
            Path(f"{path}{ending}").unlink(missing_ok=True)
        assert not settled(lambda: not path.exists())  # the store creates a new one within a second
        load.recovers()
    load.held(quotas=2)


def test_app_survives_a_full_disk(served: type[Load], path: Path, tell_recovery: Tell) -> None:
    """The file has its maximum number of pages, and no key has expired."""
    store = SQLiteStore(path)
    with served(store=store) as load:
        load.goes_on()
        database = database_of(store)
        with database._lock:
            (pages,) = database._connection.execute("PRAGMA page_count").fetchone()
            database._connection.execute(f"PRAGMA max_page_count = {pages}")
        with closing(sqlite3.connect(path, timeout=10)) as other:  # fills the last page
            other.execute("CREATE TABLE filler (text)")
        load.goes_on_without()
        with database._lock:
            database._connection.execute("PRAGMA max_page_count = 1000000")
        tell_recovery(load.recovers())
        load.end()  # a request after the store's close would open it again
        store.close()
    load.held()
