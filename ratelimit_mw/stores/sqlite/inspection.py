"""Inspects a file and its folder before an app starts. Creates and changes nothing there."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.stores.sqlite.faults import failure, is_busy, is_corrupt, unusable, unwritable
from ratelimit_mw.stores.sqlite.files import files_of, lock_of
from ratelimit_mw.stores.sqlite.opening import check_pages, check_place, checked_path, is_ours, not_sqlite, uri_of

__all__ = ["ExistingStore", "SQLiteStore", "UncheckedStore", "checked_path", "inspect_file"]  # what `stores.url` needs


class UncheckedStore(SQLiteStore):
    """A store that neither creates nor checks its file before the first call."""

    _checks_file: ClassVar[bool] = False


class ExistingStore(UncheckedStore):
    """A store that neither creates its file nor moves a broken one aside. Instead, its methods raise `StoreError`."""

    _owns_file: ClassVar[bool] = False


def inspect_file(path: Path) -> str:
    """Return whether the file exists and can be used, in a few words.

    Raises `ConfigError` for a path or a file with which an app cannot start, and for a broken file, which a start moves
    aside. A disk that fails does not stop a start.
    """
    try:
        return _inspect(path)
    except (sqlite3.Error, OSError) as error:
        found = failure(path, error)
        if isinstance(found, ConfigError):
            raise found from None
        return f"{found}; the app starts, and on_store_error decides until the file can be used"


def _inspect(path: Path) -> str:
    check_place(path)
    lock = lock_of(path)
    if lock.exists() and not os.access(lock, os.R_OK | os.W_OK):
        raise unusable(lock, "no permission to read and write it")
    if not lock.exists() and not os.access(lock.parent, os.W_OK):
        raise unwritable(lock, "no write permission")
    if not path.exists():
        return f"{path} does not exist yet; the first start creates it"
    for file in files_of(path):
        if file.exists() and not os.access(file, os.R_OK | os.W_OK):
            raise unusable(file, "no permission to read and write it")
    try:
        with closing(sqlite3.connect(uri_of(path), uri=True, timeout=0)) as connection:
            if is_ours(connection):
                check_pages(connection)
    except sqlite3.Error as error:
        if is_corrupt(error):
            raise not_sqlite(path) or ConfigError(
                f"store: {path} is broken ({error}); the next start moves it to {path}.broken", code="RL-061"
            ) from None
        if not is_busy(error):
            raise
    return f"{path} can be read and written"
