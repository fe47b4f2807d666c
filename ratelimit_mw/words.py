"""The words of the settings: what every table of them shares.

A table is a TypedDict whose fields are `Annotated[type, "what it means"]`: checks, the JSON Schema and the reference
are made from it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ratelimit_mw.errors import ConfigError, Mistakes
from ratelimit_mw.notation import close_to

T = TypeVar("T")
OWN_NAMES: Final = ("default", "app", "unmatched", "preflight", "blocklist")  # of rules and limits that have no other
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a header's name (RFC 9110, 5.6.2)


def check_words(given: Iterable[object], table: type, elsewhere: Mapping[str, str] = {}) -> None:
    """Raises `ConfigError` for the words that the TypedDict `table` does not know, with the nearest that it knows.

    `elsewhere`: where words of other tables go.
    """
    known = list(table.__annotations__)
    unknown = [_unknown(word, known, elsewhere) for word in given if word not in known]
    if unknown:
        raise ConfigError(*unknown)


def made(kind: Callable[..., T], given: Mapping[Any, Any], table: type, elsewhere: Mapping[str, str] = {}) -> T:
    """A `kind` of what is given, under words that the table knows. Raises `ConfigError` for all that is wrong."""
    mistakes = Mistakes()
    with mistakes.at():
        check_words(given, table, elsewhere)
    with mistakes.at():
        found = kind(**{word: value for word, value in given.items() if word in table.__annotations__})
    mistakes.tell()
    return found


def _unknown(word: object, known: Sequence[str], elsewhere: Mapping[str, str]) -> str:
    if isinstance(word, str) and word in elsewhere:
        return f"unknown setting `{word}` here: it goes {elsewhere[word]}"
    near = close_to(str(word), known)
    hint = f": did you mean `{near}`?" if near else f"; there are {', '.join(known)}"
    return f"unknown setting `{word}`{hint}"


def check_name(name: str | None) -> None:
    """Raises `ConfigError` for a name that is ours."""
    if name in OWN_NAMES:
        raise ConfigError(f"name: found {name!r}, which has a meaning of its own here; choose another")


def flags(field: str, value: object) -> None:
    """Raises `ConfigError` unless `value` is true or false."""
    if type(value) is not bool:
        raise ConfigError(f"{field}: found {value!r}, allowed is true or false")


def one_of(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raises `ConfigError` unless `value` is one of these."""
    if value not in allowed:
        raise ConfigError(f"{field}: found {value!r}, allowed is one of {', '.join(allowed)}")
