"""Limits of one route, mount or router, and of classes of endpoints: ASGI, whoever routes it."""

import inspect
from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Unpack

from ratelimit_mw.faces.asgi_send import App, Receive, Scope, Send, refuse
from ratelimit_mw.faces.asked import ask
from ratelimit_mw.faces.endpoint import EndpointMark, EndpointOptions, Step, marks_on, name_of, shown_of, steps
from ratelimit_mw.faces.remember import remembered
from ratelimit_mw.faces.routes import endpoint_below, place_of, places, routes_below
from ratelimit_mw.faces.unheeded import Heeding
from ratelimit_mw.limit import Limit
from ratelimit_mw.marks import Mark, is_exempt
from ratelimit_mw.rules import LimitsSpec
from ratelimit_mw.words import answered

_ENDPOINTS: Final = 4096  # under one limit, whose names are remembered


def _decorates(arguments: Sequence[object]) -> str:
    """The error for `@RateLimit("5/minute")` on a function, which has limits where the app belongs."""
    _, *given = arguments  # without `self`
    found = given[0] if len(given) == 1 else None
    if not isinstance(found, (str, Limit, Mapping, Sequence)):
        return ""
    return (
        f"app: found {found!r:.100}: RateLimit is the middleware of a route, as in Middleware(RateLimit, '5/minute'); "
        "on a function write @limit('5/minute')"
    )


class RateLimit(Heeding):
    """ASGI middleware for a route, mount or router: `Route("/", home, middleware=[Middleware(RateLimit, "5/minute")])`.

    `limits` and `options`: as for `limit`. Without a `name`, the bucket is that of the route's endpoint, and headers
    name the limit after the route; around several routes it is one bucket, named after the mount's path. For a whole
    app, `RateLimitMiddleware`. Raises `ConfigError` for what is wrong.
    """

    @answered(EndpointOptions, meant=_decorates)
    def __init__(self, app: App, limits: LimitsSpec, **options: Unpack[EndpointOptions]) -> None:
        self.app = app
        marks = (EndpointMark(limits, **options),)
        self._steps = lru_cache(_ENDPOINTS)(partial(steps, marks))
        self._routes: list[Any] | None = None  # inside, if one of them is exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or refuse one request; what is neither HTTP nor a websocket goes straight through."""
        if scope["type"] in ("http", "websocket") and not self._passes(scope):
            place, endpoint = place_of(scope), scope.get("endpoint")
            template = None if place is None else place.template
            name = name_of(endpoint) if inspect.isroutine(endpoint) or inspect.isclass(endpoint) else template or ""
            asked = await ask(scope, self._steps(name, shown_of(place, endpoint)), template)
            if asked is not None:
                if asked.refused:
                    await refuse(asked.request, asked.refused, asked.gate, receive, send)
                    return
                send = asked.showing(send)
        await self.app(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        if self._routes is None:
            routes = routes_below(self.app)
            self._routes = list(routes) if any(is_exempt(place.endpoint) for place in places(routes)) else []
        return bool(self._routes) and is_exempt(endpoint_below(self._routes, scope))


def limited_class(mark: EndpointMark, endpoint: Any) -> Any:
    """A class of endpoints, each of whose objects is one request's: Starlette's `HTTPEndpoint`, `WebSocketEndpoint`.

    Raises `TypeError` for any other.
    """
    inner = getattr(endpoint, "__await__", None)
    if inner is None or not hasattr(endpoint, "dispatch"):
        raise TypeError(f"a limit stands on functions and on classes with dispatch(); found {endpoint!r:.100}")

    def held(self: Any) -> Generator[Any, None, None]:
        if (yield from _admitted(self).__await__()):
            yield from inner(self)

    endpoint.__await__ = held
    return mark.put_on(endpoint)


async def _admitted(endpoint: Any) -> bool:
    """Whether the endpoint is to answer; if not, the refusal was sent."""
    kind, scope = type(endpoint), endpoint.scope
    place = place_of(scope)
    asked = await ask(scope, _steps_of(kind, shown_of(place, kind)), None if place is None else place.template)
    if asked is None:
        return True
    if asked.refused:
        await refuse(asked.request, asked.refused, asked.gate, endpoint.receive, endpoint.send)
        return False
    endpoint.send = asked.showing(endpoint.send)
    return True


def _steps_of(kind: type, shown: str) -> Sequence[Step]:
    known = remembered(kind, "steps")
    latest = Mark.latest
    found: Sequence[Step] | None = known.get((latest, shown))
    if found is None:
        if any(before != latest for before, _ in list(known)):
            known.clear()
        found = known[latest, shown] = steps(marks_on(kind), name_of(kind), shown)
    return found
