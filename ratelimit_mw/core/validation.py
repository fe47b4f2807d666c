"""Validation of options, shared by all tables of the settings.

A table is a TypedDict whose fields are `Annotated[type, "description"]`. Checks, the JSON Schema and the reference are
generated from it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.core.peer_options import translate_option
from ratelimit_mw.core.signatures import accepts, callable_name, parameters_of

T = TypeVar("T")
P = ParamSpec("P")
# names that this package gives to its own rules and limits; settings cannot use them
RESERVED_NAMES: Final = ("default", "app", "unmatched", "preflight", "blocklist")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a header name (RFC 9110, 5.6.2)

if TYPE_CHECKING:
    from msgspec import StructMeta  # lets type checkers check keyword arguments against fields

    OptionsMeta = StructMeta
else:

    class OptionsMeta(type(Struct)):
        """Metaclass of option Structs. Reports unknown keyword arguments like unknown options of a table."""

        def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
            """Create an instance. Raises `ConfigError` for unknown keyword arguments."""
            known = cls.__struct_fields__
            if unknown := [unknown_key_message(option, known) for option in keywords if option not in known]:
                raise ConfigError(*unknown)
            return super().__call__(*arguments, **keywords)


def reject_unknown_keys(values: Iterable[object], table: type, elsewhere: Mapping[str, str] = {}) -> None:
    """Raise `ConfigError` for keys that the TypedDict `table` lacks, with the closest match.

    `elsewhere`: options of other tables, and where they belong.
    """
    known = list(table.__annotations__)
    unknown = [unknown_key_message(option, known, elsewhere) for option in values if option not in known]
    if unknown:
        raise ConfigError(*unknown)


def build_checked(
    kind: Callable[..., T], values: Mapping[Any, Any], table: type, elsewhere: Mapping[str, str] = {}
) -> T:
    """Build a `kind` from `values`, whose keys `table` must know. Raises one `ConfigError` for all problems."""
    mistakes = ErrorCollector()
    with mistakes.collect():
        reject_unknown_keys(values, table, elsewhere)
    with mistakes.collect():
        built = kind(**{option: value for option, value in values.items() if option in table.__annotations__})
    mistakes.raise_if_any()
    return built


def unknown_key_message(option: object, known: Sequence[str], elsewhere: Mapping[str, str] = {}) -> str:
    """Return the message on an unknown option: where it belongs, its equivalent here, or the closest match."""
    if isinstance(option, str) and option in elsewhere:
        return f"unknown setting `{option}` here: it goes {elsewhere[option]}"
    if isinstance(option, str) and (translation := translate_option(option)) is not None:
        here, meaning = translation
        if here == "limits" and "limits" not in known and "limit" in known:  # a table with a single limit
            here = "limit"
        goes = "" if here in known else f"; it goes {elsewhere.get(here, 'into the settings of the middleware')}"
        return f"unknown setting `{option}`: here it is `{here}`: {meaning}{goes}"
    near = closest_match(str(option), known)
    hint = f": did you mean `{near}`?" if near else f"; there are {', '.join(known)}"
    return f"unknown setting `{option}`{hint}"


def check_arguments(
    table: type | None = None,
    elsewhere: Mapping[str, str] = {},
    explain: Callable[[Sequence[object]], str] = lambda _: "",
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function or constructor to raise `ConfigError` instead of TypeError for wrong arguments.

    `table`: options that it accepts besides its parameters. `elsewhere`: options of other tables, and where they
    belong. `explain`: returns the message for positional arguments whose purpose it recognizes, else an empty text.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> T:
            try:
                return function(*arguments, **keywords)
            except TypeError:
                if accepts(function, arguments, keywords):
                    raise
            if text := explain(arguments):
                raise ConfigError(text)
            known = list(parameters_of(function) or ())
            raise ConfigError(*_call_problems(known, arguments, keywords, table, elsewhere))

        return call

    return decorate


def _call_problems(
    parameters: Sequence[Parameter],
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    table: type | None,
    elsewhere: Mapping[str, str],
) -> Sequence[str]:
    """Return the problems of a call that a function does not accept."""
    named = [one for one in parameters if one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    known = [one.name for one in named if one.name != "self"] + (list(table.__annotations__) if table else [])
    if unknown := [unknown_key_message(option, known, elsewhere) for option in keywords if option not in known]:
        return unknown
    positional_names = [one.name for one in named if one.kind is not Parameter.KEYWORD_ONLY]
    by_place = dict(zip(positional_names, arguments, strict=False))
    twice = [
        f"{option}: given twice, {_repr(by_place[option])} by position and `{option}=`; a callable that gives the key "
        "goes into `key`"
        for option in keywords
        if option in by_place
    ]
    expected = ", ".join(name for name in positional_names if name != "self")
    extra = [f"got {_repr(one)} by position, expected there {expected}" for one in arguments[len(positional_names) :]]
    missing = [one.name for one in named if one.default is Parameter.empty and one.name not in {**by_place, **keywords}]
    examples = {"limits": ", such as '100/minute'"}
    return [*twice, *extra, *(f"{option}: required{examples.get(option, '')}" for option in missing)]


def _repr(value: object) -> str:
    return callable_name(value) if callable(value) else f"{value!r:.100}"


def reject_reserved_name(name: str | None) -> None:
    """Raise `ConfigError` for a reserved name."""
    if name in RESERVED_NAMES:
        raise ConfigError(f"name: got {name!r}, which is reserved; choose another")


def check_bool(field: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is true or false."""
    if type(value) is not bool:
        raise ConfigError(f"{field}: got {value!r}, expected true or false")


def check_choice(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{field}: got {value!r}, expected one of {', '.join(allowed)}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean ...?` if a known word is close, else an empty text."""
    match = closest_match(word, known)
    return f", did you mean {match!r}?" if match else ""


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is closest to a misspelled one, or None."""
    return next(iter(get_close_matches(word, list(known), n=1)), None)
