"""Tracks the response to a request. When it has ended, runs the `on_end` callbacks, and settles the request.

If a rule needs the end of the response, the gate adds callbacks to `Request.on_end`, and the integration tracks the
response. Requests without callbacks are not tracked, and take no extra time.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, Literal
from weakref import ref

from ratelimit_mw.core.limit import MAX_EXACT_INT
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.runtime import CALLBACK_RAISED, spawn_task
from ratelimit_mw.core.signatures import callable_place
from ratelimit_mw.engine.overload import Ticket
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.callables import FAILED, close_unawaited, whole_units
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.http.request import Headers
from ratelimit_mw.settings.features import SettleCall, SettlePolicy

EndReason = Literal["ended", "raised", "cancelled", "disconnected"]
"""In order: the response was sent; the app raised; its task was canceled; the client disconnected before the end."""

OnEnd = Callable[["ResponseTracker"], None]
"""Called once, in the thread or task of the response. Must not block: pass a coroutine function to `spawn` instead."""

Fields = Sequence[tuple[Any, Any]]  # headers, as text or, under ASGI, as bytes

_ERROR: Final = 500  # the status that servers send if the app raises
_RAISED: Final = "raised an error: the estimate stays charged"
_INVALID_RESULT: Final = "returned %s, expected a finite number, 0 or more: the estimate stays charged"


class ResponseInfo:
    """The response to a request, as far as it was sent.

    `status`: 101 for a websocket that was accepted; None if nothing was sent. `ending`: None until the response has
    ended. Flask and Django hide disconnects, so there a client that disconnects counts as `ended`. `tickets`: of guards
    that count the request as at work until the response starts.
    """

    __slots__ = ("_fields", "ending", "status", "tickets")

    def __init__(self) -> None:
        self.status: int | None = None
        self.ending: EndReason | None = None
        self._fields: Fields = ()
        self.tickets: list[Ticket] = []

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers, found in any case of their names. Values of one name are joined by `, `."""
        headers: dict[str, str] = {}
        for name, value in self._fields:
            key, text = _text(name).lower(), _text(value)
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return Headers(headers)

    def started(self, status: int | None, fields: Fields) -> None:
        """Record the start of the response."""
        self.status, self._fields = status, fields
        for ticket in self.tickets:
            ticket.guard.answered(ticket)


class ResponseTracker:
    """Tracks the response to one request. The first call of `end` runs the callbacks.

    `request`: the request as the gate sees it. `state`: its state, as the app sees it. `response`: what is known of the
    response so far. `loop`: the event loop for coroutines of the callbacks, if the response ends in another thread.

    The state has a weak reference to it. So if a response is dropped and nothing ends it, its slots are not renewed.
    """

    __slots__ = ("__weakref__", "_on_end", "loop", "request", "response", "state")

    def __init__(
        self,
        request: Any,
        state: RateLimitState,
        on_end: Iterable[OnEnd],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.request = request
        self.state = state
        self.response = ResponseInfo()
        self.loop = loop
        self._on_end: list[OnEnd] = []
        self.add(on_end)
        state.ensure_extras().tracker = ref(self)
        if state.in_app:
            state.in_app = False  # the end of the response settles the request, not the end of the app
            if state.is_settled:
                self.settle_at_end()

    def add(self, on_end: Iterable[OnEnd]) -> None:
        """Add callbacks of an inner middleware or endpoint limit, except those that were added before."""
        added = [one for one in on_end if one not in self._on_end]
        self._on_end += added
        for one in added:
            if isinstance(one, Ticket):
                one.guard.restart(one)
                self.response.tickets.append(one)

    def settle_at_end(self) -> None:
        """Settle the request when its response has ended, because the app called `settle()`."""
        self.add((settle_after_response,))

    def end(self, ending: EndReason) -> None:
        """Record that the response has ended, and run the callbacks. Later calls have no effect."""
        response, state = self.response, self.state
        if response.ending is not None:
            return
        response.ending = ending
        if ending == "raised" and response.status is None:
            response.status = _ERROR
        state.ensure_extras().tracker = None
        for callback in self._on_end:
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001  # the response is sent, so no caller can handle the error
                warn_throttled("on_end callback", CALLBACK_RAISED, type(error).__name__, error=error, code="RL-223")

    def abandon(self) -> None:
        """Drop the callbacks, because the end will not be known.

        The callbacks have the only strong reference to the slots of this request. So the slots are no longer renewed.
        """
        for ticket in self.response.tickets:
            ticket.guard.leave(ticket)
        self._on_end = []
        if self.request is not None:
            self.request.on_end = None

    def spawn(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine function, now that the response is sent. See `spawn`."""
        spawn(work, self.loop)


def settle_after_response(tracker: ResponseTracker) -> None:
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


def _settle_later(tracker: ResponseTracker, results: dict[SettleCall, Any]) -> None:
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
    except RuntimeError:  # no event loop, but a plain function returned an awaitable
        for call, result in results.items():
            close_unawaited(result)
            results[call] = None if isawaitable(result) else result
        _settle(tracker, results)


def _settle(tracker: ResponseTracker, results: dict[SettleCall, Any]) -> None:
    actual = {call: _actual(call, result) for call, result in results.items()}
    state: RateLimitState = tracker.state

    def actual_of(policy: Policy) -> int | None:
        actual_cost = state.actual_cost_of(policy)
        settle_policy: SettlePolicy | None = policy.settle_policy
        if settle_policy is not None:
            if not settle_policy.keeps_charge(tracker.response):
                return 0
            if actual_cost is None and settle_policy.call is not None:
                result = actual.get(settle_policy.call)
                return result.get(policy.name) if isinstance(result, dict) else result
        return actual_cost  # the app's settle() overrides the callable

    state.settle_each(actual_of, tracker.loop)


def _settle_callables(tracker: ResponseTracker) -> Iterable[SettleCall]:
    """Return the callables to run: not those whose limits the app has settled, or whose status is not counted."""
    state: RateLimitState = tracker.state
    charged = [verdict for _, verdict in state.verdicts_by_gate if verdict.allowed]
    policies = [policy for verdict in charged for policy in verdict.policies if policy.settles]
    left = [policy.settle_policy for policy in policies if state.actual_cost_of(policy) is None]
    applicable = [one for one in left if one is not None and one.keeps_charge(tracker.response)]
    return dict.fromkeys(one.call for one in applicable if one.call is not None)


def _failed(call: SettleCall, error: Exception) -> object:
    warn_throttled(f"settle {callable_place(call)}", _RAISED, error=error, code="RL-222", call=call)
    return FAILED


def _actual(call: SettleCall, result: object) -> int | dict[str, int] | None:
    """Return the result of a callable as a cost, or as costs by the name of a limit. None if it is invalid."""
    if isinstance(result, Mapping):
        costs = {name: _actual(call, value) for name, value in result.items()}
        return {name: cost for name, cost in costs.items() if isinstance(cost, int)}
    result = whole_units(result)
    if type(result) is int and result >= 0:
        return min(result, MAX_EXACT_INT - 1)
    if result is not FAILED:
        warn_throttled(
            f"settle {callable_place(call)}", _INVALID_RESULT, type(result).__name__, code="RL-222", call=call
        )
    return None


def track_response(
    request: Any, state: RateLimitState, loop: asyncio.AbstractEventLoop | None = None
) -> ResponseTracker | None:
    """Return the tracker that an integration has to run; None if an outer integration tracks the request already."""
    on_end = request.on_end or ()
    if state.tracker is not None:
        state.tracker.add(on_end)
        return None
    return ResponseTracker(request, state, on_end, loop)


def spawn(work: Callable[[], Coroutine[Any, Any, object]], loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Run a coroutine function in a task, in the running loop or else in `loop`. Logs its errors, at a limited rate.

    Raises `RuntimeError` if no loop runs here and `loop` is None or closed.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if loop is None or loop.is_closed():
            raise
        loop.call_soon_threadsafe(lambda: spawn_task(work()))
    else:
        spawn_task(work())


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
