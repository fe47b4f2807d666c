"""Keeps in the file what the dashboard shows, in tables that the first report creates. See `stores.live`."""

from collections.abc import Sequence
from sqlite3 import Connection
from typing import Final

from ratelimit_mw.stores.live import (
    KEPT_PROCESS,
    MAX_PROCESSES,
    RINGS,
    Live,
    Report,
    Ring,
    Row,
    Wanted,
    merged,
    rows_of,
)

# `prefix`: separates tests that share a file. Slots have row ids: without, each would have a page of its own beside a
# part in the tree, and a day would take more than 3 MB.
_SCHEMA: Final = (
    """
    CREATE TABLE IF NOT EXISTS live_slots (
      prefix TEXT, ring TEXT, slot INTEGER, counts BLOB NOT NULL, PRIMARY KEY (prefix, ring, slot)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS live_processes (
      prefix TEXT, id TEXT, number INTEGER NOT NULL, seen INTEGER NOT NULL, description BLOB NOT NULL,
      PRIMARY KEY (prefix, id)
    ) WITHOUT ROWID
    """,
)
_HAS_TABLES: Final = "SELECT 1 FROM sqlite_master WHERE name = 'live_processes'"
_NUMBER: Final = "SELECT number FROM live_processes WHERE prefix = ? AND id = ?"
_SLOT: Final = "SELECT counts FROM live_slots WHERE prefix = ? AND ring = ? AND slot = ?"
_SLOTS: Final = "SELECT slot, counts FROM live_slots WHERE prefix = ? AND ring = ?"
_WRITE: Final = "INSERT INTO live_slots VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET counts = excluded.counts"
_SEE: Final = "INSERT OR REPLACE INTO live_processes VALUES (?, ?, ?, ?, ?)"
_END: Final = "DELETE FROM live_processes WHERE prefix = ? AND (id = ? OR seen < ?)"
_HELD: Final = "SELECT count(*) FROM live_processes WHERE prefix = ?"
_PROCESSES: Final = "SELECT seen, description FROM live_processes WHERE prefix = ?"
_FEW: Final = 50  # slots that are read one at a time, not with the whole ring


def add_live(connection: Connection, added: tuple[str, Sequence[Report]]) -> None:
    """See `LiveKeeper.add_live`. `added`: the prefix and the reports."""
    prefix, reports = added
    latest = reports[-1]
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    found = connection.execute(_NUMBER, (prefix, latest.process)).fetchone()
    last = 0 if found is None else found[0]
    for report in reports:
        if report.number > last:
            for ring in RINGS:
                for row in report.rows.get(ring.name, ()):
                    _add(connection, prefix, ring, row)
    connection.execute(_END, (prefix, latest.process, latest.seen - KEPT_PROCESS))
    (held,) = connection.execute(_HELD, (prefix,)).fetchone()
    if latest.text is not None and held < MAX_PROCESSES:
        seen = max(last, latest.number), latest.seen, latest.text
        connection.execute(_SEE, (prefix, latest.process, *seen))
    connection.execute("COMMIT")


def read_live(connection: Connection, asked: tuple[str, Wanted]) -> Live:
    """See `LiveKeeper.read_live`. `asked`: the prefix and what to read."""
    prefix, wanted = asked
    if connection.execute(_HAS_TABLES).fetchone() is None:
        return Live({ring.name: {} for ring in RINGS}, [])
    rows = {}
    for ring in RINGS:
        instants = wanted.slots.get(ring.name, range(0))
        if len(instants) <= _FEW:
            place = prefix, ring.name
            found = [connection.execute(_SLOT, (*place, at % ring.size)).fetchone() for at in instants]
            texts = [None if one is None else one[0] for one in found]
        else:
            by_slot = dict(connection.execute(_SLOTS, (prefix, ring.name)).fetchall())
            texts = [by_slot.get(at % ring.size) for at in instants]
        rows[ring.name] = rows_of(texts, instants)
    return Live(rows, list(connection.execute(_PROCESSES, (prefix,))))


def _add(connection: Connection, prefix: str, ring: Ring, row: Row) -> None:
    place = prefix, ring.name, row.at % ring.size
    found = connection.execute(_SLOT, place).fetchone()
    text = merged(None if found is None else found[0], ring, row)
    if text is not None:
        connection.execute(_WRITE, (*place, text))
