"""The errors this package raises. `RateLimited`, which carries a verdict, is in `verdict`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self


class RateLimitError(Exception):
    """Base of every error of this package."""


class ConfigError(RateLimitError, ValueError):
    """A limit, rule, path, key or setting is wrong: one problem, or all that were found.

    Each names the place (`rules[2].limits[0]`), what was found and what is allowed. `problems`: their texts, in order.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        """The problem; of several, each on a line of its own below their number."""
        if len(self.problems) == 1:
            return self.problems[0]
        return "\n  ".join([f"{len(self.problems)} mistakes:", *self.problems])

    def with_prefix(self, place: str) -> "ConfigError":
        """The same error, seen from one level further out: `with_prefix("rules[2]")` puts that before each place."""
        return ConfigError(*[_with_place(place, text) for text in self.problems])


@contextmanager
def error_location(place: str) -> Iterator[None]:
    """A ConfigError that is raised inside is seen from `place`."""
    try:
        yield
    except ConfigError as error:
        raise error.with_prefix(place) from None


class ErrorCollector:
    """Collects `ConfigError`s, so that whoever made several reads of all at once."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    @contextmanager
    def collect(self, place: str = "") -> Iterator[None]:
        """Keep a ConfigError that is raised inside, seen from `place`."""
        try:
            yield
        except ConfigError as error:
            self._problems += (error.with_prefix(place) if place else error).problems

    def add(self, problems: Iterable[str]) -> None:
        """Keep these too."""
        self._problems += problems

    def raise_if_any(self) -> None:
        """Raise what was kept, as one ConfigError."""
        if self._problems:
            raise ConfigError(*dict.fromkeys(self._problems))


class StoreError(RateLimitError):
    """The store gave no usable answer in time: it is down, slow, full, or answered nonsense.

    `rejected`: the server answered, and rejects us until a setting is changed: a password, a right, a database.
    """

    def __init__(self, *args: object, rejected: bool = False) -> None:
        super().__init__(*args)
        self.rejected = rejected

    def copy(self) -> Self:
        """A copy, for another request: an error that is raised remembers where."""
        return type(self)(*self.args, rejected=self.rejected)


class StoreNotAsked(StoreError):
    """The store was not asked, by a decision of this process: that says nothing of the store."""


def _with_place(place: str, text: str) -> str:
    separator = "" if text.startswith("[") else "." if _starts_with_place(text) else ": "
    return f"{place}{separator}{text}"


def _starts_with_place(text: str) -> bool:
    head = text.split(": ", 1)[0]
    return bool(head) and all(part.split("[", 1)[0].isidentifier() for part in head.split("."))


@contextmanager
def require(package: str) -> Iterator[None]:
    """Inside, `package` is imported. Raises `ImportError` that says what to install when it cannot be found."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ImportError(f"this part of ratelimit_mw needs {package}: pip install {package}", name=package) from None
