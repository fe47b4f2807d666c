"""Keeps the table of states within `max_keys` rows: deletes expired rows, and evictable ones if it is full."""

from collections.abc import Container, Sequence
from sqlite3 import Connection
from typing import Final

from ratelimit_mw.core.limit import Limit
from ratelimit_mw.stores.sqlite.codec import FORMAT, Codecs, read_state

STATES: Final = f"states_{FORMAT}"
LIMITS: Final = f"limits_{FORMAT}"


def _schema(states: str, limits: str) -> tuple[str, ...]:
    """Return the statements that create two tables, unless they exist.

    `state`: a byte that shows whether the key's last request was refused, followed by the state. `expires`:
    microseconds. `limits`: for each limit, how many rows it has, and the key at which the next search for rows to
    delete starts. The row with the empty id has the same for all limits together.
    """
    row = "key BLOB PRIMARY KEY, state BLOB NOT NULL, expires INTEGER NOT NULL"
    limit = "bucket BLOB PRIMARY KEY, keys INTEGER NOT NULL, hand BLOB NOT NULL"
    return (
        f"CREATE TABLE IF NOT EXISTS {states} ({row}) WITHOUT ROWID",
        f"CREATE TABLE IF NOT EXISTS {limits} ({limit}) WITHOUT ROWID",
        f"INSERT OR IGNORE INTO {limits} VALUES (x'', 0, x'')",
    )


# Versions with the first format, whose tables have no number, do not start on a file without these tables.
SCHEMA: Final = (*_schema("states", "limits"), *_schema(STATES, LIMITS))
ADMITTED: Final = b"\0"
REFUSED: Final = b"\1"

# Rows that are checked for expiry per write. More than a write can add, so that expiry catches up. With nine, n expired
# rows are deleted in n / 8 writes, wherever the search starts.
_ROWS_PER_WRITE: Final = 9
_WRITES_PER_TIDY: Final = 32  # a statement takes as long as a few rows, so writes are checked together
_PROBES: Final = 32  # rows to search for one that a new key can replace
_MAX_LIMITS: Final = 4096  # remembered limits; a limit is needed to tell which of its rows are evictable
_ALL: Final = b""

_COUNT: Final = f"UPDATE {LIMITS} SET keys = keys + ? WHERE bucket IN (?, x'')"
_ADD_LIMIT: Final = f"INSERT OR IGNORE INTO {LIMITS} VALUES (?, 0, x'')"
_FORGET_LIMIT: Final = f"DELETE FROM {LIMITS} WHERE bucket = ? AND keys <= 0"
_SET_HAND: Final = f"UPDATE {LIMITS} SET hand = ? WHERE bucket = ?"
_LIMIT: Final = f"SELECT keys, hand FROM {LIMITS} WHERE bucket = ?"
_LARGEST: Final = f"SELECT bucket FROM {LIMITS} WHERE bucket != x'' ORDER BY keys DESC LIMIT 1"
_NEXT: Final = f"SELECT key, expires FROM {STATES} WHERE key > ? ORDER BY key LIMIT ?"
_NEXT_OF_LIMIT: Final = f"SELECT key, state, expires FROM {STATES} WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
_DELETE: Final = f"DELETE FROM {STATES} WHERE key = ?"


def bucket_bytes(prefix: str, limit: Limit) -> bytes:
    """Return the id of a limit in the file. It contains no zero byte."""
    return (prefix + limit.bucket).encode()


def row_key(bucket: bytes, key: str) -> bytes:
    """Return the key of a row. The rows of a limit follow each other."""
    return bucket + b"\0" + key.encode("utf-8", "surrogatepass")


def overflow_key(bucket: bytes) -> bytes:
    """Return the key of the bucket that new keys of a limit share in a full store. No charge has an empty key."""
    return bucket + b"\0"


class KnownLimits:
    """The limits of rows that this process created, by their id. At most 4096."""

    def __init__(self) -> None:
        self._by_bucket: dict[bytes, Limit] = {}

    def remember(self, bucket: bytes, limit: Limit) -> None:
        """Add a limit."""
        if len(self._by_bucket) >= _MAX_LIMITS and bucket not in self._by_bucket:
            self._by_bucket.clear()
        self._by_bucket[bucket] = limit

    def get(self, bucket: bytes) -> Limit | None:
        """Return the limit with this id, or None."""
        return self._by_bucket.get(bucket)


class Room:
    """Counts the rows and makes room for new ones. All methods run inside a write transaction, except `is_due`."""

    def __init__(self, max_keys: int, codecs: Codecs) -> None:
        self.max_keys: Final = max_keys
        self.limits: Final = KnownLimits()
        self.tidies = True  # False while a test controls the time, because real rows would seem to have expired
        self._codecs: Final = codecs
        self._writes = 0  # since the last call of `tidy`

    def free(self, connection: Connection) -> int:
        """Return the number of rows that can still be added."""
        return self.max_keys - _limit_row(connection, _ALL)[0]

    def count(self, connection: Connection, bucket: bytes, change: int) -> None:
        """Count rows of a limit that were added or deleted."""
        if not change:
            return
        if connection.execute(_COUNT, (change, bucket)).rowcount < 2:  # noqa: PLR2004  # it counts in two rows
            connection.execute(_ADD_LIMIT, (bucket,))
            connection.execute(f"UPDATE {LIMITS} SET keys = keys + ? WHERE bucket = ?", (change, bucket))
        if change < 0:
            connection.execute(_FORGET_LIMIT, (bucket,))

    def is_due(self) -> bool:
        """Count a take or a settlement. Return whether `tidy` has to be called."""
        self._writes += 1
        return self._writes >= _WRITES_PER_TIDY and self.tidies

    def tidy(self, connection: Connection, now: int) -> None:
        """Check the next few rows of the table, round-robin, and delete the expired ones."""
        self._writes = 0
        most = _ROWS_PER_WRITE * _WRITES_PER_TIDY
        previous_hand = _limit_row(connection, _ALL)[1]
        rows = connection.execute(_NEXT, (previous_hand, most)).fetchall()
        hand = rows[-1][0] if len(rows) == most else b""
        if hand != previous_hand:
            connection.execute(_SET_HAND, (hand, _ALL))
        expired = [key for key, expires in rows if expires <= now]
        connection.executemany(_DELETE, [(key,) for key in expired])
        per_bucket: dict[bytes, int] = {}
        for key in expired:
            bucket = key.partition(b"\0")[0]
            per_bucket[bucket] = per_bucket.get(bucket, 0) + 1
        for bucket, number in per_bucket.items():
            self.count(connection, bucket, -number)

    def make(
        self, connection: Connection, bucket: bytes, protected: Container[bytes], now: int, *, evict: bool
    ) -> bool:
        """Return whether a row outside `protected` can make room for a new key of a limit.

        Only the limit with the most rows loses evictable rows, because a flood makes its own limit the largest. If this
        process does not know that limit, the limit of the new key loses them. `evict`: delete the row, which a peek
        must not do.
        """
        # no limit has a row yet if a single group fills an empty file
        largest = [found for (found,) in connection.execute(_LARGEST)]
        for searched in dict.fromkeys((*largest, bucket)):
            rows = self._next_rows(connection, searched)
            victim = self._victim(searched, rows, protected, now)
            if victim is not None and not evict:
                return True
            if rows and evict:
                connection.execute(_SET_HAND, (rows[-1][0] if victim is None else victim, searched))
            if victim is not None:
                connection.execute(_DELETE, (victim,))
                self.count(connection, searched, -1)
                return True
        return False

    def _next_rows(self, connection: Connection, bucket: bytes) -> Sequence[tuple[bytes, bytes, int]]:
        """Return the next rows of a limit, round-robin, without its overflow bucket."""
        start, end = overflow_key(bucket), bucket + b"\1"
        hand = max(start, _limit_row(connection, bucket)[1])
        rows = connection.execute(_NEXT_OF_LIMIT, (hand, end, _PROBES)).fetchall()
        if len(rows) < _PROBES:
            rows += connection.execute(_NEXT_OF_LIMIT, (start, hand + b"\0", _PROBES - len(rows))).fetchall()
        return rows

    def _victim(
        self, bucket: bytes, rows: Sequence[tuple[bytes, bytes, int]], protected: Container[bytes], now: int
    ) -> bytes | None:
        """Return the key of an expired row, or else of an evictable one; None without either.

        A row is evictable if its last request was admitted and a unit is left.
        """
        candidates = [row for row in rows if row[0] not in protected]
        for key, _, expires in candidates:
            if expires <= now:
                return key
        limit = self.limits.get(bucket)
        for key, written, _ in candidates if limit is not None else ():
            if limit is not None and written[:1] != REFUSED:
                state = read_state(self._codecs.of(limit), written)
                if limit.has_room(state, now):
                    return key
        return None


def _limit_row(connection: Connection, bucket: bytes) -> tuple[int, bytes]:
    found: tuple[int, bytes] | None = connection.execute(_LIMIT, (bucket,)).fetchone()
    return found or (0, b"")
