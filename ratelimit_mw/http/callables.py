"""Callables of the user: how settings name them, and what they answered for one request.

The Gate calls them, before anything is charged; whoever needs an answer reads it here, where nonsense counts as said
in the docs and never frees a request.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from inspect import isawaitable, iscoroutine
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import REQUEST, callable_name, check_callable, reject_async
from ratelimit_mw.http.request import Request, as_text

RequestCallable = Callable[[Request], Awaitable[Any] | Any]
Predicate = Callable[[Request], bool] | str  # yes or no; text is its name
CallResults = Mapping[RequestCallable, Any]
FAILED: Final = object()  # the answer of a callable that raised
WHEN_FAILURE: Final = "when", "the rule applies to the request"  # a setting, and what its failure means
ENABLED_FAILURE: Final = "enabled", "the request is limited"
_PREFIX: Final = "call:"


def is_callable_name(text: object) -> bool:
    """Whether a setting is the name of a callable: `call:package.module:function`."""
    return isinstance(text, str) and text.strip().startswith(_PREFIX)


def resolve_callable(
    value: object, argument_names: Sequence[str] | None = REQUEST, *, plain: bool = False
) -> RequestCallable:
    """A callable, or one that `call:package.module:function` names. Raises `ConfigError` for anything else.

    `argument_names`: what it is called with, which it must take; None where more than one form is allowed. `plain`:
    nothing awaits its answer, so it must not be async.
    """
    text = value.strip() if isinstance(value, str) and is_callable_name(value) else None
    function = value if text is None else _import_callable(text)
    if not callable(function):
        raise ConfigError(f"got {value!r:.100}, expected a callable, or call:PACKAGE.MODULE:FUNCTION")
    try:
        hash(function)
    except TypeError as error:
        raise ConfigError(f"got {function!r:.100}, expected a callable that can be hashed: {error}") from None
    if argument_names is not None:
        check_callable(function, argument_names, text)
    if plain:
        reject_async(function)
    return function


def key_result(call: RequestCallable, results: CallResults) -> str | None:
    """Its answer as a key: text, a whole number or a UUID; None when it is not there or no such thing."""
    result = results[call]
    text = as_text(result)
    if text is None and not _is_absent(result) and result is not FAILED:
        warn_throttled(
            f"key {callable_name(call)}", "returned %s, not text: it counts as not there", type(result).__name__
        )
    return text


def key_callable_failed(call: RequestCallable, results: CallResults) -> bool:
    """Whether it raised, or returned what is no key: not there, and no reason to exempt."""
    result = results[call]
    return result is FAILED or (not _is_absent(result) and as_text(result) is None)


def _is_absent(result: object) -> bool:
    """None or empty text; no comparison, which an answer may define for itself."""
    return result is None or (isinstance(result, str) and len(result) == 0)


def cost_result(call: RequestCallable, results: CallResults) -> int:
    """Its answer as a cost: a whole number, at most 2**53 - 1, which never passes; anything else counts 1."""
    result = results[call]
    if type(result) is int and result >= 0:
        return min(result, MAX_EXACT_INT - 1)  # a client may be who says how much
    if result is not FAILED:
        warn_throttled(
            f"cost {callable_name(call)}", "returned %s, no whole number from 0: it counts 1", type(result).__name__
        )
    return 1


def evaluate_predicate(call: RequestCallable, request: Request, setting: str, effect: str) -> bool | None:
    """What a plain callable says about a request, yes or no; None when it raised or said something else.

    `setting`, `effect`: for the log, which setting it is, and what its failure means for the request.
    """
    try:
        result = call(request)
    except Exception as error:  # noqa: BLE001  # a callable that raises never frees a request
        warn_throttled(f"{setting} {callable_name(call)}", "raised an error: %s", effect, error=error)
        return None
    if isinstance(result, bool):
        return result
    close_unawaited(result)
    description = "something to await" if isawaitable(result) else type(result).__name__
    warn_throttled(f"{setting} {callable_name(call)}", "returned %s instead of True or False: %s", description, effect)
    return None


def close_unawaited(result: object) -> None:
    """Where nothing can be awaited, a coroutine is nonsense: close it, else Python warns of it once more."""
    if iscoroutine(result):
        result.close()


def _import_callable(name: str) -> object:
    module, _, attribute = name.removeprefix(_PREFIX).partition(":")
    try:
        function: object = getattr(import_module(module), attribute)
    except Exception as error:  # whatever that module does when it is imported
        raise ConfigError(
            f"got {name!r}, expected call:PACKAGE.MODULE:FUNCTION of a function that can be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise ConfigError(f"got {name!r}, which is no function but {type(function).__name__}")
    return function
