"""What a rule settles after the response: by a callable that says the true cost, or by the status alone."""

from collections.abc import Callable, Iterable, Sequence
from inspect import isawaitable
from typing import Any, Final

from ratelimit_mw.callables import name_of
from ratelimit_mw.calls import FAILED, call_from, close_unawaited
from ratelimit_mw.errors import ConfigError, located
from ratelimit_mw.limit import EXACT
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.verdict import Policy

SettleSpec = Callable[..., Any] | str  # a callable of the request and its response; text is its name
StatusSpec = Sequence[int | str]
SettleCall = Callable[..., Any]

_LOWEST: Final = 100
_HIGHEST: Final = 599
_RAISED: Final = "raised: what was taken for the request stays taken"
_NONSENSE: Final = "returned %s, no whole number from 0: what was taken for the request stays taken"


class Settling:
    """How the limits of a rule are settled. `call`: says the true cost. `counts`: the statuses that are charged."""

    __slots__ = ("call", "counts")

    def __init__(self, call: SettleCall | None, counts: frozenset[int] | None) -> None:
        self.call: Final = call
        self.counts: Final = counts

    def charges(self, response: Any) -> bool:
        """Whether an answer is charged. A client that goes away before its status got none; what was cut off stays."""
        if self.counts is None:
            return True
        return response.ending != "disconnected" if response.status is None else response.status in self.counts


def settling(settle: SettleSpec | None, count_status: StatusSpec | None) -> Settling | None:
    """What these settings say; None where nothing is settled. Raises `ConfigError` naming the one that is wrong."""
    call, counts = check_settle(settle), check_statuses(count_status)
    return None if call is None and counts is None else Settling(call, counts)


def check_settle(value: SettleSpec | None) -> SettleCall | None:
    """A callable, or one that `call:package.module:function` names. Raises `ConfigError` naming `settle`."""
    if value is None:
        return None
    with located("settle"):
        return call_from(value, ("request", "response"))


def check_statuses(value: object) -> frozenset[int] | None:
    """The statuses that `[401, "4xx"]` stands for; None for all, which an empty list says too.

    Raises `ConfigError` naming `count_status`.
    """
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(f'count_status: found {value!r:.100}, allowed is a list of statuses such as [401, "4xx"]')
    found: list[int] = []
    for index, one in enumerate(value):
        found += _statuses(index, one)
    return frozenset(found) or None


def _statuses(index: int, value: object) -> Iterable[int]:
    text = str(value) if type(value) in (int, str) else ""
    if len(text) == len("4xx") and text[1:].lower() == "xx" and text[0] in "12345":
        return range(int(text[0]) * 100, int(text[0]) * 100 + 100)
    if text.isascii() and text.isdecimal() and _LOWEST <= int(text) <= _HIGHEST:
        return [int(text)]
    raise ConfigError(
        f'count_status[{index}]: found {value!r:.100}, allowed is a status from 100 to 599, or a class such as "4xx"'
    )


def settle_after(one: Any) -> None:
    """Settle a request whose response has ended, as its rules and the app say. A follower; `one` is its Following."""
    answers: dict[SettleCall, Any] = {}
    for call in _calls(one):
        try:
            answers[call] = call(one.request, one.response)
        except Exception as error:  # noqa: BLE001  # the response is out, and what was taken stays taken
            answers[call] = _failed(call, error)
    if any(isawaitable(answer) for answer in answers.values()):
        _settle_later(one, answers)
    else:
        _settle(one, answers)


def _settle_later(one: Any, answers: dict[SettleCall, Any]) -> None:
    async def work() -> None:
        for call, answer in answers.items():
            if isawaitable(answer):
                try:
                    answers[call] = await answer
                except Exception as error:  # noqa: BLE001  # as above
                    answers[call] = _failed(call, error)
        _settle(one, answers)

    try:
        one.soon(work)
    except RuntimeError:  # no loop: a plain function has returned what nobody can await here
        for call, answer in answers.items():
            close_unawaited(answer)
            answers[call] = None if isawaitable(answer) else answer
        _settle(one, answers)


def _settle(one: Any, answers: dict[SettleCall, Any]) -> None:
    actual = {call: _actual(call, answer) for call, answer in answers.items()}
    said: int | None = one.outcome.said

    def actual_of(policy: Policy) -> int | None:
        own: Settling | None = policy.settling
        if own is not None:
            if not own.charges(one.response):
                return 0
            if said is None and own.call is not None:
                return actual.get(own.call)
        return said  # the app's own word goes before what a callable makes of the response

    one.outcome.correct(actual_of, one.loop)


def _calls(one: Any) -> Iterable[SettleCall]:
    """Whom to ask: nobody, where the app has said it, or where the status is not counted."""
    if one.outcome.said is not None:
        return ()
    charged = [verdict for _, verdict in one.outcome.found if verdict.allowed]
    owns = [policy.settling for verdict in charged for policy in verdict.policies if policy.settles]
    asked = [own for own in owns if own is not None and own.charges(one.response)]
    return dict.fromkeys(own.call for own in asked if own.call is not None)


def _failed(call: SettleCall, error: Exception) -> object:
    warn_rarely(f"settle {name_of(call)}", _RAISED, error=error)
    return FAILED


def _actual(call: SettleCall, answer: object) -> int | None:
    """Its answer as a cost; None where it is none."""
    if type(answer) is int and answer >= 0:
        return min(answer, EXACT - 1)
    if answer is not FAILED:
        warn_rarely(f"settle {name_of(call)}", _NONSENSE, type(answer).__name__)
    return None
