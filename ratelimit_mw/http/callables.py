"""Imports the callables that settings name, and validates what they return.

The gate calls them before it charges anything. An invalid result never exempts a request from its limits.
"""

import math
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from inspect import isawaitable, iscoroutine
from pathlib import Path
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.limit import MAX_EXACT_INT
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import REQUEST, callable_place, check_callable, reject_async
from ratelimit_mw.core.validation import Check
from ratelimit_mw.http.request import Request, as_text

RequestCallable = Callable[[Request], Awaitable[Any] | Any]
Predicate = Callable[[Request], bool] | str  # text is the name of a callable
CallResults = Mapping[RequestCallable, Any]
FAILED: Final = object()  # the result of a callable that raised
WHEN_FAILURE: Final = "when", "the rule applies to the request"  # the setting, and the effect if its callable fails
ENABLED_FAILURE: Final = "enabled", "the request is limited"
_INVALID_NUMBERS: Final = {int: "a negative int", float: "a negative or infinite float, or nan"}
_PREFIX: Final = "call:"


def is_callable_name(text: object) -> bool:
    """Return whether a setting names a callable: `call:package.module:function`."""
    return isinstance(text, str) and text.strip().startswith(_PREFIX)


def resolve_callable(
    value: object, argument_names: Sequence[str] | None = REQUEST, *, plain: bool = False
) -> RequestCallable:
    """Return a callable, which a setting may also name as `call:package.module:function`.

    `argument_names`: the arguments that it must accept; None skips this check, for settings that allow several
    signatures. `plain`: rejects async callables, because nothing awaits the result. Raises `ConfigError`.
    """
    text = value.strip() if isinstance(value, str) and is_callable_name(value) else None
    function = value if text is None else _import_callable(text)
    if not callable(function):
        raise ConfigError(f"got {value!r:.100}, expected a callable, or call:PACKAGE.MODULE:FUNCTION", code="RL-033")
    try:
        hash(function)
    except TypeError as error:
        raise ConfigError(
            f"got {function!r:.100}, expected a callable that can be hashed: {error}", code="RL-033"
        ) from None
    if argument_names is not None:
        check_callable(function, argument_names, text)
    if plain:
        reject_async(function)
    return function


def callable_check(argument_names: Sequence[str] | None = REQUEST, *, plain: bool = False) -> Check:
    """Return a check of an option by `resolve_callable`, which has the same parameters."""

    def check(option: str, value: object) -> None:
        with error_location(option):
            resolve_callable(value, argument_names, plain=plain)

    return check


def key_result(call: RequestCallable, results: CallResults) -> str | None:
    """Return the callable's result as a key, or None if it is missing or invalid.

    Text, whole numbers and UUIDs are valid.
    """
    result = results[call]
    text = as_text(result)
    if text is None and not _is_absent(result) and result is not FAILED:
        warn_throttled(
            f"key {callable_place(call)}",
            "returned %s, not text: the key counts as missing",
            type(result).__name__,
            code="RL-215",
            call=call,
        )
    return text


def key_callable_failed(call: RequestCallable, results: CallResults) -> bool:
    """Return whether the callable raised or returned an invalid key.

    The key then counts as missing, but `missing_key = "exempt"` does not exempt the request.
    """
    result = results[call]
    return result is FAILED or (not _is_absent(result) and as_text(result) is None)


def _is_absent(result: object) -> bool:
    """Return whether a result is None or empty text. Uses no `==`, which the result's class may override."""
    return result is None or (isinstance(result, str) and len(result) == 0)


def cost_result(call: RequestCallable, results: CallResults, least: int = 0) -> int:
    """Return the callable's result as a cost; 1 if it is not a number, `least` (0 or 1) or more.

    Fractions are rounded up. Larger costs are cut to 2**53 - 1, which no limit admits.
    """
    result = whole_units(results[call])
    if type(result) is int and result >= least:
        return min(result, MAX_EXACT_INT - 1)  # the result may come from the client
    if type(result) is int and result == 0:
        warn_throttled(
            f"cost {callable_place(call)}",
            "returned 0, which a limit with settle or count_status always admits: the request costs 1",
            code="RL-216",
            call=call,
        )
    elif result is not FAILED:
        warn_throttled(
            f"cost {callable_place(call)}",
            "returned %s, not a finite number, 0 or more: the request costs 1",
            _INVALID_NUMBERS.get(type(result), type(result).__name__),
            code="RL-216",
            call=call,
        )
    return 1


def whole_units(value: object) -> object:
    """Return a float rounded up to whole units. Any other value, and a negative or infinite float, is unchanged."""
    return math.ceil(value) if isinstance(value, float) and 0 <= value < math.inf else value


def evaluate_predicate(call: RequestCallable, request: Request, setting: str, effect: str) -> bool | None:
    """Return the callable's result for a request; None if it raised or did not return a bool.

    `setting`, `effect`: for the log, the name of the setting and what its failure means for the request.
    """
    try:
        result = call(request)
    except Exception as error:  # noqa: BLE001  # an error must not exempt the request
        warn_throttled(
            f"{setting} {callable_place(call)}", "raised an error: %s", effect, error=error, code="RL-217", call=call
        )
        return None
    if isinstance(result, bool):
        return result
    close_unawaited(result)
    description = "something to await" if isawaitable(result) else type(result).__name__
    warn_throttled(
        f"{setting} {callable_place(call)}",
        "returned %s instead of True or False: %s",
        description,
        effect,
        code="RL-218",
        call=call,
    )
    return None


def close_unawaited(result: object) -> None:
    """Close a coroutine that will not be awaited. Otherwise Python would warn about it, in addition to this package."""
    if iscoroutine(result):
        result.close()


def import_from_working_folder() -> None:
    """Let `call:` name a module in the current folder, where the commands of this package are run."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def _import_callable(name: str) -> object:
    module, _, attribute = name.removeprefix(_PREFIX).partition(":")
    try:
        function: object = getattr(import_module(module), attribute)
    except Exception as error:  # importing a module runs its code, which may raise anything
        raise ConfigError(
            f"got {name!r}, expected call:PACKAGE.MODULE:FUNCTION of a function that can be imported: "
            f"{type(error).__name__}: {error}",
            code="RL-033",
        ) from error
    if not callable(function):
        raise ConfigError(f"got {name!r} of type {type(function).__name__}, expected a function", code="RL-033")
    return function
