"""The folder in which each process keeps its counts, so that any of them can add up all.

A process owns its file as long as it holds the lock (flock) on it. The kernel releases the lock when the process ends
in any way. The counts of files without an owner are added to `folded.json`, which also lists the names of these files.
It is replaced by one rename. So files that a crash leaves behind are not counted twice.
"""

import mmap
import os
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from msgspec import DecodeError, Struct, ValidationError, json

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.metrics.families import GAUGES, Series, with_other_labels

MAGIC: Final = 0x31_54_4E_43_5F_4D_4C_52  # the first cell of a file: RLM_CNT1
SPARE_CELL: Final = 1
FIRST_CELL: Final = 2
CAPACITY: Final = 1024  # cells
_CELL_SIZE: Final = 8  # bytes
_SIZE: Final = CAPACITY * _CELL_SIZE
_SUFFIX: Final = ".counts"
_NEW: Final = ".new"  # the ending of a file that is being made, and does not count yet
_FOLDED: Final = "folded.json"
_FOLDING: Final = "folding.lock"
_ABANDONED_AFTER: Final = 60.0  # seconds; to make a file takes less than one
_ATTEMPTS: Final = 20  # attempts to read the folder while no other process folds files
_MAX_FOLDED: Final = 900  # series; more than that count as `other`
_OWNER: Final = "check the owner and the permissions of {}"
_LOCAL: Final = "choose a folder on a disk of this host, such as one in /run or /tmp"

Cells = Sequence[int]


class _Folded(Struct):
    """The counts of files without an owner. `files`: their names. Some of them may still exist."""

    files: list[str] = []
    counts: list[tuple[str, list[str], int]] = []

    def by_series(self) -> Counter[Series]:
        """Return the counts by series."""
        return Counter({(name, tuple(labels)): count for name, labels, count in self.counts})


def _flock(descriptor: int) -> bool:
    """Lock a file without waiting. Return whether it is locked now: False if another process has locked it."""
    import fcntl  # noqa: PLC0415  # Windows has none

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def prepare(folder: Path) -> None:
    """Create the folder if it is missing. Raises `ConfigError` if it cannot be written, or does not support locks."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f"{token_hex(8)}{_NEW}"
        with _opened(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL) as first:
            try:
                _check_locks(probe, first)
            finally:
                probe.unlink()
        fold(folder)
    except ImportError:
        text = "metrics_folder: this system has no file locks (flock); leave it out, and scrape each process"
        raise ConfigError(text, code="RL-054") from None
    except OSError as error:
        advice = _OWNER.format(_existing(error.filename or folder)) if isinstance(error, PermissionError) else _LOCAL
        text = f"metrics_folder: got {str(folder)!r}, which cannot be used: {error.strerror or error}; {advice}"
        raise ConfigError(text, code="RL-054") from error


def _existing(path: str | Path) -> str:
    """Return the path if it exists, or else the path of its folder."""
    return str(path) if os.path.exists(path) else os.path.dirname(path)  # noqa: PTH110, PTH120  # Path.exists may raise


def _check_locks(probe: Path, first: int) -> None:
    with _opened(probe, os.O_RDWR) as second:
        if not _flock(first) or _flock(second):
            raise ConfigError(
                f"metrics_folder: got {str(probe.parent)!r}, where file locks have no effect, as on network disks; "
                f"{_LOCAL}",
                code="RL-054",
            )


class CountFile:
    """The counts of this process, as a file that other processes read. `cells`: its numbers, in shared memory.

    After the cells, the file has a line for each series, with the index of its cell.
    """

    def __init__(self, folder: Path, cells: Cells, series: Mapping[Series, int]) -> None:
        self.name: Final = f"{os.getpid()}-{token_hex(8)}{_SUFFIX}"
        self.path: Final = folder / self.name
        self._unwritten: list[bytes] = []
        folder.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(_NEW)
        self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _flock(self._descriptor)
            # not sparse, because on a full disk, a first write to shared memory would kill the process
            _write_all(self._descriptor, array("q", [MAGIC, *cells[1:]]).tobytes())
            for one, index in series.items():
                self.add_name(index, one)
            self.write_names()
            self._mapped = mmap.mmap(self._descriptor, _SIZE)
            new.rename(self.path)
        except BaseException:
            os.close(self._descriptor)
            new.unlink(missing_ok=True)
            raise
        self.cells: Final = memoryview(self._mapped).cast("q")

    def add_name(self, index: int, series: Series) -> None:
        """Add the line that names the series of a cell, for `write_names`."""
        name, labels = series
        # also begins with a line break, because the line before may be incomplete
        self._unwritten.append(b"\n" + json.encode([index, name, labels]) + b"\n")

    def write_names(self) -> None:
        """Write the lines that are not written yet. Raises `OSError`; another call then tries again."""
        while self._unwritten:
            _write_all(self._descriptor, self._unwritten[0])
            del self._unwritten[0]

    def exists(self) -> bool:
        """Return whether the file is still in its folder."""
        return os.path.exists(self.path)  # noqa: PTH110  # Path.exists may raise

    def abandon(self) -> None:
        """Close the file in this process. A child does so after a fork, as the file and its lock are the parent's."""
        self.cells.release()
        self._mapped.close()
        os.close(self._descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def read_folder(folder: Path) -> tuple[Counter[Series], set[str]]:
    """Return the sums of all processes, and the names of the files that were read. Folds files without an owner."""
    with suppress(OSError, ImportError):
        fold(folder)
    total: Counter[Series] = Counter()
    names: set[str] = set()
    for _ in range(_ATTEMPTS):
        folded = _read_folded(folder)
        total = folded.by_series()
        names = {path.name for path in _files(folder)} - {*folded.files}
        for name in names:
            total.update(_read(folder / name))
        if _read_folded(folder) == folded:
            break
    return total, names


def fold(folder: Path) -> None:
    """Add the counts of the files without an owner to `folded.json`, and delete them. One process does so at a time."""
    with _opened(folder / _FOLDING, os.O_RDWR | os.O_CREAT) as turn:
        if not _flock(turn):
            return
        folded = _read_folded(folder)
        for name in folded.files:  # an earlier process ended before it had deleted them
            (folder / name).unlink(missing_ok=True)
        dead = [path for path in _files(folder) if _has_no_owner(path)]
        if dead:
            total = folded.by_series()
            for path in dead:
                total.update({series: count for series, count in _read(path).items() if series[0] not in GAUGES})
            counts = [(name, list(labels), count) for (name, labels), count in _bounded(total).items()]
            _replace(folder, _Folded([path.name for path in dead], counts))
        for path in [*dead, *_abandoned_files(folder)]:
            path.unlink(missing_ok=True)


def _replace(folder: Path, folded: _Folded) -> None:
    new = folder / f"{token_hex(8)}{_NEW}"
    new.write_bytes(json.encode(folded))
    new.rename(folder / _FOLDED)


def _read_folded(folder: Path) -> _Folded:
    try:
        return json.decode((folder / _FOLDED).read_bytes(), type=_Folded)
    except (OSError, DecodeError, ValidationError):  # not written yet, or damaged, e.g. by a loss of power
        return _Folded()


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_SUFFIX}"))


def _has_no_owner(path: Path) -> bool:
    try:
        with _opened(path, os.O_RDONLY) as descriptor:
            return _flock(descriptor)
    except OSError:  # deleted meanwhile, or of another user
        return False


def _abandoned_files(folder: Path) -> list[Path]:
    """Return incomplete files whose process ended while it made them."""
    before = time.time() - _ABANDONED_AFTER
    found = []
    for path in folder.glob(f"*{_NEW}"):
        with suppress(OSError):
            if path.stat().st_mtime < before and _has_no_owner(path):
                found.append(path)
    return found


def _read(path: Path) -> dict[Series, int]:
    """Return the counts of a file; none if it was deleted meanwhile, or is another kind of file."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _SIZE:
                return {}
            # mapped instead of read, so that no number is seen while its process has written only a part of it
            with mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
                with data.cast("q") as cells:
                    numbers = cells.tolist()
                file.seek(_SIZE)
                lines = file.read().split(b"\n")[:-1]
    except OSError:
        return {}
    if numbers[0] != MAGIC:
        return {}
    names: dict[int, Series] = {}
    for line in lines:
        with suppress(DecodeError, ValidationError):  # an incomplete line
            index, name, labels = json.decode(line, type=tuple[int, str, tuple[str, ...]])
            if FIRST_CELL <= index < CAPACITY:
                names[index] = name, labels  # of two names of a cell, the last is the present one
    return {series: numbers[index] for index, series in names.items()}


def _bounded(counts: Counter[Series]) -> Counter[Series]:
    """Add series beyond `_MAX_FOLDED` to `other`. Otherwise the rules of earlier settings would accumulate."""
    if len(counts) <= _MAX_FOLDED:
        return counts
    kept: Counter[Series] = Counter()
    for series, count in counts.items():
        here = series if series in kept or len(kept) < _MAX_FOLDED else with_other_labels(series)
        kept[here] += count
    return kept
