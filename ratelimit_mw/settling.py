"""Settles a request after its response: by a callable that reports the true cost, or by the status alone."""

from collections.abc import Iterable
from inspect import isawaitable
from typing import Any, Final

from ratelimit_mw.callables import name_of
from ratelimit_mw.calls import FAILED, close_unawaited
from ratelimit_mw.limit import EXACT
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.response import Policy
from ratelimit_mw.settle_options import SettleCall, Settling

_RAISED: Final = "raised: what was taken for the request stays taken"
_NONSENSE: Final = "returned %s, no whole number from 0: what was taken for the request stays taken"


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
