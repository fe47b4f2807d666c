"""What all rows of a run share: the number of rounds and calls, an event loop, a Redis server, and a progress line."""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from typing import Any, TextIO, TypeVar

from benchmarks.redis_server import RedisServer

T = TypeVar("T")


class Missing(Exception):
    """A contender needs a package or a program that is missing. The message says which."""


class Lab(AbstractContextManager["Lab", None]):
    """The shared resources of a run, in which each contender has `rounds` turns of `calls` calls.

    If `calls` is None, the row specifies the number. Progress is written to `progress`.
    """

    def __init__(self, rounds: int, calls: int | None, progress: TextIO) -> None:
        self.rounds = rounds
        self.calls = calls
        self.closing = ExitStack()  # closes at the end of a row what its contenders opened
        self._progress = progress
        self._title = ""
        self._shared = ExitStack()  # closes at the end of the run
        self._loop = self._shared.enter_context(asyncio.Runner())
        self._redis: RedisServer | None = None

    def __exit__(self, *_: object) -> None:
        with self._shared:
            self.closing.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop that all rows share."""
        return self._loop.run(work)

    def redis_url(self) -> str:
        """Return the URL of database 0 of a server of this run. The first call starts it. Raises `Missing`."""
        package("redis")
        if self._redis is None:
            try:
                self._redis = self._shared.enter_context(RedisServer())
            except FileNotFoundError:
                raise Missing("redis-server: not on PATH") from None
        return self._redis.url

    def begin(self, title: str) -> None:
        """Close what the row before opened, so that nothing of it runs beside this one. Show which row runs."""
        self.closing.close()
        self._title = title
        self._tell(title)

    def turn(self, done: int, rounds: int) -> None:
        """Show how many rounds are done."""
        if self._progress.isatty():
            self._tell(f"{self._title} {done}/{rounds}")

    def end(self) -> None:
        """Clear the progress line."""
        if self._progress.isatty():
            self._tell("")

    def _tell(self, text: str) -> None:
        self._progress.write(f"\r\x1b[K{text}" if self._progress.isatty() else f"{text}\n")
        self._progress.flush()


def package(name: str, distribution: str | None = None) -> Any:
    """Import a module. Raises `Missing`, which names what to install."""
    try:
        return import_module(name)
    except ImportError:
        raise Missing(f"{distribution or name.partition('.')[0]}: not installed") from None


def part(module: str, name: str) -> Any:
    """Return a member of a module that some versions of the package lack. Raises `Missing`."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        raise Missing(f"{module}.{name}: not there") from None
