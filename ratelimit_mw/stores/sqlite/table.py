"""The table of states: decides charges inside a transaction. Requires the lock of the `Database` for every call."""

from collections.abc import Callable, Sequence
from sqlite3 import Connection, Cursor
from sqlite3 import Error as SQLiteError
from time import time_ns
from typing import Any, Final, NamedTuple

from ratelimit_mw.core.limit import Charge, Decision, State, microseconds
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.stores.group import Group, decide_group
from ratelimit_mw.stores.sqlite.codec import Codec, Codecs, read_state
from ratelimit_mw.stores.sqlite.room import (
    ADMITTED,
    LIMITS,
    REFUSED,
    STATES,
    Room,
    bucket_bytes,
    overflow_key,
    row_key,
)

# One statement reads, decides and writes. It needs the interpreter's lock only for its two functions while it has the
# file's write lock, and is a third faster than a transaction of four statements. To write nothing, `decided_state`
# returns NULL: that violates NOT NULL, and OR IGNORE leaves the row unchanged.
_TAKE: Final = f"UPDATE OR IGNORE {STATES} SET state = decided_state(state), expires = decided_expires() WHERE key = ?"
_READ: Final = f"SELECT state FROM {STATES} WHERE key = ?"
_FIRST_READ: Final = f"SELECT 1 FROM {LIMITS} LIMIT 1"
_WRITE: Final = f"INSERT OR REPLACE INTO {STATES} VALUES (?, ?, ?)"
_DELETE: Final = f"DELETE FROM {STATES} WHERE key = ?"
_FULL: Final = "full with %d keys: new keys of a limit share a bucket"


class _Row(NamedTuple):
    """A row of the table. `exists`: False for a row to create. `is_refused`: the key's last request was refused."""

    key: bytes
    state: State
    exists: bool
    is_refused: bool


class Call(NamedTuple):
    """A call of `run_together`. `work`: a method of `StateTable` that works within a transaction."""

    work: "Work"
    charges: Sequence[Charge]


Work = Callable[[Connection, Sequence[Charge]], Any]


class StateTable:
    """Decides charges with the states in a file.

    `max_keys`: rows, see `SQLiteStore`. `clock`: returns seconds; None is the time of the host. `prefix`: the start of
    all keys.
    """

    def __init__(self, max_keys: int, clock: Callable[[], float] | None) -> None:
        self.clock = clock
        self.prefix = ""
        self._codecs: Final = Codecs()
        self.room: Final = Room(max_keys, self._codecs)
        self._cursor: Cursor | None = None  # a new one for each take would add a tenth to its time
        # while `_TAKE` runs: what it decides
        self._charge: Charge | None = None
        self._codec: Codec | None = None
        self._decision: Decision | None = None
        self._expires: Final[list[int]] = []  # the result of `decided_expires`, from `_decided_state`
        self._error: BaseException | None = None

    def register(self, connection: Connection) -> Cursor:
        """Add the functions of `_TAKE` to a new connection, and use this connection for `_TAKE` from now on.

        Returns the cursor of `_TAKE`. Close it with the connection, because SQLite keeps the files open until then.
        """
        self._cursor = connection.cursor()
        connection.create_function("decided_state", 1, self._decided_state)
        connection.create_function("decided_expires", 0, self._expires.pop)  # SQLite evaluates it last
        return self._cursor

    def take(self, connection: Connection, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all limits if none of them refuses, else none. See `group.committed` for shadows and penalties."""
        if len(charges) == 1:
            decision = self._take_existing(charges[0])
            if decision is not None:
                if self.room.is_due():
                    self._tidy_apart(connection)
                return (decision,)
        connection.execute("BEGIN IMMEDIATE")
        decisions = self._take_group(connection, charges)
        self._tidy(connection)
        connection.execute("COMMIT")
        return decisions

    def take_within(self, connection: Connection, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Do what `take` does, within a transaction."""
        decision = self._take_existing(charges[0]) if len(charges) == 1 else None
        return self._take_group(connection, charges) if decision is None else (decision,)

    def run_together(self, connection: Connection, calls: Sequence[Call]) -> Sequence[Any]:
        """Run calls in one transaction, and return their results. If one of them fails, none is charged."""
        connection.execute("BEGIN IMMEDIATE")
        results = [work(connection, charges) for work, charges in calls]
        for _ in calls:
            self._tidy(connection)
        connection.execute("COMMIT")
        return results

    def peek(self, connection: Connection, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what `take` would return now, and charge nothing. It does not wait for a writer."""
        group = Group(charges)
        connection.execute("BEGIN")
        connection.execute(_FIRST_READ).fetchone()  # before the clock is read, so that no state is later than `now`
        decisions = self._take(connection, group.charges, commit=False)
        connection.execute("COMMIT")
        return group.spread(decisions)

    def settle(self, connection: Connection, charges: Sequence[Charge]) -> None:
        """Correct earlier charges. See `Store.settle`."""
        self.run_together(connection, (Call(self.settle_within, charges),))

    def settle_within(self, connection: Connection, charges: Sequence[Charge]) -> None:
        """Do what `settle` does, within a transaction."""
        now = self._now()
        for charge in charges:
            self._settle(connection, charge, now)

    def reset(self, connection: Connection, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        self.run_together(connection, (Call(self.reset_within, charges),))

    def reset_within(self, connection: Connection, charges: Sequence[Charge]) -> None:
        """Do what `reset` does, within a transaction."""
        for charge in charges:
            bucket = bucket_bytes(self.prefix, charge.limit)
            self._delete(connection, bucket, row_key(bucket, charge.key))

    def _now(self) -> int:
        return time_ns() // 1000 if self.clock is None else microseconds(self.clock())

    def _take_existing(self, charge: Charge) -> Decision | None:
        """Decide a single charge of a key that has a row. None without a row, or if the charge is not a plain one."""
        cursor, limit = self._cursor, charge.limit
        if charge.cost < 0 or charge.role != "limit" or cursor is None:
            return None
        self._charge, self._codec = charge, self._codecs.of(limit)
        self._decision = self._error = None
        # the row's key, see room.row_key(), inlined; sqlite3 would look for an adapter of bytes, but not of a bytearray
        key = bytearray(f"{self.prefix}{limit.bucket}\0{charge.key}".encode("utf-8", "surrogatepass"))
        try:
            cursor.execute(_TAKE, (key,))
        except SQLiteError:
            if self._error is not None:
                raise self._error from None
            raise
        return self._decision

    def _decided_state(self, written: bytes) -> bytes | None:
        """Decide the charge of `_take_existing`, with the file's write lock held. Return the row's new value."""
        expires = 0
        try:
            charge, codec = self._charge, self._codec
            if charge is None or codec is None or (old := read_state(codec, written)) is None:
                return None
            # Read the clock under the lock. Otherwise a process could write an earlier time over a later one.
            now = time_ns() // 1000 if self.clock is None else microseconds(self.clock())  # _now(), inlined
            max_delay = None if charge.max_delay is None else charge.max_delay_us
            decision, new = charge.limit.decide(old, now, charge.cost, max_delay)
            self._decision = decision
            mark = ADMITTED if decision.allowed else REFUSED
            if new is None or (new is old and (decision.allowed or written[:1] == mark)):
                return None
            expires = charge.limit.expires(new)
            return mark + codec.encode(new)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._expires[:] = [expires]

    def _take_group(self, connection: Connection, charges: Sequence[Charge]) -> Sequence[Decision]:
        group = Group(charges)
        return group.spread(self._take(connection, group.charges, commit=True))

    def _take(self, connection: Connection, charges: Sequence[Charge], *, commit: bool) -> Sequence[Decision]:
        now = self._now()
        rows = self._read_all(connection, charges, now, commit=commit)
        outcome = decide_group(charges, [row.state for row in rows], now, [row.key for row in rows])
        added: set[bytes] = set()
        for charge, row, new in zip(charges, rows, outcome.states, strict=True) if commit else ():
            # Every row of a refused request is marked, even the row of a limit that admitted, or of a penalty. A full
            # store must not evict it.
            if new is not None and (new is not row.state or (outcome.refused and not row.is_refused)):
                exists = row.exists or row.key in added
                added.add(row.key)
                mark = REFUSED if outcome.refused else ADMITTED
                self._write(connection, charge, row._replace(exists=exists), new, mark)
        return outcome.decisions

    def _settle(self, connection: Connection, charge: Charge, now: int) -> None:
        (row,) = self._read_all(connection, [charge], now, commit=charge.cost > 0)
        new = charge.limit.settle(row.state, now, charge.cost, now if charge.at is None else charge.at)
        if new is None:
            self._delete(connection, bucket_bytes(self.prefix, charge.limit), row.key)
        elif new is not row.state:  # a settlement is not a request, so the mark is unchanged
            self._write(connection, charge, row, new, REFUSED if row.is_refused else ADMITTED)

    def _read_all(self, connection: Connection, charges: Sequence[Charge], now: int, *, commit: bool) -> list[_Row]:
        """Return the row of each charge. For a new key, room is made, or it gets the row of the overflow bucket."""
        buckets = [bucket_bytes(self.prefix, charge.limit) for charge in charges]
        keys = [row_key(bucket, charge.key) for bucket, charge in zip(buckets, charges, strict=True)]
        rows = [self._read(connection, charge, key) for charge, key in zip(charges, keys, strict=True)]
        new = [index for index, row in enumerate(rows) if not row.exists and charges[index].cost]
        free = self.room.free(connection) if new else 0
        for index in new:
            limit = charges[index].limit
            self.room.limits.remember(buckets[index], limit)
            if free > 0:
                free -= 1
            elif not self.room.make(connection, buckets[index], keys, now, evict=commit):
                warn_throttled("SQLiteStore", _FULL, self.room.max_keys, code="RL-212")
                rows[index] = self._read(connection, charges[index], overflow_key(buckets[index]))
        return rows

    def _read(self, connection: Connection, charge: Charge, key: bytes) -> _Row:
        found = connection.execute(_READ, (key,)).fetchone()
        if found is None:
            return _Row(key, None, exists=False, is_refused=False)
        written: bytes = found[0]
        state = read_state(self._codecs.of(charge.limit), written)
        return _Row(key, state, exists=True, is_refused=written[:1] == REFUSED)

    def _write(self, connection: Connection, charge: Charge, row: _Row, state: State, mark: bytes) -> None:
        limit = charge.limit
        written = mark + self._codecs.of(limit).encode(state)
        if not row.exists:
            self.room.count(connection, bucket_bytes(self.prefix, limit), 1)
        connection.execute(_WRITE, (row.key, written, limit.expires(state)))

    def _delete(self, connection: Connection, bucket: bytes, key: bytes) -> None:
        self.room.count(connection, bucket, -connection.execute(_DELETE, (key,)).rowcount)

    def _tidy_apart(self, connection: Connection) -> None:
        """Tidy in a transaction of its own, after that of a take, so that a failure does not repeat the take."""
        try:
            connection.execute("BEGIN IMMEDIATE")
            self.room.tidy(connection, self._now())
            connection.execute("COMMIT")
        except SQLiteError:  # in most cases another process writes; a later take tidies
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _tidy(self, connection: Connection) -> None:
        """Count a call, and tidy in its transaction if that is due."""
        if self.room.is_due():
            self.room.tidy(connection, self._now())
