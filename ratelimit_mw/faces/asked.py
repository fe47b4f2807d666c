"""Limits at an endpoint are asked where the app knows already what a request calls, inside of a middleware or alone."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ratelimit_mw.faces.asgi_send import STATE_KEY, Scope, Send, with_headers
from ratelimit_mw.faces.endpoint import EndpointCheck
from ratelimit_mw.faces.inside import warn_not_tracked
from ratelimit_mw.gate import AsyncGate
from ratelimit_mw.outcome import RateLimitState
from ratelimit_mw.response import HeaderList, RawFields, headers, raw, raw_headers
from ratelimit_mw.verdict import Verdict
from ratelimit_mw.views import AsgiRequest

_ENFORCED: Final = "ratelimit_mw.asked"  # key of the scope: the marks that this request was held to


class EndpointDecision(Struct, gc=False):
    """What came of it. `verdict`: None where nothing was limited; `state`: with what others found."""

    request: AsgiRequest
    gate: AsyncGate
    verdict: Verdict | None
    state: RateLimitState | None

    @property
    def refusing_verdict(self) -> Verdict | None:
        """The verdict, if it refuses."""
        return self.verdict if self.verdict is not None and not self.verdict.allowed else None

    @property
    def fields(self) -> HeaderList:
        """How it stands with all that was charged, for the answer's headers; none if one further out shows them."""
        state = self.state
        return [] if state is None or state.headers_shown else headers(state.verdict, self.gate.settings.headers)

    @property
    def raw_fields(self) -> RawFields:
        """The same, as ASGI has them."""
        state = self.state
        if state is None or state.headers_shown or state.verdict is None:
            return []
        style = self.gate.settings.headers
        return raw_headers(state.verdict) if style == "ietf" else raw(headers(state.verdict, style))

    def with_headers(self, send: Send) -> Send:
        """A `send` that adds these, and whatever is charged by then, to the answer's headers."""
        state, style = self.state, self.gate.settings.headers
        if state is None or state.headers_shown or style == "none" or self.request.raw["type"] != "http":
            return send
        self.mark_headers_shown()
        return with_headers(state, style, send)

    def mark_headers_shown(self) -> None:
        """Somebody shows the fields, so nobody further in does."""
        if self.state is not None:
            self.state.headers_shown = True


async def enforce(
    scope: Scope, checks: Sequence[EndpointCheck], route: str | None = None, verdict: Verdict | None = None
) -> EndpointDecision | None:
    """Hold a request to marks that it was not held to before; None if there are none.

    `route`: the template. `verdict`: that of `admit_by_address`. The app finds the state where it finds a middleware's.
    """
    decision: EndpointDecision | None = None
    for check in checks:
        state: RateLimitState | None = scope.get(STATE_KEY)
        gate, endpoint_rules, sync_gate = check.compiled_for(scope, state)
        if enforced := scope.get(_ENFORCED, ()):
            endpoint_limits = tuple(
                endpoint_limit for endpoint_limit in check.endpoint_limits if endpoint_limit not in enforced
            )
            if not endpoint_limits:
                continue
            endpoint_rules, sync_gate = gate.compile_for_endpoint(
                endpoint_limits, check.among, check.name, check.shown
            )  # what is left of them
        scope[_ENFORCED] = enforced + check.endpoint_limits
        client = scope.get("client")
        request = AsgiRequest(scope, client[0] if client else None, state, route)
        if verdict is None:
            verdict = (
                sync_gate.admit(request, endpoint_rules) if sync_gate else await gate.admit(request, endpoint_rules)
            )
        if verdict is not None:
            if state is None:
                state = scope[STATE_KEY] = RateLimitState(verdict, entries=[(gate, verdict)])
            else:
                state.record(verdict, gate)
            scope.setdefault("state", {})["ratelimit"] = state
            if request.on_end is not None:
                _track(request, state)
        decision = EndpointDecision(request, gate, verdict, state)
        if verdict is not None and not verdict.allowed:
            break
        verdict = None
    return decision


def _track(request: AsgiRequest, state: RateLimitState) -> None:
    if state.tracker is None:
        warn_not_tracked()
    else:
        state.tracker.add(request.on_end)


def admit_by_address(scope: Scope, checks: Sequence[EndpointCheck]) -> Verdict | None:
    """The verdict where nothing but the client's address counts, and nobody was asked before.

    None where more has to be looked at. Of one that refuses `enforce` is to be told.
    """
    if len(checks) != 1 or STATE_KEY in scope or "user" in scope or scope["type"] != "http" or _ENFORCED in scope:
        return None
    gate, endpoint_rules, sync_gate = checks[0].compiled_for(scope, None)
    if sync_gate is None or gate.settings.headers != "ietf":
        return None
    client = scope.get("client")
    verdict = sync_gate.admit_by_address(client[0] if client else None, scope.get("method"), endpoint_rules)
    if verdict is not None and verdict.allowed:
        scope[_ENFORCED] = checks[0].endpoint_limits
        state = scope[STATE_KEY] = RateLimitState(verdict, entries=[(gate, verdict)])
        scope.setdefault("state", {})["ratelimit"] = state
    return verdict
