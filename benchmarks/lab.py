"""What all rows of a run share: how often, an event loop, a Redis server, and the line that tells how far it is."""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from typing import Any, TextIO, TypeVar

from benchmarks.redis_server import RedisServer

T = TypeVar("T")


class Missing(Exception):
    """A package or a program that a contender needs is not there; the message says which."""


class Lab(AbstractContextManager["Lab", None]):
    """`rounds` turns for each contender, of `calls` calls each (None: what the row says).

    Progress goes to `progress`.
    """

    def __init__(self, rounds: int, calls: int | None, progress: TextIO) -> None:
        self.rounds = rounds
        self.calls = calls
        self.closing = ExitStack()  # what contenders opened and the end of the run closes
        self._progress = progress
        self._title = ""
        self._loop = self.closing.enter_context(asyncio.Runner())
        self._redis: RedisServer | None = None

    def __exit__(self, *_: object) -> None:
        self.closing.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop that all rows share."""
        return self._loop.run(work)

    def redis_url(self) -> str:
        """Database 0 of a server of our own, started when first asked for. Raises `Missing`."""
        package("redis")
        if self._redis is None:
            try:
                self._redis = self.closing.enter_context(RedisServer())
            except FileNotFoundError:
                raise Missing("redis-server: not on PATH") from None
        return self._redis.url

    def begin(self, title: str) -> None:
        """Tell which row it is."""
        self._title = title
        self._tell(title)

    def turn(self, done: int, rounds: int) -> None:
        """Tell how many rounds are done."""
        if self._progress.isatty():
            self._tell(f"{self._title} {done}/{rounds}")

    def end(self) -> None:
        """Leave an empty line behind."""
        if self._progress.isatty():
            self._tell("")

    def _tell(self, text: str) -> None:
        self._progress.write(f"\r\x1b[K{text}" if self._progress.isatty() else f"{text}\n")
        self._progress.flush()


def package(name: str, distribution: str | None = None) -> Any:
    """An imported module. Raises `Missing`, naming what to install."""
    try:
        return import_module(name)
    except ImportError:
        raise Missing(f"{distribution or name.partition('.')[0]}: not installed") from None


def part(module: str, name: str) -> Any:
    """A part of a package that not every version of it has. Raises `Missing`."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        raise Missing(f"{module}.{name}: not there") from None
