"""Exceptions of this package, except `RateLimited`, which is in `verdict`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Self


class RateLimitError(Exception):
    """Base class of all exceptions of this package."""


class ConfigError(RateLimitError, ValueError):
    """One or more problems with a limit, rule, path, key or setting.

    Each text names the place (`rules[2].limits[0]`), the value and what is expected. `problems`: the texts, in order.
    `code`: is appended to each text, see docs/reference/messages.md; empty if the texts have codes already.
    """

    def __init__(self, *problems: str, code: str = "") -> None:
        self.problems = tuple(with_code(problem, code) for problem in problems)
        super().__init__(*self.problems)

    def __str__(self) -> str:
        """Return the only problem, or the number of problems followed by one per line."""
        if len(self.problems) == 1:
            return self.problems[0]
        return "\n  ".join([f"{len(self.problems)} mistakes:", *self.problems])

    def with_prefix(self, place: str) -> "ConfigError":
        """Return a copy with `place`, such as `rules[2]`, before the place of each problem."""
        return ConfigError(*[_with_place(place, text) for text in self.problems])


class ConfigTypeError(ConfigError, TypeError):
    """A limit is attached to an object of a kind that cannot have one."""


def with_code(text: str, code: str) -> str:
    """Return `text` with its code at the end, in brackets."""
    return f"{text} [{code}]" if code else text


@contextmanager
def error_location(place: str) -> Iterator[None]:
    """Put `place` before the places of a ConfigError raised in the block."""
    try:
        yield
    except ConfigError as error:
        raise error.with_prefix(place) from None


class ErrorCollector:
    """Collects `ConfigError`s, so that one exception reports all problems."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    @contextmanager
    def collect(self, place: str = "") -> Iterator[None]:
        """Catch a ConfigError raised in the block, and put `place` before its places."""
        try:
            yield
        except ConfigError as error:
            self._problems += (error.with_prefix(place) if place else error).problems

    def run(self, checks: Iterable[Callable[[], object]]) -> None:
        """Run each check, and catch the ConfigError that it raises."""
        for check in checks:
            try:
                check()
            except ConfigError as error:
                self._problems += error.problems

    def add(self, problems: Iterable[str]) -> None:
        """Add the texts of problems."""
        self._problems += problems

    def raise_if_any(self) -> None:
        """Raise one ConfigError with all collected problems, without duplicates."""
        if self._problems:
            raise ConfigError(*dict.fromkeys(self._problems))


class StoreError(RateLimitError):
    """The store gave no usable reply in time: it is down, slow or full, or its reply is invalid.

    `rejected`: the server replied, but rejects this program until the configuration changes (the password, a
    permission, or the number of the database).
    """

    def __init__(self, *args: object, rejected: bool = False) -> None:
        super().__init__(*args)
        self.rejected = rejected

    def copy(self) -> Self:
        """Return a copy to raise in another request. Each needs its own, because an exception keeps its traceback."""
        return type(self)(*self.args, rejected=self.rejected)


class StoreNotQueried(StoreError):
    """The store was not queried, because the circuit breaker is open or the queue is full; or it was closed.

    A request in progress during a close may already be counted by the server. Not counted as a failure of the store.
    """


def _with_place(place: str, text: str) -> str:
    separator = "" if text.startswith("[") else "." if _starts_with_place(text) else ": "
    return f"{place}{separator}{text}"


def _starts_with_place(text: str) -> bool:
    head = text.split(": ", 1)[0]
    return bool(head) and all(part.split("[", 1)[0].isidentifier() for part in head.split("."))


@contextmanager
def require(package: str, install: str = "") -> Iterator[None]:
    """Raise `ImportError` with an install command if the block cannot import `package`.

    `install`: the argument of pip, if it differs.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        needed = f"this part of ratelimit_mw needs {package}"
        raise ImportError(f"{needed}: pip install {install or package}", name=package) from None
