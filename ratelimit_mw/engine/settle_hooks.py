"""Settles requests after the response, by a callable that returns the true cost or by the status."""

from collections.abc import Iterable
from inspect import isawaitable
from typing import Any, Final

from ratelimit_mw.core.limit import MAX_EXACT_INT
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.http.callables import FAILED, close_unawaited
from ratelimit_mw.http.response import Policy
from ratelimit_mw.settings.features import SettleCall, SettlePolicy

_RAISED: Final = "raised an error: the estimate stays charged"
_INVALID_RESULT: Final = "returned %s, expected a whole number, 0 or more: the estimate stays charged"


def settle_after_response(tracker: Any) -> None:
    """Settle a request whose response has ended, as its rules and the app require. An `on_end` callback."""
    results: dict[SettleCall, Any] = {}
    for call in _settle_callables(tracker):
        try:
            results[call] = call(tracker.request, tracker.response)
        except Exception as error:  # noqa: BLE001  # the response is sent, and the estimate stays charged
            results[call] = _failed(call, error)
    if any(isawaitable(result) for result in results.values()):
        _settle_later(tracker, results)
    else:
        _settle(tracker, results)


def _settle_later(tracker: Any, results: dict[SettleCall, Any]) -> None:
    async def work() -> None:
        for call, result in results.items():
            if isawaitable(result):
                try:
                    results[call] = await result
                except Exception as error:  # noqa: BLE001  # as above
                    results[call] = _failed(call, error)
        _settle(tracker, results)

    try:
        tracker.spawn(work)
    except RuntimeError:  # no event loop: a plain function has returned an awaitable
        for call, result in results.items():
            close_unawaited(result)
            results[call] = None if isawaitable(result) else result
        _settle(tracker, results)


def _settle(tracker: Any, results: dict[SettleCall, Any]) -> None:
    actual = {call: _actual(call, result) for call, result in results.items()}
    actual_cost: int | None = tracker.state.actual_cost

    def actual_of(policy: Policy) -> int | None:
        settle_policy: SettlePolicy | None = policy.settle_policy
        if settle_policy is not None:
            if not settle_policy.keeps_charge(tracker.response):
                return 0
            if actual_cost is None and settle_policy.call is not None:
                return actual.get(settle_policy.call)
        return actual_cost  # the app's settle() overrides the callable

    tracker.state.settle_each(actual_of, tracker.loop)


def _settle_callables(tracker: Any) -> Iterable[SettleCall]:
    """Return the callables to run: none if the app called `settle()`, or if the status is not counted."""
    if tracker.state.actual_cost is not None:
        return ()
    charged = [verdict for _, verdict in tracker.state.verdicts_by_gate if verdict.allowed]
    settle_policies = [policy.settle_policy for verdict in charged for policy in verdict.policies if policy.settles]
    applicable = [one for one in settle_policies if one is not None and one.keeps_charge(tracker.response)]
    return dict.fromkeys(one.call for one in applicable if one.call is not None)


def _failed(call: SettleCall, error: Exception) -> object:
    warn_throttled(f"settle {callable_name(call)}", _RAISED, error=error)
    return FAILED


def _actual(call: SettleCall, result: object) -> int | None:
    """Return the result of a callable as a cost; None if it is invalid."""
    if type(result) is int and result >= 0:
        return min(result, MAX_EXACT_INT - 1)
    if result is not FAILED:
        warn_throttled(f"settle {callable_name(call)}", _INVALID_RESULT, type(result).__name__)
    return None
