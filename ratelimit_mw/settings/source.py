"""Where settings come from, so that they can be read again while the app runs: a file, or a callable of the app."""

import os
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple, Self

from msgspec import Struct
from msgspec.structs import asdict

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.runtime import in_event_loop
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.settings.loading import parse_file, read_text, with_location

ORIGIN: Final = "origin"  # the attribute of settings with their `Origin`
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")  # a part of an object's text that differs in each process
_SETTLED_AFTER: Final = 2.0  # seconds; within them, a file may change again without another time of change or size
_QUIET: Final = 0.1  # seconds; a file that was changed within them may be half-written
_ATTEMPTS: Final = 20  # to read a file that changes meanwhile


class Snapshot(NamedTuple):
    """What a source has at one time.

    `digest`: differs if the text differs; a source that cannot be read has a digest of the error. `build`: returns the
    settings. Raises `ConfigError` for mistakes.
    """

    digest: str
    build: Callable[[], Any]


class Source:
    """A source of settings.

    `place`: the name of the file or of the callable, for the log. `is_polled`: whether it is read again without the
    setting `reload`.
    """

    place: str
    is_polled = False

    def __init__(self) -> None:
        self._steps: tuple[Callable[[Any], Any], ...] = ()

    def then(self, step: Callable[[Any], Any]) -> Self:
        """Return a source that has what `step` makes of the settings."""
        copied = type(self).__new__(type(self))
        vars(copied).update(vars(self), _steps=(*self._steps, step))
        return copied

    def mark(self) -> object:
        """Return what is equal as long as the text is unchanged, cheaply. None if only the text can tell."""
        return None

    def locate(self, problem: str) -> str:
        """Return a problem with its place in the source."""
        return problem

    def snapshot(self, *, waits: bool = False) -> Snapshot:
        """Return what the source has now. Does not raise. `waits`: whether to wait while a file is being written."""
        try:
            text, build = self._read(waits=waits)
        except Exception as error:  # noqa: BLE001  # a callable of the app may raise anything
            return Snapshot(_digest(f"{type(error).__name__}: {error}"), partial(_raise, error))
        digest = _digest(text)
        return Snapshot(digest, partial(self._build, build, digest))

    def _read(self, *, waits: bool) -> tuple[str, Callable[[], Any]]:
        """Return the text, and a function that returns the settings."""
        raise NotImplementedError

    def _build(self, build: Callable[[], Any], digest: str) -> Any:
        settings = build()
        for step in self._steps:
            settings = step(settings)
        vars(settings)[ORIGIN] = Origin(self, digest)
        return settings


class FileSource(Source):
    """A settings file. `make`: returns the settings of its table."""

    def __init__(self, path: Path, make: Callable[[Mapping[str, Any]], Any]) -> None:
        super().__init__()
        self.place = str(path)
        self._path: Final = path
        self._absolute: Final = path.absolute()  # the app may change the folder later
        self._make: Final = make

    def mark(self) -> object:
        """Return what the file system says of the file; None if it is missing, or was written just now."""
        mark = self._stat()
        return None if mark is None or abs(time.time() - mark[0] / 1e9) < _SETTLED_AFTER else mark

    def locate(self, problem: str) -> str:
        """See `Source`."""
        return with_location(problem, (), self._path)

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._absolute)  # noqa: PTH116  # a third of the time of Path.stat
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self, *, waits: bool) -> tuple[str, Callable[[], Any]]:
        """Read the file. One that was written just now, or changes while it is read, may be half-written: wait."""
        for _ in range(_ATTEMPTS):
            before = self._stat()
            if waits and before is not None and abs(time.time() - before[0] / 1e9) < _QUIET:
                time.sleep(_QUIET)
            text = read_text(self._absolute, self._path)
            if self._stat() == before:
                break
        return text, lambda: self._make(parse_file(self._path, text))


class CallSource(Source):
    """A callable of the app that returns settings. `make`: returns the settings of what it returned."""

    is_polled = True

    def __init__(self, call: Callable[[], Any], place: str | None, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self.place = callable_name(call) if place is None else place
        self._call: Final = call
        self._make: Final = make

    def _read(self, *, waits: bool) -> tuple[str, Callable[[], Any]]:  # noqa: ARG002  # a call is never half-done
        try:
            value = _in_thread(self._call) if in_event_loop() else self._call()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"settings: {self.place} raised {type(error).__name__}", code="RL-068") from error
        text = repr(asdict(value) if isinstance(value, Struct) else value)
        return _ADDRESS.sub("", text), lambda: self._make(value)


class Origin(NamedTuple):
    """The source of some settings, and the digest of the text that it had."""

    source: Source
    digest: str

    def then(self, step: Callable[[Any], Any]) -> "Origin":
        """See `Source.then`."""
        return self._replace(source=self.source.then(step))


def _in_thread(call: Callable[[], Any]) -> Any:
    """Call a function in a thread, because it may need one without an event loop, as a query of Django's ORM does."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001  # raised below
            errors.append(error)

    thread = Thread(target=run, name="ratelimit_mw settings")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _raise(error: Exception) -> Any:
    raise error
