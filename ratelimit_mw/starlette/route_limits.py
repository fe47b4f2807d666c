"""Limits on a route, mount, router or endpoint class, for Starlette and other ASGI routers."""

import inspect
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Unpack

from ratelimit_mw.asgi.send import App, Receive, Scope, Send
from ratelimit_mw.core.errors import ConfigTypeError
from ratelimit_mw.core.limit import Limit
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RefusedCharge
from ratelimit_mw.http.routes import all_routes, app_cache, endpoint_below, route_info, routes_below
from ratelimit_mw.settings.endpoint_limits import EndpointLimit, HonorsExempt, is_exempt
from ratelimit_mw.settings.rule import LimitsValue
from ratelimit_mw.starlette.enforcement import (
    AsgiEndpointLimit,
    EndpointCheck,
    EndpointOptions,
    asgi_limits_on,
    checks_on_endpoint,
    decision_on_charge,
    enforce,
    enforce_on_endpoint,
)


def _decorator_error(arguments: Sequence[object]) -> str:
    """Return the message for `@RateLimit("5/minute")` on a function, where `app` receives the limits; else ""."""
    _, *given = arguments  # without `self`
    found = given[0] if len(given) == 1 else None
    if not isinstance(found, (str, Limit, Mapping, Sequence)):
        return ""
    return (
        f"app: got {found!r:.100}: RateLimit is the middleware of a route, as in Middleware(RateLimit, '5/minute'); "
        "on a function write @limit('5/minute')"
    )


class RateLimit(HonorsExempt):
    """ASGI middleware for a route, mount or router: `Route("/", home, middleware=[Middleware(RateLimit, "5/minute")])`.

    `limits` and `options` are those of `limit`. Without a `name`, the bucket belongs to the route's endpoint, and
    headers name the limit after the route. Several routes inside share one bucket, named after the path of the mount.
    For a whole app, use `RateLimitMiddleware`. Raises `ConfigError` for invalid limits or options.
    """

    @check_arguments(EndpointOptions, explain=_decorator_error)
    def __init__(self, app: App, limits: LimitsValue, **options: Unpack[EndpointOptions]) -> None:
        self.app = app
        self._endpoint_limits = (AsgiEndpointLimit(limits, **options),)
        self._routes: list[Any] | None = None  # the inner routes; empty unless one of them is exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or refuse one HTTP request or websocket; pass other scopes through."""
        if scope["type"] in ("http", "websocket") and (found := self.checks_on(scope)) is not None:
            decision = await enforce(scope, *found)
            if decision is not None:
                if await decision.send_refusal(receive, send):
                    return
                send = decision.with_headers(send)
        try:
            await self.app(scope, receive, send)
        except RefusedCharge as error:
            await decision_on_charge(scope, error).send_refusal(receive, send)

    def checks_on(self, scope: Scope) -> tuple[Sequence[EndpointCheck], str | None] | None:
        """Return the checks of a request, and the template of its route; None if its endpoint is exempt."""
        if self._is_exempt(scope):
            return None
        endpoint, name = scope.get("endpoint"), None
        if not (inspect.isroutine(endpoint) or inspect.isclass(endpoint)):
            info = route_info(scope)
            name = "" if info is None else info.template
        return checks_on_endpoint(scope, self._endpoint_limits, endpoint, name)

    @property
    def limits_around(self) -> Sequence[EndpointLimit]:
        """See `HonorsExempt`."""
        return self._endpoint_limits

    def _is_exempt(self, scope: Scope) -> bool:
        if self._routes is None:
            routes = routes_below(self.app)
            self._routes = list(routes) if any(is_exempt(info.endpoint) for info in all_routes(routes)) else []
        return bool(self._routes) and is_exempt(endpoint_below(self._routes, scope))


def limit_class(endpoint_limit: AsgiEndpointLimit, endpoint: Any) -> Any:
    """Limit a class of endpoints with one instance per request, such as `HTTPEndpoint` or `WebSocketEndpoint`.

    Raises `TypeError` for other classes.
    """
    inner = getattr(endpoint, "__await__", None)
    if inner is None or not hasattr(endpoint, "dispatch"):
        raise ConfigTypeError(
            f"a limit is attached to functions and to classes with dispatch(); got {endpoint!r:.100}", code="RL-046"
        )

    def checked_await(self: Any) -> Generator[Any, None, None]:
        if (yield from _enforce_on_instance(self).__await__()):
            try:
                yield from inner(self)
            except RefusedCharge as error:
                yield from decision_on_charge(self.scope, error).send_refusal(self.receive, self.send).__await__()

    endpoint.__await__ = checked_await
    return endpoint_limit.attach(endpoint)


async def _enforce_on_instance(endpoint: Any) -> bool:
    """Return whether the endpoint may respond. If not, send the refusal."""
    decision = await enforce_on_endpoint(endpoint.scope, _limits_on_class(type(endpoint)), type(endpoint))
    if decision is None:
        return True
    if await decision.send_refusal(endpoint.receive, endpoint.send):
        return False
    endpoint.send = decision.with_headers(endpoint.send)
    return True


def _limits_on_class(kind: type) -> tuple[AsgiEndpointLimit, ...]:
    """Return the limits on a class, cached until a limit is attached to any endpoint."""
    cache = app_cache(kind, "limits")
    found: tuple[AsgiEndpointLimit, ...] | None = cache.get(EndpointLimit.version)
    if found is None:
        cache.clear()
        found = cache[EndpointLimit.version] = asgi_limits_on(kind)
    return found
