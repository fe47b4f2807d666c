"""Opens the file of a store, one process at a time, after checks of the file system, the folder and the file."""

import errno
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.log import warn
from ratelimit_mw.stores.sqlite.faults import Locked, failure, is_busy, is_corrupt
from ratelimit_mw.stores.sqlite.files import PAGE_SIZE, Identity, files_of, identity_of, lock_of
from ratelimit_mw.stores.sqlite.refused import SCHEMA as REFUSED_SCHEMA
from ratelimit_mw.stores.sqlite.room import LIMITS, SCHEMA, STATES

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SCHEME: Final = "sqlite://"
APPLICATION_ID: Final = 0x524C4D57  # "RLMW"; `PRAGMA application_id` of the files of stores
LAYOUT: Final = 1  # the version of the file, whose tables of states have a format of their own; `PRAGMA user_version`
_CHECKPOINT_PAGES: Final = 1000  # pages in the log before they are copied to the file
_KEPT_LOG: Final = 4_000_000  # bytes; a longer log is cut to this size when its pages are copied
_POLL: Final = 0.002  # seconds between two tries for the lock of the file
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # a space and other characters in the list of mounts
_MOUNTS: Final = Path("/proc/self/mounts")
# File systems whose files several hosts can open. SQLite shares memory between the processes of one host.
_NETWORK: Final = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2", "gpfs")
) | {"glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs"}

_HAS_TABLE: Final = "SELECT 1 FROM sqlite_master WHERE name = ?"
# errors of a file system that does not support flock
_NO_FLOCK: Final = frozenset((errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP))
_MODE: Final = 0o600  # of new files; a user who can read a file could also lock it, and so block the store
_MAGIC: Final = b"SQLite format 3\0"  # the first bytes of each SQLite file


def checked_path(path: "str | os.PathLike[str]") -> Path:
    """Return the absolute path of a path or URL. Raises `ConfigError` for an invalid one."""
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"path: got {path!r}, expected the path of a file", code="RL-043")
    text = os.fspath(path)
    is_url = isinstance(text, str) and text.startswith(_SCHEME)
    if isinstance(text, str) and is_url:
        text = unquote(text[len(_SCHEME) :])
        if "?" in text or "#" in text:
            raise ConfigError("store: sqlite:// has no options; create a SQLiteStore with them", code="RL-038")
    if isinstance(text, str) and text.rpartition("/")[2] == ":memory:":
        raise ConfigError(
            "store: got :memory:, expected the path of a file; for a store in the memory of each process, use memory://",
            code="RL-038",
        )
    if not isinstance(text, str) or not text.startswith("/") or text.endswith("/") or "\0" in text:
        raise ConfigError(
            f"store: got the path {text!r}, expected that of a file, from the root: {_SCHEME}/run/app/limits.db",
            code="RL-038",
        )
    absolute = Path(os.path.normpath(f"/{text.lstrip('/')}"))
    if is_url and absolute.parent == Path("/"):  # in other packages' URLs, a path after three slashes is relative
        raise ConfigError(
            f"store: got the path {str(absolute)!r}, directly in /, expected a file in a folder: paths begin at the "
            f"root, so {_SCHEME}/run/app/limits.db is the file /run/app/limits.db",
            code="RL-038",
        )
    return absolute


def check_place(path: Path) -> None:
    """Check folder and file system. Raises `ConfigError` if no store can be in this folder."""
    folder = path.parent
    if fcntl is None:
        raise ConfigError(
            "store: sqlite:// needs flock, which this system lacks; use memory:// or redis://", code="RL-061"
        )
    if not folder.is_dir():
        raise ConfigError(
            f"store: folder {folder} does not exist; create it, with write permission for the app's user", code="RL-061"
        )
    kind = file_system(files_of(path)[0].parent)
    if kind in _NETWORK:
        raise ConfigError(
            f"store: {folder} is on a network file system ({kind}), where processes cannot share an SQLite file; use a "
            "folder on a disk of this host or in its memory, such as /run, or Redis for several hosts",
            code="RL-061",
        )
    if path.exists() and not path.is_file():
        found = "a folder" if path.is_dir() else "no regular file"
        raise ConfigError(f"store: {path} is {found}, expected the path of a file", code="RL-061")


def not_sqlite(path: Path) -> ConfigError | None:
    """Return the error about a file that was never an SQLite file; None if it is broken or gone.

    Call it only after SQLite has reported that the file is not a database. It opens and closes the file, which frees
    all locks of this process on it.
    """
    try:
        with path.open("rb") as file:
            start = file.read(PAGE_SIZE)
    except OSError:
        return None
    if start.startswith(_MAGIC[: len(start)]) or not start.strip(b"\0"):  # a power failure may leave zeros
        return None
    return ConfigError(f"store: {path} is not an SQLite file; name another path, or remove the file", code="RL-061")


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """Return the type of a folder's file system; empty text if the operating system does not list mounts."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    real, found, length = os.path.realpath(folder), "", -1
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:  # noqa: PLR2004  # device, folder, type
            continue
        mounted = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), fields[1]).rstrip("/")
        if len(mounted) >= length and (real == mounted or real.startswith(f"{mounted}/")):
            found, length = fields[2], len(mounted)
    return found


def _open_or_create(path: Path, like: Path) -> int:
    """Return a descriptor of a file. A new one gets owner, group and permissions of `like`, if that exists."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    with suppress(OSError):  # another user may own the file
        wanted = like.stat()
        with suppress(OSError):  # only root may give a file away
            os.fchown(descriptor, wanted.st_uid if os.geteuid() == 0 else -1, wanted.st_gid)
        has_group = os.fstat(descriptor).st_gid == wanted.st_gid
        os.fchmod(descriptor, wanted.st_mode & (0o666 if has_group else 0o606))
    return descriptor


@contextmanager
def opener_lock(path: Path, deadline: float) -> Iterator[None]:
    """Hold the lock of all processes that open, check or replace this file.

    The lock file has owner, group and permissions of the file; without a file, only this user can read and write it.
    Raises `ConfigError` if the folder cannot be written or its file system does not support flock; `StoreError` if
    another process holds the lock beyond the deadline, in seconds of monotonic time, or the disk is full or fails.
    """
    lock_path = lock_of(path)
    try:
        descriptor = _open_or_create(lock_path, path)
    except OSError as error:
        raise failure(lock_path, error) from None
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Locked(f"another process has kept {lock_path} locked") from None
                time.sleep(_POLL)
            except OSError as error:
                if error.errno not in _NO_FLOCK:
                    raise failure(lock_path, error) from None
                raise ConfigError(
                    f"store: the file system of {path} does not support flock ({error.strerror}); use a folder on a "
                    "disk of this host or in its memory, such as /run",
                    code="RL-061",
                ) from None
        yield
    finally:
        os.close(descriptor)  # this releases the lock


def open_checked(path: Path, deadline: float) -> None:
    """Create or check the file at start, and move a broken one aside. Leaves no connection open.

    Raises `ConfigError` for a place or a file that cannot be used; `StoreError` if it is locked beyond the deadline, or
    the disk is full or fails.
    """
    try:
        check_place(path)
        with opener_lock(path, deadline):
            try:
                _connect_and_check(path, deadline)
            except sqlite3.Error as error:
                if not is_corrupt(error):
                    raise
                if (mistake := not_sqlite(path)) is not None:
                    raise mistake from None
                move_aside(path, str(error))
                _connect_and_check(path, deadline)
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, sqlite3.Error) and is_busy(error):
            raise StoreError(f"another process has kept {path} locked") from None
        raise failure(path, error) from None


def open_file(path: Path, deadline: float, *, create: bool) -> tuple[sqlite3.Connection, Identity]:
    """Open the file for charges, and return the connection and the file's identity.

    `create`: create a file that does not exist. Raises `sqlite3.Error`; `StoreError` if the file is locked beyond the
    deadline, or does not exist.
    """
    if not create and not path.exists():
        raise StoreError(f"{path} does not exist; an app with this store creates it at its start")
    with opener_lock(path, deadline):
        connection = _connect(path)
        try:
            _create_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection, identity_of(path)  # SQLite has opened the log and the index to read the tables


def replace_broken(path: Path, identity: Identity, reason: str, deadline: float) -> None:
    """Move aside a file that SQLite found to be broken, unless another process has already replaced it."""
    with opener_lock(path, deadline):
        if identity_of(path).main == identity.main:
            move_aside(path, reason)


def move_aside(path: Path, reason: str) -> None:
    """Rename a broken file, and replace the one that was renamed before. Requires the opener's lock."""
    main = files_of(path)[0]
    for file in files_of(path):  # the file itself first, because SQLite ignores the others without it
        with suppress(FileNotFoundError):
            file.replace(f"{main}.broken{file.name.removeprefix(main.name)}")
    warn(
        "store: %s is broken (%s), so it was moved to %s.broken; clients may use at most one more quota",
        path,
        reason,
        main,
        code="RL-239",
    )


def _connect_and_check(path: Path, deadline: float) -> None:
    with closing(_connect(path)) as connection:
        while True:
            try:
                _create_tables(connection)
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(f"UPDATE {LIMITS} SET keys = keys")  # fails if the file cannot be written
                connection.execute("ROLLBACK")
                break
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL)
        check_pages(connection)


def check_pages(connection: sqlite3.Connection) -> None:
    """Raise `sqlite3.DatabaseError` with SQLITE_CORRUPT if a page of the file is broken."""
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        broken = sqlite3.DatabaseError(result.partition("\n")[0])
        broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise broken


def uri_of(path: Path) -> str:
    """Return the URI with which SQLite opens an existing file."""
    return f"file:{quote(os.fsencode(path))}?mode=rw"


def _connect(path: Path) -> sqlite3.Connection:
    if not path.exists():  # else SQLite lets all users read it; -wal and -shm get its permissions
        try:
            os.close(_open_or_create(path, lock_of(path)))
        except OSError as error:
            raise failure(path, error) from None
    # `isolation_level=None`: this package sends BEGIN and COMMIT itself. `timeout=0`: it also does the waiting itself.
    connection = sqlite3.connect(uri_of(path), uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute("PRAGMA synchronous = OFF")  # states need to survive a process, not a power failure
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_KEPT_LOG}")
    except BaseException:
        connection.close()
        raise
    return connection


def is_ours(connection: sqlite3.Connection) -> bool:
    """Return whether a file has the tables of a store; False for an empty one.

    Raises `ConfigError` for a file of another program or version.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) == (APPLICATION_ID, LAYOUT):
        return True
    if application == APPLICATION_ID:
        raise ConfigError(
            f"store: the file has format {version}, expected {LAYOUT}; remove it and its -wal", code="RL-061"
        )
    if application or version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise ConfigError("store: the file belongs to another program; name another one", code="RL-061")
    return False


def _create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables that the file lacks. Raises `ConfigError` for a file of another program or version.

    A new file lacks all of them. A file that a version of this package with another format created lacks those of the
    states, and keeps its own.
    """
    if is_ours(connection) and connection.execute(_HAS_TABLE, (STATES,)).fetchone():
        return
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigError(
            "store: the file system cannot share memory between processes; use a disk of this host", code="RL-061"
        )
    connection.execute("BEGIN IMMEDIATE")
    for statement in (*SCHEMA, *REFUSED_SCHEMA):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {LAYOUT}")
    connection.execute("COMMIT")
