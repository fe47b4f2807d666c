"""Limits among the dependencies of FastAPI's routes: which are asked in one step, worked out once per route."""

from collections.abc import Container, Iterator, Sequence
from functools import cache
from typing import Any, Final

from ratelimit_mw.faces.asgi_send import Scope
from ratelimit_mw.faces.endpoint import EndpointMark, Step, name_of, steps
from ratelimit_mw.faces.routes import Place, matched, place_at
from ratelimit_mw.marks import Mark, is_exempt


class Around:
    """The limits of a route in one place, worked out once: marks put somewhere later are found too, and new routes.

    `template`: None where the place is not known. `steps`: what is asked when FastAPI calls one: those of its run, in
    which no other dependency stands between them.
    """

    __slots__ = ("_everyone", "_name", "_runs", "endpoint", "exempt", "latest", "route", "steps", "template")

    def __init__(self, route: Any, endpoint: Any, place: Place | None, overrides: Container[Any] = ()) -> None:
        self.latest: Final = Mark.latest
        self.route: Final = route
        self.endpoint: Final = endpoint
        self.exempt: Final = is_exempt(endpoint)
        self.template: Final = None if place is None else place.template
        self._name: Final = name_of(endpoint) if place is None else place.name
        self._runs: Final = _runs(route, overrides)
        self._everyone: Final = tuple(dict.fromkeys(one for run in self._runs for one in run))
        self.steps: Final = cache(self._beside)

    def _beside(self, one: EndpointMark) -> Sequence[Step]:
        # one that is in no run is in a route whose dependencies this FastAPI does not show
        run = next((run for run in self._runs if one in run), (one,))
        return steps(run, self._name, self._everyone if one in self._everyone else run)


def around(scope: Scope) -> Around:
    """What stands around the endpoint that a request found."""
    route, endpoint = matched(scope), scope.get("endpoint")
    place = place_at(scope, route)
    if overrides := getattr(scope.get("app"), "dependency_overrides", None):  # in tests
        return Around(route, endpoint, place, overrides)
    known: Around | None = None if place is None else place.kept.get("around")
    if known is None or known.latest != Mark.latest or known.route is not route or known.endpoint is not endpoint:
        known = Around(route, endpoint, place)
        if place is not None:
            place.kept["around"] = known
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
