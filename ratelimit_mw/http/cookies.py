"""Reads the cookies of a request: once, only those that a limit needs, and only up to a length."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

MAX_LENGTH: Final = 8192  # characters of all Cookie headers; nginx accepts as many in one line, other servers many more


class Cookies(Mapping[str, str]):
    """The cookies that every app reads alike: omits names with several values, and values with escapes.

    If all Cookie headers are longer than `MAX_LENGTH`, none is read: `only` returns None, each name is ambiguous, and
    as a mapping it raises `ValueError`. So a callable that reads it fails, and the request is not exempt.
    """

    __slots__ = ("_is_too_long", "_unread", "_values")

    def __init__(self, lines: Sequence[str]) -> None:
        self._is_too_long: Final = sum(map(len, lines)) > MAX_LENGTH
        # WSGI servers join lines by commas
        self._unread = [] if self._is_too_long else ";".join(lines).replace(", ", ";").split(";")
        self._values: dict[str, Collection[str]] = {}  # the different values of each name that was read

    def only(self, name: str) -> str | None:
        """Return a cookie; None if it is absent or ambiguous."""
        values = self._values_of(name)
        value = next(iter(values)) if len(values) == 1 else None
        return None if value is None or "\\" in value else value

    def is_ambiguous(self, name: str) -> bool:
        """Return whether the request has this cookie in a form that apps may read differently."""
        return self._is_too_long or (self.only(name) is None and len(self._values_of(name)) > 0)

    def __getitem__(self, name: str) -> str:
        self._check_length()
        value = self.only(name)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        self._check_length()
        if self._unread:  # read all in one pass, because a pass for each name takes quadratic time
            self._values, self._unread = _read(self._unread), []
        return iter([name for name in self._values if self.only(name) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _values_of(self, name: str) -> Collection[str]:
        if name not in self._values:
            self._values[name] = _read(pair for pair in self._unread if name in pair).get(name, ())
        return self._values[name]

    def _check_length(self) -> None:
        if self._is_too_long:
            raise ValueError(f"the Cookie headers have more than {MAX_LENGTH} characters, so they are not read")


def _read(pairs: Iterable[str]) -> dict[str, Collection[str]]:
    """Return the different values of each name."""
    values: dict[str, set[str]] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        values.setdefault(name.strip(), set()).add(value.strip().strip('"'))
    return dict[str, Collection[str]](values)
