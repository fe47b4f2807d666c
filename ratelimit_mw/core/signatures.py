"""Checks of callables in settings: which arguments they accept, and whether they are async."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from pathlib import PurePath
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError

if sys.version_info >= (3, 14):  # an annotation is evaluated when it is read, and may refer to undefined names
    from annotationlib import Format

    signature_of = partial(signature, annotation_format=Format.FORWARDREF)
else:
    signature_of = signature

REQUEST: Final = ("request",)
_APPS: Final[Mapping[str, Sequence[str]]] = {
    "ASGI": ("scope", "receive", "send"),
    "WSGI": ("environ", "start_response"),
    "Django": ("request",),
}
_MIDDLEWARE: Final = {kind: f"ratelimit_mw.{kind.lower()}.RateLimitMiddleware" for kind in _APPS}
LAMBDA: Final = "<lambda>"  # the name of each of them
ADD_THE_CLASS: Final = (
    "got a RateLimitMiddleware object, and the app creates it: app.add_middleware(RateLimitMiddleware, "
    "limits='100/minute')"
)


def explain_exempt(arguments: Sequence[object]) -> str:
    """Return the message for `@exempt()`, whose parentheses leave it without an endpoint. Else an empty text."""
    return "" if arguments else "got no endpoint: write @exempt without parentheses"


def is_async(call: Callable[..., Any]) -> bool:
    """Return whether a call returns an awaitable."""
    return iscoroutinefunction(call) or iscoroutinefunction(type(call).__call__)


def callable_name(call: Callable[..., Any]) -> str:
    """Return the name of a callable for logs and errors."""
    return getattr(call, "__qualname__", type(call).__qualname__)


def callable_place(call: Callable[..., Any]) -> str:
    """Return the name of a callable for logs; for lambdas, which all have the same name, also file, line and column."""
    name = callable_name(call)
    code = getattr(call, "__code__", None)
    if code is None or not name.endswith(LAMBDA):
        return name
    column = next((column for _, _, column, _ in code.co_positions() if column), 0)
    return f"{name} at {PurePath(code.co_filename).name}:{code.co_firstlineno}:{column + 1}"


def parameters_of(call: Callable[..., Any]) -> Sequence[Parameter] | None:
    """Return the parameters of a callable; None if they are unknown, as for many callables written in C."""
    try:
        return list(signature_of(call).parameters.values())
    except (TypeError, ValueError):
        return None


def accepts(call: Callable[..., Any], positional: Sequence[Any], keywords: Mapping[str, Any] = {}) -> bool:
    """Return whether `call` accepts these arguments; True if its signature is unknown."""
    try:
        bound = signature_of(call)
    except (TypeError, ValueError):
        return True
    try:
        bound.bind(*positional, **keywords)
    except TypeError:
        return False
    return True


def check_callable(call: Callable[..., Any], names: Sequence[str], display_name: str | None) -> None:
    """Raise `ConfigError` unless `call` accepts the arguments `names` and returns its result.

    `display_name`: the text of the setting, if the setting names the callable by text.
    """
    name = display_name or callable_name(call)
    if not accepts(call, names):
        own = getattr(call, "__name__", "")
        parameters = ", ".join(names)
        example = f"{f'lambda {parameters}'.rstrip()}: ..." if own in ("", LAMBDA) else f"def {own}({parameters})"
        arguments = f"with {' and '.join(f'the {one}' for one in names)}" if names else "without arguments"
        raise ConfigError(f"{name} takes {parameters_text(call)}; it is called {arguments}: {example}", code="RL-034")
    reject_dependency(call, name)
    if isgeneratorfunction(call) or isasyncgenfunction(call):
        raise ConfigError(f"got {name}, which yields; expected a function that returns its answer", code="RL-034")


def reject_dependency(call: Callable[..., Any], name: str) -> None:
    """Raise `ConfigError` for a callable written as a FastAPI dependency: nothing would fill in its parameters."""
    for one in _parameters_with_annotations(call):
        marks = (one.default, *getattr(one.annotation, "__metadata__", ()))  # the default, and what Annotated lists
        mark = next((mark for mark in marks if _is_of_fastapi(mark)), None)
        if mark is not None:
            raise ConfigError(
                f"{name} is not called by FastAPI, so its parameter {one.name} gets no {type(mark).__name__}(...); "
                "read the request instead, such as request.header('x-api-key')",
                code="RL-034",
            )


def _is_of_fastapi(mark: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "fastapi" for kind in type(mark).__mro__)


def _parameters_with_annotations(call: Callable[..., Any]) -> Sequence[Parameter]:
    """Return the parameters. Annotations that are text are evaluated, unless one of them cannot be."""
    if "fastapi" in sys.modules:
        with suppress(Exception):  # an annotation may be any expression
            return list(signature(call, eval_str=True).parameters.values())
    return parameters_of(call) or ()


def check_app(app: object, kind: str) -> None:
    """Raise `ConfigError` if `app` fits middleware of another kind, and not of this `kind`."""
    if not callable(app) or accepts(app, _APPS[kind]):
        return
    other = next((other for other, names in _APPS.items() if accepts(app, names)), None)
    if other is not None:
        raise ConfigError(
            f"app: {callable_name(app)} is called with {', '.join(_APPS[other])}, and this is the middleware for "
            f"{kind}; use {_MIDDLEWARE[other]}",
            code="RL-048",
        )


def reject_async(call: Callable[..., Any], context: str = "") -> None:
    """Raise `ConfigError` for an async callable. `context`: the place that cannot await, as in " under WSGI"."""
    if is_async(call):
        raise ConfigError(
            f"got {callable_name(call)}, which is async; expected a plain function{context}", code="RL-035"
        )


def parameters_text(call: Callable[..., Any]) -> str:
    """Format the parameters of a callable for a message."""
    parts: list[str] = []
    for one in parameters_of(call) or ():
        if one.kind is Parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in parts):
            parts.append("*")
        stars = "*" if one.kind is Parameter.VAR_POSITIONAL else "**" if one.kind is Parameter.VAR_KEYWORD else ""
        parts.append(stars + one.name)
    return f"({', '.join(parts)})" if parts else "no parameter"
