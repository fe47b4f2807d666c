"""Limits that stand at an endpoint, and who holds a request to them: a middleware's gate, or one of the app's own."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Unpack
from weakref import ref

from ratelimit_mw.faces.asgi_send import Scope
from ratelimit_mw.faces.inside import INSIDE
from ratelimit_mw.faces.remember import remembered
from ratelimit_mw.faces.routes import Place
from ratelimit_mw.faces.unheeded import warn_of_unheeded
from ratelimit_mw.gate import AsyncGate, Gate
from ratelimit_mw.marks import Mark, marks_of
from ratelimit_mw.matching import Marked
from ratelimit_mw.notices import Finding, warn_or_fail
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.rules import LimitsSpec, MarkOptions
from ratelimit_mw.settings import Settings
from ratelimit_mw.words import answered

_NONE: Final[dict[str, Any]] = {"limits": [], "app_limits": (), "rules": ()}  # those of the environment are a server's
_ALONE: Final = Finding(
    "limits on endpoints count in this process alone; add RateLimitMiddleware, whose store and settings "
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

    @answered(MarkOptions)
    def __init__(self, limits: LimitsSpec, *, store: Any = None, **options: Unpack[MarkOptions]) -> None:
        super().__init__(limits, **options)
        self.without_slots()
        self.store: Final = store
        self.where: Final[object] = store if isinstance(store, str) else id(store)
        self.alone: Final = Settings.of(_NONE, {} if store is None else {"store": store})
        if self.rule.follows:
            INSIDE.tell()
        if self.alone.store != "memory://":
            AsyncGate(self.alone)  # what is wrong with a store is told now, not to a client


def marks_on(endpoint: object) -> tuple[EndpointMark, ...]:
    """Those of an endpoint's marks that stand there to be held."""
    return tuple(mark for mark in marks_of(endpoint) if isinstance(mark, EndpointMark))


def name_of(endpoint: Any) -> str:
    """What its limits are called, where they have no name."""
    if endpoint is None:  # FastAPI's frontends, which have dependencies too
        return "no_endpoint"
    named = endpoint if hasattr(endpoint, "__qualname__") else type(endpoint)
    return f"{named.__module__}.{named.__qualname__}"


def shown_of(place: Place | None, endpoint: Any) -> str:
    """The name that clients see of limits without one: the route, else the bare name of the function or class."""
    return name_of(endpoint).rpartition(".")[2] if place is None else place.name


class Held(NamedTuple):
    """Who decides, and on what. `at_once`: who does it without a coroutine, if that can be."""

    gate: AsyncGate
    marked: Marked
    at_once: Gate | None


class Step:
    """Marks of an endpoint that are decided in one step, as one store has them. Made once, and kept by whoever asks.

    `among`: all marks of the endpoint. `name`, `shown`: see `Rules.compiled`.
    """

    __slots__ = ("_last", "among", "marks", "name", "shown")

    def __init__(self, marks: tuple[EndpointMark, ...], among: tuple[EndpointMark, ...], name: str, shown: str) -> None:
        self.marks: Final = marks
        self.among: Final = among
        self.name: Final = name
        self.shown: Final = shown
        self._last: tuple[Any, Held] | None = None  # of the middleware or app that asked last

    def held(self, scope: Scope, outcome: Outcome | None) -> Held:
        """By whom the marks are held, and what they are there."""
        outer = None if outcome is None else outcome.gate
        owner = scope.get("router") if outer is None else outer
        if (last := self._last) is not None and last[0]() is owner:
            return last[1]
        gate = _gate(scope, outer, self.marks[0])
        held = Held(gate, *gate.held(self.marks, self.among, self.name, self.shown))
        if owner is not None:
            self._last = (ref(owner, self._forget), held)
        return held

    def _forget(self, _: object) -> None:
        """What was held for an app goes when the app goes."""
        self._last = None


def steps(
    marks: Sequence[EndpointMark], name: str, shown: str = "", among: Sequence[EndpointMark] = ()
) -> tuple[Step, ...]:
    """Group marks into one step for each store. `among`: all marks of the endpoint, where `marks` are some of them."""
    groups: dict[object, list[EndpointMark]] = {}
    for mark in marks:
        groups.setdefault(mark.where, []).append(mark)
    return tuple(Step(tuple(group), tuple(among or marks), name, shown) for group in groups.values())


def _gate(scope: Scope, outer: AsyncGate | None, mark: EndpointMark) -> AsyncGate:
    """Who decides: the middleware's gate, or else one for the app; with a store of its own, one for that store."""
    if outer is not None and mark.store is None:
        return outer.inner
    app = scope.get("router", scope.get("app"))  # the outermost router, where apps are mounted
    gates, place = remembered(outer or app, "gates"), mark.where
    if place not in gates:
        if mark.store is None and mark.alone.store == "memory://":
            warn_or_fail([_ALONE], strict=mark.alone.strict)
        if outer is None and not gates:  # a middleware would have looked when the server started
            warn_of_unheeded(app, strict=mark.alone.strict)
        gates[place] = AsyncGate(mark.alone) if outer is None else outer.inner_with(mark.store)
    found: AsyncGate = gates[place]
    return found
