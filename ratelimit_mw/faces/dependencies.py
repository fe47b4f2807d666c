"""Limits among the dependencies of FastAPI's routes: which are asked in one step, worked out once per route."""

from collections.abc import Container, Iterator, Sequence
from functools import cache
from typing import Any, Final

from ratelimit_mw.faces.asgi_send import Scope
from ratelimit_mw.faces.endpoint import EndpointMark, Step, name_of, shown_of, steps
from ratelimit_mw.faces.remember import remembered
from ratelimit_mw.faces.routes import Place, first_of, leaf_of, matched, place_of, places_of
from ratelimit_mw.marks import Mark, is_exempt


class Around:
    """The limits of a route in one place, worked out once: marks put somewhere later are found too, and new routes.

    `template`: None where the place is not known. `steps`: what is asked when FastAPI calls one: those of its run, in
    which no other dependency stands between them. `scoped`: what the scope has named the route by, so that nothing else
    gets their ids.
    """

    __slots__ = ("_everyone", "_name", "_runs", "_shown", "endpoint", "exempt", "latest", "scoped", "steps", "template")

    def __init__(self, scope: Scope, place: Place | None, overrides: Container[Any] = ()) -> None:
        self.latest: Final = Mark.latest
        self.scoped: Final = scope.get("route"), leaf_of(scope)
        self.endpoint: Final = scope.get("endpoint")
        self.exempt: Final = is_exempt(self.endpoint)
        self.template: Final = None if place is None else place.template
        self._name: Final = name_of(self.endpoint) if place is None else place.name
        self._shown: Final = shown_of(place, self.endpoint)
        self._runs: Final = _runs(matched(scope), overrides)
        self._everyone: Final = tuple(dict.fromkeys(one for run in self._runs for one in run))
        self.steps: Final = cache(self._beside)

    def _beside(self, one: EndpointMark) -> Sequence[Step]:
        # one that is in no run is in a route whose dependencies this FastAPI does not show
        run = next((run for run in self._runs if one in run), (one,))
        return steps(run, self._name, self._shown, self._everyone if one in self._everyone else run)


def around(scope: Scope) -> Around:
    """What stands around the endpoint that a request found."""
    if overrides := getattr(scope.get("app"), "dependency_overrides", None):  # in tests
        return Around(scope, place_of(scope), overrides)
    kept = remembered(scope.get("router"), "around")
    scoped: tuple[Any, ...] = id(scope.get("route")), id(leaf_of(scope))
    known: Around | None = kept.get(scoped)
    if known is None or known.latest != Mark.latest or known.endpoint is not scope.get("endpoint"):
        known = _looked_for(scope, scoped, kept)
    return known


def _looked_for(scope: Scope, scoped: tuple[Any, ...], kept: dict[Any, Any]) -> Around:
    found = places_of(scope)
    place = first_of(found, scope)
    if len(found) > 1 and place is not None:  # which of them it is depends on the request
        scoped = (*scoped, place.template)
    known: Around | None = kept.get(scoped)
    if known is None or known.latest != Mark.latest or known.endpoint is not scope.get("endpoint"):
        known = Around(scope, place)
        if place is not None:
            kept[scoped] = known
    return known


def _runs(route: Any, overrides: Container[Any]) -> Sequence[tuple[EndpointMark, ...]]:
    """Those that stand one after the other, with no others between."""
    leaf = getattr(route, "starlette_route", None) or route  # that of a websocket in a router
    runs: list[list[EndpointMark]] = [[]]
    for call in _calls(getattr(leaf, "dependant", None), overrides):
        if isinstance(call, EndpointMark):
            runs[-1].append(call)
        else:
            runs.append([])
    return [tuple(dict.fromkeys(run)) for run in runs]


def _calls(dependant: Any, overrides: Container[Any]) -> Iterator[Any]:
    """What FastAPI calls, in that order."""
    for one in getattr(dependant, "dependencies", ()):
        if one.call in overrides:
            yield None
        else:
            yield from _calls(one, overrides)
            yield one.call
