"""Keeps overrides in the file, in tables that the first change creates. See `stores.kept_overrides`."""

import time
from collections.abc import Sequence
from sqlite3 import Connection
from typing import Final

from ratelimit_mw.stores.kept_overrides import CHANGES_TIME, KEPT_CHANGES, KeptOverrides

# `prefix`: separates tests that share a file
_SCHEMA: Final = (
    """
    CREATE TABLE IF NOT EXISTS overrides (
      prefix TEXT PRIMARY KEY, version TEXT NOT NULL, entries BLOB NOT NULL, mac TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS override_changes (
      number INTEGER PRIMARY KEY AUTOINCREMENT, prefix TEXT NOT NULL, at REAL NOT NULL, description BLOB NOT NULL
    )
    """,
)
_HAS_TABLES: Final = "SELECT 1 FROM sqlite_master WHERE name = 'override_changes'"
_VERSION: Final = "SELECT version FROM overrides WHERE prefix = ?"
_SET: Final = "SELECT version, entries, mac FROM overrides WHERE prefix = ?"
_REPLACE: Final = "INSERT OR REPLACE INTO overrides VALUES (?, ?, ?, ?)"
_ADD: Final = "INSERT INTO override_changes (prefix, at, description) VALUES (?, ?, ?)"
_CUT: Final = "DELETE FROM override_changes WHERE at < ? OR number <= (SELECT max(number) FROM override_changes) - ?"
_CHANGES: Final = "SELECT description FROM override_changes WHERE prefix = ? AND at >= ? ORDER BY number DESC"


def read_overrides(connection: Connection, wanted: tuple[str, str]) -> KeptOverrides | None:
    """See `OverrideKeeper.read_overrides`. `wanted`: the prefix, and the known version."""
    prefix, known = wanted
    if _version(connection, prefix) == known:
        return None
    row = connection.execute(_SET, (prefix,)).fetchone() if _has_tables(connection) else None
    return KeptOverrides() if row is None else KeptOverrides(*row)


def write_overrides(connection: Connection, written: tuple[str, str, KeptOverrides, bytes]) -> bool:
    """See `OverrideKeeper.write_overrides`. `written`: the prefix, the known version, the set, the change."""
    prefix, known, kept, change = written
    now = time.time()
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    is_known = _version(connection, prefix) == known
    if is_known:
        connection.execute(_REPLACE, (prefix, *kept))
        connection.execute(_ADD, (prefix, now, change))
        connection.execute(_CUT, (now - CHANGES_TIME, KEPT_CHANGES))
    connection.execute("COMMIT")
    return is_known


def read_changes(connection: Connection, prefix: str) -> Sequence[bytes]:
    """See `OverrideKeeper.read_changes`."""
    if not _has_tables(connection):
        return []
    return [change for (change,) in connection.execute(_CHANGES, (prefix, time.time() - CHANGES_TIME))]


def _version(connection: Connection, prefix: str) -> str:
    row = connection.execute(_VERSION, (prefix,)).fetchone() if _has_tables(connection) else None
    return "" if row is None else row[0]


def _has_tables(connection: Connection) -> bool:
    return connection.execute(_HAS_TABLES).fetchone() is not None
