"""Callables of the user: how settings name them, and what they answered for one request.

The Gate calls them, before anything is charged; whoever needs an answer reads it here, where nonsense counts as said
in the docs and never frees a request.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from inspect import isawaitable, iscoroutine
from typing import Any, Final

from ratelimit_mw.callables import REQUEST, check_call, check_plain, name_of
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.limit import EXACT
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.request import Request, as_text

Call = Callable[[Request], Awaitable[Any] | Any]
Asked = Callable[[Request], bool] | str  # yes or no; text is its name
Answers = Mapping[Call, Any]
FAILED: Final = object()  # the answer of a callable that raised
OF_WHEN: Final = "when", "the rule applies to the request"  # a setting, and what its failure means
OF_ENABLED: Final = "enabled", "the request is limited"
_PREFIX: Final = "call:"


def named_call(text: object) -> bool:
    """Whether a setting is the name of a callable: `call:package.module:function`."""
    return isinstance(text, str) and text.strip().startswith(_PREFIX)


def call_from(value: object, given: Sequence[str] | None = REQUEST, *, plain: bool = False) -> Call:
    """A callable, or one that `call:package.module:function` names. Raises `ConfigError` for anything else.

    `given`: what it is called with, which it must take; None where more than one form is allowed. `plain`: nothing
    awaits its answer, so it must not be async.
    """
    text = value.strip() if isinstance(value, str) and named_call(value) else None
    found = value if text is None else _imported(text)
    if not callable(found):
        raise ConfigError(f"found {value!r:.100}, allowed is a callable, or call:PACKAGE.MODULE:FUNCTION")
    try:
        hash(found)
    except TypeError as error:
        raise ConfigError(f"found {found!r:.100}, allowed is a callable that can be hashed: {error}") from None
    if given is not None:
        check_call(found, given, text)
    if plain:
        check_plain(found)
    return found


def text_answer(call: Call, answers: Answers) -> str | None:
    """Its answer as a key: text, a whole number or a UUID; None when it is not there or no such thing."""
    answer = answers[call]
    text = as_text(answer)
    if text is None and not _is_absent(answer) and answer is not FAILED:
        warn_rarely(f"key {name_of(call)}", "returned %s, not text: it counts as not there", type(answer).__name__)
    return text


def went_wrong(call: Call, answers: Answers) -> bool:
    """Whether it raised, or returned what is no key: not there, and no reason to exempt."""
    answer = answers[call]
    return answer is FAILED or (not _is_absent(answer) and as_text(answer) is None)


def _is_absent(answer: object) -> bool:
    """None or empty text; no comparison, which an answer may define for itself."""
    return answer is None or (isinstance(answer, str) and len(answer) == 0)


def cost_answer(call: Call, answers: Answers) -> int:
    """Its answer as a cost: a whole number, at most 2**53 - 1, which never passes; anything else counts 1."""
    answer = answers[call]
    if type(answer) is int and answer >= 0:
        return min(answer, EXACT - 1)  # a client may be who says how much
    if answer is not FAILED:
        warn_rarely(f"cost {name_of(call)}", "returned %s, no whole number from 0: it counts 1", type(answer).__name__)
    return 1


def asked(call: Call, request: Request, setting: str, effect: str) -> bool | None:
    """What a plain callable says about a request, yes or no; None when it raised or said something else.

    `setting`, `effect`: for the log, which setting it is, and what its failure means for the request.
    """
    try:
        answer = call(request)
    except Exception as error:  # noqa: BLE001  # a callable that raises never frees a request
        warn_rarely(f"{setting} {name_of(call)}", "raised an error: %s", effect, error=error)
        return None
    if isinstance(answer, bool):
        return answer
    close_unawaited(answer)
    said = "something to await" if isawaitable(answer) else type(answer).__name__
    warn_rarely(f"{setting} {name_of(call)}", "returned %s instead of True or False: %s", said, effect)
    return None


def close_unawaited(answer: object) -> None:
    """Where nothing can be awaited, a coroutine is nonsense: close it, else Python warns of it once more."""
    if iscoroutine(answer):
        answer.close()


def _imported(name: str) -> object:
    module, _, attribute = name.removeprefix(_PREFIX).partition(":")
    try:
        found: object = getattr(import_module(module), attribute)
    except Exception as error:  # whatever that module does when it is imported
        raise ConfigError(
            f"found {name!r}, allowed is call:PACKAGE.MODULE:FUNCTION of a function that can be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ConfigError(f"found {name!r}, which is no function but {type(found).__name__}")
    return found
