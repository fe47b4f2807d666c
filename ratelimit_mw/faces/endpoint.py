"""Limits at an endpoint: asked where the app knows already what a request calls, inside of a middleware or alone."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Unpack

from ratelimit_mw.faces.asgi_send import OUTCOME, Scope, Send, with_headers
from ratelimit_mw.faces.remember import remembered
from ratelimit_mw.faces.unheeded import warn_of_unheeded
from ratelimit_mw.gate import AsyncGate
from ratelimit_mw.marks import Mark, marks_of
from ratelimit_mw.notices import logger
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.response import HeaderList, headers
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

    `alone`: the settings where there is no middleware.
    """

    __slots__ = ("alone", "store")

    def __init__(self, limits: LimitsSpec, *, store: Any = None, **options: Unpack[MarkOptions]) -> None:
        super().__init__(limits, **options)
        self.store: Final = store
        self.alone: Final = Settings.of(_NONE, {} if store is None else {"store": store})
        if self.alone.store != "memory://":
            AsyncGate(self.alone)  # what is wrong with a store is told now, not to a client

    @property
    def where(self) -> object:
        """What tells stores apart."""
        return self.store if isinstance(self.store, str) else id(self.store)


class Asked(NamedTuple):
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


async def ask(
    scope: Scope, marks: Sequence[EndpointMark], name: str, route: str | None = None, among: Sequence[EndpointMark] = ()
) -> Asked | None:
    """Hold a request to marks that it was not held to before, in one step for each store; None if there are none.

    `name`: what names the limits without a name. `route`: the template. `among`: all marks of the endpoint, where these
    are a part. The app finds the outcome where it finds a middleware's.
    """
    done = scope.setdefault(_ASKED, set())
    asked: Asked | None = None
    for group in _by_store([mark for mark in marks if mark not in done]):
        done.update(group)
        asked = await _ask(scope, group, name, route, tuple(among or marks))
        if asked.refused:
            break
    return asked


def _by_store(marks: Sequence[EndpointMark]) -> Iterable[Sequence[EndpointMark]]:
    groups: dict[object, list[EndpointMark]] = {}
    for mark in marks:
        groups.setdefault(mark.where, []).append(mark)
    return groups.values()


async def _ask(
    scope: Scope, marks: Sequence[EndpointMark], name: str, route: str | None, among: tuple[EndpointMark, ...]
) -> Asked:
    gate = _gate(scope, marks[0])
    compiled = zip(among, gate.compiled(among, name), strict=True)
    outcome: Outcome | None = scope.get(OUTCOME)
    client = scope.get("client")
    request = AsgiRequest(scope, client[0] if client else None, outcome, route)
    verdict = await gate.admit(request, tuple([ruled for mark, ruled in compiled if mark in marks]))
    if verdict is not None:
        if outcome is None:
            outcome = scope[OUTCOME] = Outcome(verdict)
        else:
            outcome.add(verdict)
        scope.setdefault("state", {})["ratelimit"] = outcome
    return Asked(request, gate, verdict)


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
