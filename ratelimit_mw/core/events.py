"""Events that hooks receive. Exceptions of hooks are logged, throttled, and never affect a request."""

from collections.abc import Callable
from inspect import iscoroutine
from typing import Any, Final, Literal

from msgspec import Struct

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import Verdict

Kind = Literal["failed", "open", "probe", "closed"]

_HOOK_RAISED: Final = "raised an exception: no request is affected, this event is lost"
_HOOK_IS_ASYNC: Final = "returned an awaitable, which is not awaited: expected a plain function"


class DecisionEvent(Struct, frozen=True):
    """The decision on a request, or on a message of a websocket.

    `verdict`: the result; `verdict.rule` is the rule that applied, `verdict.source` is where the decision came from.
    `request`: the request as callables in the settings receive it (method, path, headers, client, user), valid until
    the hook returns. `seconds`: the duration of the decision, including the store.
    """

    verdict: Verdict
    request: Any
    seconds: float

    @property
    def shadow_refused(self) -> bool:
        """Whether a shadow limit would have refused the request."""
        pairs = zip(self.verdict.charges, self.verdict.decisions, strict=False)  # no decisions after a store error
        return any(charge.role == "shadow" and not decision.allowed for charge, decision in pairs)


class StoreEvent(Struct, frozen=True, gc=False):
    """A failed store query, or a state change of the store's circuit breaker.

    `kind`: `failed` (a request got no reply), `open` (requests skip the store for `pause` seconds), `probe` (one
    request queries it), or `closed` (it replied, and all requests query it again). `error`: the text of the latest
    error, on one line; empty if the kind is `closed`. `since`: seconds since the first of the consecutive failures; 0.0
    if failures are not counted.
    """

    kind: Kind
    error: str = ""
    since: float = 0.0
    pause: float = 0.0


class Hook(Struct, frozen=True):
    """A user's callable for events and the name of its setting. A call never raises."""

    setting: str
    call: Callable[[Any], object]

    def __call__(self, event: DecisionEvent | StoreEvent) -> None:
        """Pass `event` to the callable."""
        try:
            result = self.call(event)
        except Exception as error:  # noqa: BLE001  # a failing hook must not affect the request
            warn_throttled(self.setting, _HOOK_RAISED, error=error, code="RL-224", call=self.call)
            return
        if iscoroutine(result):
            result.close()
            warn_throttled(self.setting, _HOOK_IS_ASYNC, code="RL-225", call=self.call)
