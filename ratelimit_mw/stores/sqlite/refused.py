"""Queries of operators: the keys in the file, and the clients that were refused. See `stores.inventory`."""

import time
from collections.abc import Mapping, Sequence
from sqlite3 import Connection
from typing import Final

from ratelimit_mw.stores.inventory import (
    KEPT_CLIENTS,
    KEPT_REFUSALS,
    KEPT_SECONDS,
    KeyPage,
    NumberedRefusal,
    Refusal,
)
from ratelimit_mw.stores.sqlite.room import LIMITS, STATES

SCHEMA: Final = (
    """
    CREATE TABLE IF NOT EXISTS refused (minute INTEGER, key BLOB, refusals INTEGER, PRIMARY KEY (minute, key))
    WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS refusals (
      number INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB, limit_text TEXT, at REAL, wait REAL
    )
    """,
    # apart from `refusals`, which an earlier version has created without these columns
    "CREATE TABLE IF NOT EXISTS refused_lines (number INTEGER PRIMARY KEY, method TEXT, path BLOB)",
)
_PAGE: Final = 1000  # keys
_MINUTE: Final = 60  # seconds

_KEYS: Final = f"SELECT key FROM {STATES} WHERE key > ? ORDER BY key LIMIT ?"
_ADD: Final = "INSERT INTO refused VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET refusals = refusals + excluded.refusals"
_TRIM: Final = (
    "DELETE FROM refused WHERE minute = ? AND key NOT IN "
    "(SELECT key FROM refused WHERE minute = ? ORDER BY refusals DESC LIMIT ?)"
)
_APPEND: Final = "INSERT INTO refusals (key, limit_text, at, wait) VALUES (?, ?, ?, ?)"
_CUT: Final = "DELETE FROM refusals WHERE number <= (SELECT max(number) FROM refusals) - ? OR at < ?"
_MOST: Final = "SELECT key, sum(refusals) FROM refused WHERE minute >= ? GROUP BY key"
_LINE: Final = "INSERT OR REPLACE INTO refused_lines VALUES (?, ?, ?)"
_CUT_LINES: Final = "DELETE FROM refused_lines WHERE number < (SELECT min(number) FROM refusals)"
_AFTER: Final = "SELECT * FROM refusals NATURAL LEFT JOIN refused_lines WHERE number > ? ORDER BY number LIMIT ?"
_LATEST: Final = (
    "SELECT * FROM (SELECT * FROM refusals ORDER BY number DESC LIMIT ?) NATURAL LEFT JOIN refused_lines "
    "ORDER BY number"
)


def key_page(connection: Connection, prefix: bytes, after: bytes, seen: int) -> tuple[KeyPage, bytes]:
    """Return the keys after a row's key, and the key of the last row. `seen`: rows on earlier pages."""
    rows: list[bytes] = [key for (key,) in connection.execute(_KEYS, (after, _PAGE))]
    (total,) = connection.execute(f"SELECT keys FROM {LIMITS} WHERE bucket = x''").fetchone()
    keys = []
    for row in rows:
        bucket, _, key = row.removeprefix(prefix).partition(b"\0")
        if row.startswith(prefix) and key:  # not the bucket that new keys share in a full store
            keys.append(f"{_text(key)}:{bucket.decode()}")
    if len(rows) < _PAGE:
        return KeyPage(keys, 1.0), after
    return KeyPage(keys, min(0.999, (seen + len(rows)) / max(1, total))), rows[-1]


def add_refused(connection: Connection, added: tuple[Mapping[str, int], Sequence[Refusal]]) -> None:
    """See `Inventory.add_refused`."""
    counts, latest = added
    now = time.time()
    minute = int(now // _MINUTE)
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_ADD, [(minute, _bytes(key), number) for key, number in counts.items()])
    connection.execute(_TRIM, (minute, minute, KEPT_CLIENTS))
    connection.execute("DELETE FROM refused WHERE minute < ?", (minute - KEPT_SECONDS // _MINUTE,))
    for one in latest:
        added_row = connection.execute(_APPEND, (_bytes(one.key), one.limit, one.at, one.retry_after))
        connection.execute(_LINE, (added_row.lastrowid, one.method, _bytes(one.path)))
    connection.execute(_CUT, (KEPT_REFUSALS, now - KEPT_SECONDS))
    connection.execute(_CUT_LINES)
    connection.execute("COMMIT")


def most_refused(connection: Connection, since: float) -> Mapping[str, int]:
    """See `Inventory.most_refused`."""
    return {_text(key): number for key, number in connection.execute(_MOST, (int(since // _MINUTE),))}


def latest_refusals(connection: Connection, wanted: tuple[str | None, int]) -> Sequence[NumberedRefusal]:
    """See `Inventory.latest_refusals`."""
    after, most = wanted
    if after is None:
        rows = connection.execute(_LATEST, (most,)).fetchall()
    else:
        rows = connection.execute(_AFTER, (int(after), most)).fetchall()
    return [
        NumberedRefusal(str(number), Refusal(_text(key), limit, at, retry_after, method or "", _text(path or b"")))
        for number, key, limit, at, retry_after, method, path in rows
    ]


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")
