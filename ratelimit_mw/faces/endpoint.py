"""Limits at an endpoint: asked where the app knows already what a request calls, inside of a middleware or alone."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Unpack

from msgspec import Struct

from ratelimit_mw.faces.asgi_send import OUTCOME, Scope, Send, with_headers
from ratelimit_mw.faces.remember import remembered
from ratelimit_mw.faces.unheeded import warn_of_unheeded
from ratelimit_mw.gate import AsyncGate
from ratelimit_mw.marks import Mark, marks_of
from ratelimit_mw.notices import logger
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.response import HeaderList, RawFields, headers, raw, raw_headers
from ratelimit_mw.rules import LimitsSpec, MarkOptions
from ratelimit_mw.settings import Settings
from ratelimit_mw.verdict import Verdict
from ratelimit_mw.views import AsgiRequest

_ASKED: Final = "ratelimit_mw.asked"  # key of the scope: the marks that this request was held to
_NONE: Final[dict[str, Any]] = {"limits": [], "app_limits": (), "rules": ()}  # those of the environment are a server's
_ALONE: Final = (
    "ratelimit_mw: limits on endpoints count in this process alone; add RateLimitMiddleware, whose store and settings "
    "they share, or give them a store"
)


class EndpointOptions(MarkOptions, total=False):
    """What limits on an endpoint may say. `store`: a URL or an AsyncStore of their own."""

    store: Any


class EndpointMark(Mark):
    """A mark that may have a store of its own. Raises `ConfigError` for what is wrong, the environment included.

    `alone`: the settings where there is no middleware. `where`: what tells stores apart.
    """

    __slots__ = ("alone", "store", "where")

    def __init__(self, limits: LimitsSpec, *, store: Any = None, **options: Unpack[MarkOptions]) -> None:
        super().__init__(limits, **options)
        self.store: Final = store
        self.where: Final[object] = store if isinstance(store, str) else id(store)
        self.alone: Final = Settings.of(_NONE, {} if store is None else {"store": store})
        if self.alone.store != "memory://":
            AsyncGate(self.alone)  # what is wrong with a store is told now, not to a client


class Asked(Struct, gc=False):
    """What came of it. `verdict`: None where nothing was limited."""

    request: AsgiRequest
    gate: AsyncGate
    verdict: Verdict | None

    @property
    def refused(self) -> Verdict | None:
        """The verdict, if it refuses."""
        return self.verdict if self.verdict is not None and not self.verdict.allowed else None

    @property
    def fields(self) -> HeaderList:
        """How it stands with all that was charged, for the answer's headers; none if one further out shows them."""
        outcome = self.request.raw.get(OUTCOME)
        return [] if outcome is None or outcome.shown else headers(outcome.verdict, self.gate.settings.headers)

    @property
    def raw_fields(self) -> RawFields:
        """The same, as ASGI has them."""
        outcome, style = self.request.raw.get(OUTCOME), self.gate.settings.headers
        if style == "ietf" and outcome is not None and not outcome.shown and outcome.verdict is not None:
            return raw_headers(outcome.verdict)
        return raw(self.fields)

    def showing(self, send: Send) -> Send:
        """A `send` that adds these, and whatever is charged by then, to the answer's headers."""
        outcome: Outcome | None = self.request.raw.get(OUTCOME)
        style = self.gate.settings.headers
        if outcome is None or outcome.shown or style == "none" or self.request.raw["type"] != "http":
            return send
        self.are_shown()
        return with_headers(outcome, style, send)

    def are_shown(self) -> None:
        """Somebody shows the fields, so nobody further in does."""
        if (outcome := self.request.raw.get(OUTCOME)) is not None:
            outcome.shown = True


def marks_on(endpoint: object) -> tuple[EndpointMark, ...]:
    """Those of an endpoint's marks that stand there to be held."""
    return tuple(mark for mark in marks_of(endpoint) if isinstance(mark, EndpointMark))


def name_of(endpoint: Any) -> str:
    """What its limits are called, where they have no name."""
    if endpoint is None:  # FastAPI's frontends, which have dependencies too
        return "no_endpoint"
    named = endpoint if hasattr(endpoint, "__qualname__") else type(endpoint)
    return f"{named.__module__}.{named.__qualname__}"


class Step(NamedTuple):
    """Marks of an endpoint that are decided in one step, as one store has them. Made once, and kept by whoever asks.

    `name`: what names the limits without a name. `among`: all marks of the endpoint.
    """

    marks: tuple[EndpointMark, ...]
    among: tuple[EndpointMark, ...]
    name: str


def steps(marks: Sequence[EndpointMark], name: str, among: Sequence[EndpointMark] = ()) -> tuple[Step, ...]:
    """One for each store. `among`: where the marks are a part of them."""
    groups: dict[object, list[EndpointMark]] = {}
    for mark in marks:
        groups.setdefault(mark.where, []).append(mark)
    return tuple(Step(tuple(group), tuple(among or marks), name) for group in groups.values())


async def ask(scope: Scope, steps: Iterable[Step], route: str | None = None) -> Asked | None:
    """Hold a request to marks that it was not held to before; None if there are none.

    `route`: the template. The app finds the outcome where it finds a middleware's.
    """
    asked: Asked | None = None
    for marks, among, name in steps:
        if done := scope.get(_ASKED, ()):
            marks = tuple(mark for mark in marks if mark not in done)  # noqa: PLW2901  # what is left of them
            if not marks:
                continue
        scope[_ASKED] = done + marks
        gate = _gate(scope, marks[0])
        marked, at_once = gate.held(marks, among, name)
        outcome: Outcome | None = scope.get(OUTCOME)
        client = scope.get("client")
        request = AsgiRequest(scope, client[0] if client else None, outcome, route)
        verdict = at_once.admit(request, marked) if at_once else await gate.admit(request, marked)
        asked = Asked(request, gate, verdict)
        if verdict is None:
            continue
        if outcome is None:
            outcome = scope[OUTCOME] = Outcome(None)
        outcome.add(verdict, gate)
        scope.setdefault("state", {})["ratelimit"] = outcome
        if not verdict.allowed:
            break
    return asked


def _gate(scope: Scope, mark: EndpointMark) -> AsyncGate:
    """Who decides: the middleware's gate, or else one for the app; with a store of its own, one for that store."""
    outcome: Outcome | None = scope.get(OUTCOME)
    outer: AsyncGate | None = None if outcome is None else outcome.gate
    if outer is not None and mark.store is None:
        return outer.inner
    app = scope.get("router", scope.get("app"))  # the outermost router, where apps are mounted
    gates, place = remembered(outer or app, "gates"), mark.where
    if place not in gates:
        if mark.store is None and mark.alone.store == "memory://":
            logger.warning(_ALONE)
        if outer is None and not gates:  # a middleware would have looked when the server started
            warn_of_unheeded(app)
        gates[place] = AsyncGate(mark.alone) if outer is None else outer.inner_with(mark.store)
    found: AsyncGate = gates[place]
    return found
