"""Tests that a change of how states are written or read comes with a new format, so that versions share no state.

`formats/` keeps the states that the last version with each format wrote.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import ratelimit_mw
from ratelimit_mw import Charge, Concurrency, FixedWindow
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.takeover import KINDS
from ratelimit_mw.stores.sqlite import SQLiteStore, opening
from ratelimit_mw.stores.sqlite.room import STATES
from stores.state_formats import (
    CODECS,
    FILE_FORMAT,
    LIMITS,
    REDIS_FORMAT,
    as_json,
    kept,
    read_from_file,
    read_from_redis,
    written_to_file,
    written_to_redis,
)

CHANGED = (
    "States are written or read otherwise than by released versions. Raise FORMAT in {} and run "
    "tests/stores/state_formats.py, which adds a file to tests/stores/formats/. Do not change the files that are there."
)
IN_FILE = CHANGED.format("ratelimit_mw/stores/sqlite/codec.py")
IN_REDIS = CHANGED.format("ratelimit_mw/stores/redis/commands.py")

TAKES = """
import sys
from ratelimit_mw import Charge, FixedWindow, SlidingWindowCounter
from ratelimit_mw.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1], timeout=5, deny_cache=0)
for limit in FixedWindow(10, 600), SlidingWindowCounter(10, 600):
    print(store.take([Charge("k", limit)])[0].remaining, end=" ")
"""

# a file of the first format, whose tables have no number
FIRST_FORMAT = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE states (key BLOB PRIMARY KEY, state BLOB NOT NULL, expires INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE limits (bucket BLOB PRIMARY KEY, keys INTEGER NOT NULL, hand BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO limits VALUES (x'', 1, x'');
INSERT INTO limits VALUES ('10/60s_using_fixed_window', 1, x'');
INSERT INTO states VALUES (
  CAST('10/60s_using_fixed_window' || char(0) || 'k' AS BLOB),
  x'0082a5636f756e7404a57374617274cf00038d7ea4c68000',
  1000000060000000
);
CREATE TABLE refused (minute INTEGER, key BLOB, refusals INTEGER, PRIMARY KEY (minute, key)) WITHOUT ROWID;
CREATE TABLE refusals (number INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB, limit_text TEXT, at REAL, wait REAL);
PRAGMA application_id = {opening.APPLICATION_ID};
PRAGMA user_version = 1;
"""


def test_states_in_a_file_are_those_of_its_format() -> None:
    states = kept("file", FILE_FORMAT)
    assert as_json(written_to_file()) == states, IN_FILE
    assert as_json(read_from_file(states)) == {name: state["decision"] for name, state in states.items()}, IN_FILE


@pytest.mark.parametrize("codec", CODECS)
def test_states_in_redis_are_those_of_its_format(redis_url: str, codec: str) -> None:
    states = kept(f"redis_{codec}", REDIS_FORMAT)
    assert as_json(written_to_redis(redis_url, codec)) == states, IN_REDIS
    decisions = {name: state["decision"] for name, state in states.items()}
    assert as_json(read_from_redis(redis_url, codec, states)) == decisions, IN_REDIS


def test_each_algorithm_has_a_state_in_each_format() -> None:
    assert {type(limit) for limit in LIMITS.values()} == {*ALGORITHMS.values(), Concurrency, Ban, *KINDS.values()}


def test_versions_with_different_formats_share_a_file_but_no_state(tmp_path: Path) -> None:
    """Two versions take in turns, as in a rolling restart: each admits its own quota, and reads its own states."""
    other = tmp_path / "other"
    shutil.copytree(Path(ratelimit_mw.__file__).parent, other / "ratelimit_mw")
    codec = other / "ratelimit_mw/stores/sqlite/codec.py"
    before = codec.read_text("utf-8")
    codec.write_text(before.replace(f"FORMAT: Final = {FILE_FORMAT}", f"FORMAT: Final = {FILE_FORMAT + 1}"), "utf-8")
    assert codec.read_text("utf-8") != before

    def take(folder: Path) -> str:
        command = [sys.executable, "-c", TAKES, str(tmp_path / "limits.db")]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    here = Path(ratelimit_mw.__file__).parent.parent
    assert [take(folder) for folder in (here, other, here, other)] == ["9 9 ", "9 9 ", "8 8 ", "8 8 "]


def test_file_of_the_first_format_gets_further_tables_and_keeps_its_own(tmp_path: Path) -> None:
    path, charge = tmp_path / "limits.db", Charge("k", FixedWindow(10, 60))

    def rows() -> list[Any]:
        return [*other.execute("SELECT * FROM states"), *other.execute("SELECT * FROM limits")]

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.executescript(FIRST_FORMAT)
        before = rows()
        for remaining in (9, 8):  # also when the tables are there
            with closing(SQLiteStore(path, timeout=5, deny_cache=0)) as store:
                assert store.take([charge])[0].remaining == remaining
        assert rows() == before
        assert other.execute(f"SELECT count(*) FROM {STATES}").fetchone() == (1,)


def test_new_file_has_empty_tables_of_the_first_format(tmp_path: Path) -> None:
    """A version with that format starts on this file, after a downgrade."""
    SQLiteStore(tmp_path / "limits.db").close()
    with closing(sqlite3.connect(tmp_path / "limits.db")) as other:
        assert other.execute("SELECT * FROM states").fetchall() == []
        assert other.execute("SELECT * FROM limits").fetchall() == [(b"", 0, b"")]
        assert other.execute("PRAGMA user_version").fetchone() == (1,)
