"""Reads and changes the set of overrides that a store keeps, for operators."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex
from typing import Final

from msgspec import DecodeError, Struct, json

from ratelimit_mw.admin.target import Target
from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.limit import MICROSECONDS
from ratelimit_mw.rules.override_entries import (
    MAX_BYTES,
    MAX_ENTRIES,
    Override,
    decode_overrides,
    encode_overrides,
    is_authentic,
    mac_of,
)
from ratelimit_mw.stores.contract import declared
from ratelimit_mw.stores.kept_overrides import KeptOverrides, OverrideKeeper

_UNKNOWN: Final = "none"  # no version of a set, so that a store returns the set
_MAX_TRIES: Final = 10
_NOT_OURS: Final = (
    "key_secret: the overrides in the store have a MAC of another key_secret, or none; use the settings of the app, or "
    "clear everything with `override clear --all`"
)
_NO_KEEPER: Final = (
    "store: {} keeps no overrides; expected redis://, sqlite:// or another store that processes share; a store of your "
    "own needs the methods of ratelimit_mw.stores.kept_overrides.OverrideKeeper"
)
_TOO_MANY: Final = (
    "override: the store would have {} overrides of {} bytes, expected at most {} of {} bytes; clear some, or change "
    "the settings"
)
_CHANGED: Final = "the overrides were changed by others at the same time; try again"


class Change(Struct, frozen=True):
    """A change of the overrides. `at`: seconds since 1970. `by`: who made it. `undone`: a later change undid it."""

    id: str
    at: float
    by: str
    what: str
    note: str
    undone: bool = False


class Record(Struct, frozen=True):
    """A change, with the entries that it added and removed. `undoes`: the id of the change that it undoes."""

    change: Change
    added: Sequence[Override]
    removed: Sequence[Override]
    undoes: str | None = None


class _Signed(Struct, frozen=True):
    """A record, as the store keeps it."""

    record: Record
    mac: str


Edit = Callable[[Sequence[Override]], tuple[Sequence[Override], Sequence[Override]]]
"""Returns what to add to some entries, and which of them to remove."""


class OverrideSet:
    """The overrides of a store. All methods raise `ConfigError` if they have no right MAC, or cannot be read."""

    def __init__(self, keeper: OverrideKeeper, secret: str) -> None:
        self._keeper: Final = keeper
        self._secret: Final = secret

    @property
    def entries(self) -> Sequence[Override]:
        """The entries that have not ended."""
        return self._entries_in(self._read())

    @property
    def records(self) -> Sequence[Record]:
        """The changes, the latest first, without those that have no right MAC or cannot be read."""
        found = []
        for text in self._keeper.read_changes():
            try:
                signed = json.decode(text, type=_Signed)
            except DecodeError:
                continue
            if is_authentic(self._secret, "change", json.encode(signed.record), signed.mac):
                found.append(signed.record)
        return found

    def edit(self, change: Change, edit: Edit, undoes: str | None = None) -> Sequence[Override]:
        """Change the entries, and return them. Writes nothing if the edit neither adds nor removes any."""
        for _ in range(_MAX_TRIES):
            kept = self._read()
            entries = self._entries_in(kept)
            added, removed = edit(entries)
            if not (added or removed):
                return entries
            gone = {one.id for one in removed}
            entries = [*(one for one in entries if one.id not in gone), *added]
            if self._write(kept, entries, Record(change, added, removed, undoes)):
                return entries
        raise StoreError(_CHANGED)

    def note(self, change: Change) -> None:
        """Add a change that is not one of the entries, such as a reset."""
        for _ in range(_MAX_TRIES):
            kept = self._read()
            if self._write(kept, self._entries_in(kept), Record(change, [], [])):
                return
        raise StoreError(_CHANGED)

    def clear(self, change: Change) -> Sequence[Override]:
        """Remove all entries, also those without the right MAC. Return the others."""
        for _ in range(_MAX_TRIES):
            kept = self._read()
            try:
                removed = self._entries_in(kept)
            except ConfigError:
                removed = []
            if not kept.text or self._write(kept, [], Record(change, [], removed)):
                return removed
        raise StoreError(_CHANGED)

    def _read(self) -> KeptOverrides:
        return self._keeper.read_overrides(_UNKNOWN) or KeptOverrides()

    def _entries_in(self, kept: KeptOverrides) -> Sequence[Override]:
        if not is_authentic(self._secret, *kept) or (kept.mac and not self._secret):
            raise ConfigError(_NOT_OURS, code="RL-066")
        now = time.time()
        return [one for one in decode_overrides(kept.text) if one.until > now]

    def _write(self, kept: KeptOverrides, entries: Sequence[Override], record: Record) -> bool:
        """Replace a set that was read. Return False if another operator has done so meanwhile."""
        secret, text = self._secret, encode_overrides(entries)
        if len(entries) > MAX_ENTRIES or len(text) > MAX_BYTES:
            raise ConfigError(_TOO_MANY.format(len(entries), len(text), MAX_ENTRIES, MAX_BYTES), code="RL-067")
        before = int(kept.version) if kept.version.isdecimal() else 0
        version = f"{max(int(record.change.at * MICROSECONDS), before + 1):016d}"
        signed = _Signed(record, mac_of(secret, "change", json.encode(record)))
        changed = KeptOverrides(version, text, mac_of(secret, version, text))
        return self._keeper.write_overrides(kept.version, changed, json.encode(signed))


@contextmanager
def opened_set(target: Target) -> Iterator[OverrideSet]:
    """Open the set of the store of some settings. Raises `ConfigError` if the store keeps no overrides."""
    with target.open_store() as store:
        keeper = declared(store).override_keeper
        if keeper is None:
            raise ConfigError(_NO_KEEPER.format(type(store).__name__), code="RL-040")
        yield OverrideSet(keeper, target.settings.key_secret)


def new_change(what: str, note: str, by: str) -> Change:
    """Return a change that is made now."""
    return Change(token_hex(4), time.time(), by, what, note)
