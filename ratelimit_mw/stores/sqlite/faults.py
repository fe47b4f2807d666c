"""Tells mistakes in the settings, with which an app does not start, from faults that may pass, by their error codes."""

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.stores.sqlite.files import files_of

_CORRUPT: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)  # SQLITE_PROTOCOL if many processes open the file at once
# The path, the owner or the permissions are wrong. All others are faults: the disk is full, or fails.
_DENIED: Final = (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY)
_OS_DENIED: Final = frozenset(
    (errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS)
)


class Locked(StoreError):
    """Another process opens, checks or replaces the file."""


def primary_code(error: sqlite3.Error) -> int:
    """Return the result code of SQLite for an error, without the details."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process has a lock, so that a later try may succeed."""
    return primary_code(error) in _BUSY


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether SQLite found that the file is broken."""
    return primary_code(error) in _CORRUPT


def failure(path: Path, error: OSError | sqlite3.Error) -> ConfigError | StoreError:
    """Return the error to raise for a file: a `ConfigError` if its path, its owner or its permissions are wrong."""
    if isinstance(error, OSError):
        reason, denied = str(error.strerror), error.errno in _OS_DENIED
    else:  # SQLite also reports SQLITE_CANTOPEN if this process or the disk can have no more files
        code = primary_code(error)
        denied = code in _DENIED or (code == sqlite3.SQLITE_CANTOPEN and not _may_write(path))
        reason = str(error)
    if not denied:
        return StoreError(f"{path}: {reason}")
    return unusable(path, reason) if os.path.exists(path) else unwritable(path, reason)  # noqa: PTH110  # False on errors


def _may_write(path: Path) -> bool:
    """Whether this process may write the folder, and those of the file, its log and its index that exist."""
    files = files_of(path)
    return all(os.access(one, os.R_OK | os.W_OK) for one in (files[0].parent, *filter(Path.exists, files)))


def unwritable(path: Path | str, reason: str | None) -> ConfigError:
    """Return the error about a folder in which the app's user cannot write this file."""
    return ConfigError(
        f"store: cannot write {path} ({reason}); give the app's user write permission for the folder", code="RL-061"
    )


def unusable(path: Path, reason: str) -> ConfigError:
    """Return the error about a file that the app's user cannot read and write."""
    return ConfigError(f"store: cannot use {path} ({reason}); check its owner and its permissions", code="RL-061")
