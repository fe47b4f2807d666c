"""Finds decorators and dependencies of limits that are written in the wrong way or place. Imports no framework."""

import sys
from collections.abc import Iterator, Mapping
from inspect import isfunction, unwrap
from itertools import count
from typing import Any, Final, NamedTuple

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.signatures import LAMBDA, callable_name

USE_LIMIT: Final = "for web endpoints use `limit` of ratelimit_mw.fastapi, starlette, flask or django"
_REGISTRIES: Final = {("starlette", "Starlette"), ("starlette", "Router"), ("flask", "Flask")}


class AppliedAt(NamedTuple):
    """The statement that applies a decorator. `variables`: those that it can read, by name."""

    file: str
    line: int
    variables: Mapping[str, object]


def applied_at() -> AppliedAt:
    """Return the statement outside this package that is calling into it, as `warnings` finds it."""
    calls = map(sys._getframe, count())  # noqa: SLF001  # the only way to find a caller
    call = next(call for call in calls if str(call.f_globals.get("__name__")).partition(".")[0] != "ratelimit_mw")
    return AppliedAt(call.f_code.co_filename, call.f_lineno, {**call.f_globals, **call.f_locals})


def check_parentheses(limits: object) -> None:
    """Raise `ConfigError` if `limits` is a function or class: then a decorator was written without its parentheses."""
    if isinstance(limits, (type, classmethod, staticmethod)) or _is_being_decorated(limits):
        name = callable_name(limits) if callable(limits) else type(limits).__name__
        raise ConfigError(f'limits: got {name}, expected limits: did you mean @limit("5/minute")?', code="RL-047")


def _is_being_decorated(limits: object) -> bool:
    """Return whether the caller executes a line of this function. This happens only while its decorators are called."""
    code = getattr(unwrap(limits), "__code__", None) if callable(limits) else None
    if code is None or code.co_name == LAMBDA:
        return False
    place = applied_at()
    last = max((line for *_, line in code.co_lines() if line is not None), default=0)
    return bool(code.co_filename == place.file and code.co_firstlineno <= place.line <= last)


def registered_path(function: object) -> str | None:
    """Return the path at which an app or router in a variable of the caller has registered this function, or None.

    A decorator looks there while it runs, because without a middleware no code of this package may run later.
    """
    if not isfunction(function) or not {"starlette", "flask"} & sys.modules.keys():
        return None
    for known in applied_at().variables.values():
        if not _REGISTRIES.isdisjoint(_names_of(type(known))):
            path = next((path for path, endpoint in _endpoints_of(known) if endpoint is function), None)
            if path is not None:
                return path
    return None


def reject_registered(function: object) -> None:
    """Raise `ConfigError` if an app or router in a variable of the caller has this function already, unlimited."""
    path = registered_path(function)
    if path is not None:
        raise ConfigError(
            f"limit: got {callable_name(function)}, which is registered for {path} already, without this limit; "  # type: ignore[arg-type]  # it is a function
            f"{USE_LIMIT}, below what registers the route",
            code="RL-046",
        )


def _names_of(kind: type) -> set[tuple[str, str]]:
    """Return the package and the name of a class, and of each of its bases."""
    return {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}


def _endpoints_of(registry: Any) -> Iterator[tuple[str, object]]:
    """Yield the endpoints of an app or router, with their paths."""
    views = getattr(registry, "view_functions", None)
    if views is None:
        yield from ((str(getattr(one, "path", "")), getattr(one, "endpoint", None)) for one in registry.routes)
        return
    for rule in registry.url_map.iter_rules():
        yield rule.rule, views.get(rule.endpoint)


class NoDependency:
    """In the annotation of a parameter, makes FastAPI reject the function or class as a dependency.

    Without it, FastAPI would take the parameter for one of the query. `text`: the text of the `ConfigError`.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text: Final = text

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> Any:
        """Raise `ConfigError`. Pydantic calls this when FastAPI makes a field of a parameter."""
        raise ConfigError(self._text, code="RL-047")
