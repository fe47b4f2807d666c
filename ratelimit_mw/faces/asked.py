"""Limits at an endpoint are asked where the app knows already what a request calls, inside of a middleware or alone."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ratelimit_mw.faces.asgi_send import OUTCOME, Scope, Send, with_headers
from ratelimit_mw.faces.endpoint import Step
from ratelimit_mw.faces.inside import warn_alone
from ratelimit_mw.gate import AsyncGate
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.response import HeaderList, RawFields, headers, raw, raw_headers
from ratelimit_mw.verdict import Verdict
from ratelimit_mw.views import AsgiRequest

_ASKED: Final = "ratelimit_mw.asked"  # key of the scope: the marks that this request was held to


class Asked(Struct, gc=False):
    """What came of it. `verdict`: None where nothing was limited; `outcome`: with what others found."""

    request: AsgiRequest
    gate: AsyncGate
    verdict: Verdict | None
    outcome: Outcome | None

    @property
    def refused(self) -> Verdict | None:
        """The verdict, if it refuses."""
        return self.verdict if self.verdict is not None and not self.verdict.allowed else None

    @property
    def fields(self) -> HeaderList:
        """How it stands with all that was charged, for the answer's headers; none if one further out shows them."""
        outcome = self.outcome
        return [] if outcome is None or outcome.shown else headers(outcome.verdict, self.gate.settings.headers)

    @property
    def raw_fields(self) -> RawFields:
        """The same, as ASGI has them."""
        outcome = self.outcome
        if outcome is None or outcome.shown or outcome.verdict is None:
            return []
        style = self.gate.settings.headers
        return raw_headers(outcome.verdict) if style == "ietf" else raw(headers(outcome.verdict, style))

    def showing(self, send: Send) -> Send:
        """A `send` that adds these, and whatever is charged by then, to the answer's headers."""
        outcome, style = self.outcome, self.gate.settings.headers
        if outcome is None or outcome.shown or style == "none" or self.request.raw["type"] != "http":
            return send
        self.are_shown()
        return with_headers(outcome, style, send)

    def are_shown(self) -> None:
        """Somebody shows the fields, so nobody further in does."""
        if self.outcome is not None:
            self.outcome.shown = True


async def ask(
    scope: Scope, steps: Sequence[Step], route: str | None = None, verdict: Verdict | None = None
) -> Asked | None:
    """Hold a request to marks that it was not held to before; None if there are none.

    `route`: the template. `verdict`: that of `admit_client`. The app finds the outcome where it finds a middleware's.
    """
    asked: Asked | None = None
    for step in steps:
        outcome: Outcome | None = scope.get(OUTCOME)
        gate, marked, at_once = step.held(scope, outcome)
        if done := scope.get(_ASKED, ()):
            marks = tuple(mark for mark in step.marks if mark not in done)
            if not marks:
                continue
            marked, at_once = gate.held(marks, step.among, step.name, step.shown)  # what is left of them
        scope[_ASKED] = done + step.marks
        client = scope.get("client")
        request = AsgiRequest(scope, client[0] if client else None, outcome, route)
        if verdict is None:
            verdict = at_once.admit(request, marked) if at_once else await gate.admit(request, marked)
        if verdict is not None:
            if outcome is None:
                outcome = scope[OUTCOME] = Outcome(verdict, steps=[(gate, verdict)])
            else:
                outcome.add(verdict, gate)
            scope.setdefault("state", {})["ratelimit"] = outcome
            if request.followers is not None:
                _have_followed(request, outcome)
        asked = Asked(request, gate, verdict, outcome)
        if verdict is not None and not verdict.allowed:
            break
        verdict = None
    return asked


def _have_followed(request: AsgiRequest, outcome: Outcome) -> None:
    if outcome.following is None:
        warn_alone()
    else:
        outcome.following.add(request.followers)


def admit_client(scope: Scope, steps: Sequence[Step]) -> Verdict | None:
    """The verdict where nothing but the client's address counts, and nobody was asked before.

    None where more has to be looked at. Of one that refuses `ask` is to be told.
    """
    if len(steps) != 1 or OUTCOME in scope or "user" in scope or scope["type"] != "http" or _ASKED in scope:
        return None
    gate, marked, at_once = steps[0].held(scope, None)
    if at_once is None or gate.settings.headers != "ietf":
        return None
    client = scope.get("client")
    verdict = at_once.admit_client(client[0] if client else None, scope.get("method"), marked)
    if verdict is not None and verdict.allowed:
        scope[_ASKED] = steps[0].marks
        outcome = scope[OUTCOME] = Outcome(verdict, steps=[(gate, verdict)])
        scope.setdefault("state", {})["ratelimit"] = outcome
    return verdict
