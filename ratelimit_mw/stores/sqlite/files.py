"""Names and identifies the files of a store: the file itself, the log and the index beside it, and the lock file."""

import os
from pathlib import Path
from typing import Final, NamedTuple

PAGE_SIZE: Final = 1024  # bytes of a new file's pages; a take writes one page, and smaller ones cost less
_ENDINGS: Final = ("", "-wal", "-shm")


class FileId(NamedTuple):
    """The device and the inode of a file."""

    device: int
    inode: int


class Identity(NamedTuple):
    """What identifies the file, its log and its index. None: it does not exist.

    A connection needs all three at their paths: after one of them was removed, processes that open the file create a
    new one, and no longer share states with those that use the removed one.
    """

    main: FileId | None
    wal: FileId | None
    shm: FileId | None


def files_of(path: Path) -> tuple[Path, Path, Path]:
    """Return the paths of the file, its log and its index. SQLite keeps these beside the target of a link."""
    real = os.path.realpath(path)
    main, log, index = (Path(f"{real}{ending}") for ending in _ENDINGS)
    return main, log, index


def lock_of(path: Path) -> Path:
    """Return the path of the file that a process locks while it opens, checks or replaces the store's file."""
    return Path(f"{files_of(path)[0]}.lock")


def identity_of(path: Path) -> Identity:
    """Return what identifies the files at this path now."""
    return Identity(*map(_file_id, files_of(path)))


def log_size(path: Path) -> int:
    """Return the size of the log of a file, in bytes."""
    try:
        return files_of(path)[1].stat().st_size
    except OSError:
        return 0


def _file_id(path: Path) -> FileId | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return FileId(status.st_dev, status.st_ino)
