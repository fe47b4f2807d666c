"""What hooks receive. A hook that raises is logged, rarely, and never felt."""

from collections.abc import Callable
from inspect import iscoroutine
from typing import Any, Final, Literal

from msgspec import Struct

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import Verdict

Kind = Literal["failed", "open", "probe", "closed"]

_HOOK_RAISED: Final = "raised: no request notices, and this event is lost"
_HOOK_IS_ASYNC: Final = "returned something to await, and nobody awaits it: expected a plain function"


class DecisionEvent(Struct, frozen=True, gc=False):
    """A request, or a message of a websocket, was decided on.

    `verdict`: the answer; its `rule` and `source` say what applied and who decided. `request`: what callables of the
    settings are given: method, path, headers, client, user; it is good until the hook returns. `seconds`: how long the
    decision took, the store included.
    """

    verdict: Verdict
    request: Any
    seconds: float

    @property
    def shadow_refused(self) -> bool:
        """Whether a shadow limit would have refused."""
        pairs = zip(self.verdict.charges, self.verdict.decisions, strict=False)  # on an error there are no decisions
        return any(charge.role == "shadow" and not decision.allowed for charge, decision in pairs)


class StoreEvent(Struct, frozen=True, gc=False):
    """The store failed a request, or its circuit breaker changed.

    `kind`: `failed`, a request had no answer; `open`, the store is not asked for `pause` seconds; `probe`, one request
    asks; `closed`, it answered and all ask again. `error`: the latest error's text, on one line; empty when closed.
    `since`: seconds since the store failed first, all of them in a row; 0.0 where nobody counts them.
    """

    kind: Kind
    error: str = ""
    since: float = 0.0
    pause: float = 0.0


class Hook(Struct, frozen=True):
    """A callable of the user that hears of events, and the setting that names it. It never raises."""

    setting: str
    call: Callable[[Any], object]

    def __call__(self, event: DecisionEvent | StoreEvent) -> None:
        """Tell it."""
        try:
            result = self.call(event)
        except Exception as error:  # noqa: BLE001  # whatever a hook does, no request feels it
            warn_throttled(self.setting, _HOOK_RAISED, error=error)
            return
        if iscoroutine(result):
            result.close()
            warn_throttled(self.setting, _HOOK_IS_ASYNC)
