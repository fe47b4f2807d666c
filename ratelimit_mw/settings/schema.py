"""Describes the settings from their types: as a JSON Schema for editors, and as lists of options for the reference.

Editors support different drafts. Even Better TOML (taplo) supports draft 4 and ignores keywords next to a `$ref`. So
the schema uses no newer validation keyword, and wraps each `$ref` next to other keywords in an `allOf`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from ratelimit_mw.http.callables import RequestCallable
from ratelimit_mw.http.client_lists import ClientListEntry, HeaderOptions
from ratelimit_mw.http.keys import KeySpec
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import LimitOptions, LimitSpec
from ratelimit_mw.settings.options import Options
from ratelimit_mw.settings.rule import LimitsValue, Rule, RuleOptions

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
STRUCTS: Final[dict[Any, type[Struct] | None]] = {  # each table of a file; the struct with its defaults
    Options: Settings,
    RuleOptions: Rule,
    LimitOptions: LimitSpec,
    HeaderOptions: None,
}
NAMED: Final[dict[Any, str]] = {  # types with a name in the schema and in the reference
    LimitsValue: "limits",
    KeySpec: "key",
    ClientListEntry: "member",
    RequestCallable: "call",
    RuleOptions: "rule",
    LimitOptions: "item",
    HeaderOptions: "header",
}
_DESCRIPTIONS: Final = {  # the descriptions of named types other than tables
    "limits": "notation such as '100/minute', a table of one limit, a list of these, or limits by tier",
    "key": "ip, ip/24/56, user, route, all, header:NAME, cookie:NAME, call:PACKAGE.MODULE:FUNCTION, joined by | and +",
    "member": "a network or an address, a header with its value, or a callable",
    "call": "a function of the request, call:PACKAGE.MODULE:FUNCTION",
}
_CALL: Final = r"^\s*call:[^:\s]+:[^:\s]+\s*$"
_PLAIN: Final[dict[Any, str]] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_REQUIRED: Final = "required"


class Option(NamedTuple):
    """One option of a table. `default` is None if a file cannot express the default."""

    name: str
    kind: Any
    meaning: str
    default: Any
    required: bool


def options_of(table: Any) -> list[Option]:
    """Return the options of a TypedDict in order, but those whose meaning begins with `required` first.

    An option is required if it has no default, or if its meaning begins with `required:`.
    """
    struct = STRUCTS[table]
    defaults = {field.name: field.default for field in fields(struct)} if struct else {}
    own_options = []
    for name, hint in get_type_hints(table, include_extras=True).items():
        kind, meaning, *_ = get_args(hint)
        default = defaults.get(name, None if struct else NODEFAULT)
        required = default is NODEFAULT or meaning.startswith(f"{_REQUIRED}:")
        default = list(default) if isinstance(default, tuple) else default
        own_options.append(
            Option(name, _concrete_type(kind, default), meaning, None if default is NODEFAULT else default, required)
        )
    return sorted(own_options, key=lambda option: not option.meaning.startswith(_REQUIRED))


def alternatives(kind: Any) -> list[Any]:
    """Return the types of a union, or the type itself, that a file can express: without structs and plain mappings."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else [kind]
    return [one for one in kinds if not _only_in_code(one)]


def settings_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a settings file."""
    named = {name: _definition(kind, name) for kind, name in NAMED.items()}
    return {"$schema": DIALECT, "title": "ratelimit_mw settings", **_table(Options), "$defs": named}


def _concrete_type(kind: Any, default: Any) -> Any:
    """Return the type of an option in a file. `Any` becomes the type of the default; for a store, this is a URL.

    In a file, a callable is given by its name, so text next to a callable is dropped from a union.
    """
    if kind is Any:
        return type(default)
    kinds = [RequestCallable if get_origin(one) is Callable else one for one in alternatives(kind)]
    if kind in NAMED or RequestCallable not in kinds:
        return kind
    return Union[tuple(one for one in kinds if one is not str)]  # noqa: UP007  # the types are known only at run time


def _only_in_code(kind: Any) -> bool:
    """Return whether a type is a struct or a plain mapping, which a file cannot express."""
    return get_origin(kind) is Mapping or (isinstance(kind, type) and issubclass(kind, Struct))


def _definition(kind: Any, name: str) -> Schema:
    if is_typeddict(kind):
        return _table(kind)
    if kind == RequestCallable:
        return {"type": "string", "pattern": _CALL, "description": _DESCRIPTIONS[name]}
    options = [_schema(one) for one in alternatives(kind)]
    if kind == LimitsValue:
        options.append(_tiers(options))
    return {"description": _DESCRIPTIONS[name], "anyOf": options}


def _tiers(options: Sequence[Schema]) -> Schema:
    """Return the schema of limits by tier: a table without options of a limit, as in `parse_limits`."""
    of_a_tier = [option for option in options if option != _reference(NAMED[RequestCallable])]
    own_options = [{"required": [option.name]} for option in options_of(LimitOptions)]
    return {
        "type": "object",
        "description": "limits by tier: the names of tiers, and the limits of each",
        "minProperties": 1,
        "not": {"anyOf": own_options},
        "additionalProperties": {"anyOf": of_a_tier},
    }


def _table(table: Any) -> Schema:
    own_options = options_of(table)
    schema_so_far: Schema = {
        "type": "object",
        "description": (table.__doc__ or "").partition("\n")[0],
        "additionalProperties": False,
        "properties": {option.name: _property(option) for option in own_options},
    }
    required = [option.name for option in own_options if option.required]
    return schema_so_far | ({"required": required} if required else {})


def _property(option: Option) -> Schema:
    schema_so_far: Schema = {"description": option.meaning}
    if option.default is not None:
        schema_so_far["default"] = option.default
    schema = _schema(option.kind)
    return schema_so_far | ({"allOf": [schema]} if "$ref" in schema else schema)


def _schema(kind: Any) -> Schema:
    """Return the schema of a type. Raises `TypeError` for an unsupported type."""
    options = alternatives(kind)
    if kind in NAMED:
        return _reference(NAMED[kind])
    if len(options) != 1:
        return {"anyOf": [_schema(one) for one in options]}
    (only,) = options
    if only in NAMED:
        return _reference(NAMED[only])
    if only in _PLAIN:
        return {"type": _PLAIN[only]}
    if get_origin(only) is Literal:
        return {"enum": list(get_args(only))}
    if get_origin(only) is Sequence:
        return {"type": "array", "items": _schema(get_args(only)[0])}
    raise TypeError(f"got {kind!r}, which has no schema")


def _reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
