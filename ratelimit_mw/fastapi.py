"""FastAPI: limits as dependencies of an app, router or route, with or without the middleware."""

from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from inspect import isroutine
from typing import Annotated, Any, ClassVar, Final, Unpack

from msgspec import json

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.send import Scope, close_message
from ratelimit_mw.checks.decorators import NoDependency, check_parentheses
from ratelimit_mw.core.errors import ConfigError, require
from ratelimit_mw.core.memo import Budget, Memo
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RateLimited, RefusedCharge, Verdict
from ratelimit_mw.engine.entrance import enter_asgi
from ratelimit_mw.engine.usage import USAGE_RESPONSE
from ratelimit_mw.http.response import Response as OwnResponse
from ratelimit_mw.http.response import openapi_responses
from ratelimit_mw.http.routes import (
    RouteInfo,
    app_cache,
    first_match,
    matched_route,
    route_info,
    route_infos,
    route_leaf,
    starlette_route,
)
from ratelimit_mw.settings.endpoint_limits import EndpointLimit, HonorsExempt, is_exempt
from ratelimit_mw.settings.rule import EndpointLimitOptions, LimitsValue

with require("fastapi"):
    from fastapi import APIRouter, HTTPException, Response, WebSocket, WebSocketException
    from fastapi.exception_handlers import http_exception_handler
    from fastapi.params import Depends
    from fastapi.requests import HTTPConnection

# imports Starlette; FastAPI is imported first, so that it is the package that is named if both are missing
from ratelimit_mw.starlette import exempt, limit, respond_to_charge, respond_to_refused
from ratelimit_mw.starlette.enforcement import (
    AsgiEndpointLimit,
    EndpointCheck,
    EndpointDecision,
    bucket_name_of,
    display_name,
    endpoint_checks,
    enforce,
    record_admission,
    short_way_check,
)

__all__ = ["RateLimit", "RateLimitMiddleware", "exempt", "limit", "openapi_responses", "usage_router"]

_MAX_LIMITS: Final = 1024  # limits of a route whose checks are cached
_NOT_FOUND: Final = 404
_HINT: Final = 'did you mean Depends(RateLimit("5/minute"))?'
_ON_A_FUNCTION: Final = (
    'did you mean @limit("5/minute"), or Depends(RateLimit("5/minute")) in the dependencies of the route?'
)
_NO_DEPENDENCY: Final = NoDependency(f"got the class RateLimit as a dependency: {_HINT}")
_AS_MIDDLEWARE: Final = (
    "got an app by position: this RateLimit is a dependency, write Depends(RateLimit('5/minute')); as middleware, use "
    "ratelimit_mw.starlette.RateLimit"
)


def usage_router(path: str) -> APIRouter:
    """Return a router that describes the setting `usage_path` in OpenAPI, for `app.include_router`.

    `path`: the same path. The middleware answers requests to it; without the middleware, they get a 404.
    """

    async def rate_limits() -> None:
        raise HTTPException(_NOT_FOUND)

    router = APIRouter()
    responses: dict[int | str, dict[str, Any]] = {200: USAGE_RESPONSE, 503: openapi_responses()[503]}
    router.add_api_route(path, rate_limits, methods=["GET"], summary="Your rate limits", responses=responses)
    return router


def _explain(arguments: Sequence[object]) -> str:
    """Return the message for an app by position, with which Starlette calls a middleware class."""
    is_app = len(arguments) > 1 and callable(arguments[1]) and not isroutine(arguments[1])
    return _AS_MIDDLEWARE if is_app else ""


_DECORATED: Final[Any] = object()  # the default of `response`; FastAPI never uses it
_Responder = Callable[[], Awaitable[Response | None]]


class RateLimit(AsgiEndpointLimit, HonorsExempt, Depends):
    """A dependency that limits an app, a router or a route: `dependencies=[Depends(RateLimit("5/minute"))]`.

    `limits` and the options are those of a rule in the settings; `store` is a URL or an AsyncStore. Without a `name`,
    each route has its own bucket, named after its methods and full template. With a `name`, all routes with this
    dependency share one. The key `route` is the full template. Raises `ConfigError` for invalid limits or options.

    Inside `RateLimitMiddleware`, its store and settings are used, and it adds the headers. Its own limits are decided
    before, as a step of their own: a request that is refused here has used them. A rule for the path is one step.
    Without it, `store` is used, or else the memory of this process, with a warning; FastAPI then drops the headers if
    the endpoint returns its own response object.

    Consecutive limits are decided in one step: all are charged, or none. If another dependency is between two limits,
    e.g. one that finds the user, the second limit is decided after that dependency.

    If the request is refused, the endpoint is not called. The response is the same as the middleware's, unless the app
    has a handler for `RateLimited`, for the status, or for `HTTPException`. The error that is raised is a `RateLimited`
    as well as an `HTTPException` with that status, and has a `verdict`. The app's handlers are not called for
    websockets. A websocket is refused by a response if the server supports that. Otherwise it is closed with 1013, or
    with 1008 if it has no key.
    """

    # FastAPI reads the attribute `dependency` of every `Depends`, wherever it is written. If this class were not a
    # `Depends`, FastAPI would treat a limit in the wrong place as the default or the annotation of a query parameter.
    __eq__, __hash__, __repr__ = object.__eq__, object.__hash__, object.__repr__  # not by the fields of `Depends`
    responses: ClassVar[dict[int | str, dict[str, Any]]] = openapi_responses()
    """Responses to document: `FastAPI(responses=RateLimit.responses)`, or the same of a router or route.

    With another style in the setting `headers`: `responses=openapi_responses("draft-6")`.
    """

    @check_arguments(EndpointLimitOptions, explain=_explain)
    def __init__(
        self,
        limits: Annotated[LimitsValue, _NO_DEPENDENCY],
        *,
        store: Any = None,
        **options: Unpack[EndpointLimitOptions],
    ) -> None:
        check_parentheses(limits)
        super().__init__(limits, store=store, **options)
        vars(self)["__call__"] = self._admit  # FastAPI looks here to see that it is async

    @property
    def dependency(self) -> Any:
        """Raise ConfigError. FastAPI reads it of an object in `dependencies`, `Annotated`, or a parameter's default."""
        raise ConfigError(f"got a RateLimit as a dependency: {_HINT}", code="RL-047")

    @property
    def limits_around(self) -> Sequence[EndpointLimit]:
        """See `HonorsExempt`."""
        return (self,)

    def __call__(self, connection: HTTPConnection, response: Response = _DECORATED) -> Coroutine[Any, Any, None]:
        """Admit a request, or raise the refusal. Raises `ConfigError` at once if it decorates a function.

        It is not async, because a decorator is not awaited, and so the error would never be raised.
        """
        if response is _DECORATED:
            shown = callable_name(connection) if callable(connection) else f"{connection!r:.100}"
            raise ConfigError(f"got @RateLimit(...) on {shown}: {_ON_A_FUNCTION}", code="RL-047")
        return self._admit(connection, response)

    async def _admit(self, connection: HTTPConnection, response: Response) -> None:
        scope = connection.scope
        context = _route_context(scope)
        if context.exempt:
            return
        checks, verdict, client = context.checks[self], None, None
        compiled = None if response.raw_headers else short_way_check(scope, checks)
        if compiled is not None:
            way, charges, client = enter_asgi(compiled.gate.rule_set, scope, compiled.endpoint_rules)
            if way is not None:
                gate = compiled.sync_gate
                verdict = (
                    await compiled.gate.take(way, charges, scope) if gate is None else gate.take(way, charges, scope)
                )
                if verdict is None or verdict.allowed:
                    response.raw_headers += record_admission(scope, checks[0], compiled.gate, verdict)
                    return
        decision = await enforce(scope, checks, context.template, verdict, client)
        if decision is None:
            return
        if decision.refusing_verdict is not None:
            raise await _refusal_error(decision, decision.refusing_verdict, connection)
        if not response.raw_headers:
            response.raw_headers += decision.raw_fields
            return
        for field, value in decision.fields:  # replaces an earlier dependency's values, as these are for all charges
            response.headers[field] = value


def dependency_checks(scope: Scope) -> Iterator[tuple[Sequence[EndpointCheck], str | None]]:
    """Yield the checks of the limits among the dependencies of the matched route, each with the route's template."""
    context = _route_context(scope)
    for run in () if context.exempt else context.runs:
        if run:
            yield context.checks[run[0]], context.template


class _RefusedRequest(RateLimited, HTTPException):
    """A refusal that the app may handle as `RateLimited`, by its status, or as any `HTTPException`."""

    def __init__(self, verdict: Verdict, refusal: OwnResponse, respond: _Responder) -> None:
        fields = dict(refusal.headers_without_body)
        HTTPException.__init__(self, refusal.status, json.decode(refusal.body)["detail"], fields)
        self.verdict = verdict
        self.respond = respond


class _UnhandledRefusal(_RefusedRequest):
    """A refusal without a handler in the app: `_handle_refused` sends the default response."""


class _RefusedWebSocket(RateLimited):
    """A refused websocket. Not an `HTTPException`, because handlers of those return HTTP responses."""

    def __init__(self, verdict: Verdict, respond: _Responder) -> None:
        super().__init__(verdict)
        self.respond = respond


async def _refusal_error(decision: EndpointDecision, verdict: Verdict, connection: HTTPConnection) -> Exception:
    """Return the error to raise for a refusal.

    Registers `_handle_refused` as its handler, except for an HTTP request if the app has a handler itself.
    """
    respond = partial(respond_to_refused, decision, verdict, connection)
    refusal = decision.gate.default_refusal(decision.request, verdict)
    # Starlette looks up the handler in this table when it has caught the error
    handlers, _ = connection.scope.get("starlette.exception_handlers", (None, None))
    if isinstance(connection, WebSocket):
        if not isinstance(handlers, MutableMapping):
            return WebSocketException(close_message(refusal.status)["code"])
        handlers[_RefusedWebSocket] = _handle_refused
        return _RefusedWebSocket(verdict, respond)
    if not isinstance(handlers, MutableMapping) or not _is_unhandled(handlers, decision):
        return _RefusedRequest(verdict, refusal, respond)
    handlers[_UnhandledRefusal] = _handle_refused
    return _UnhandledRefusal(verdict, refusal, respond)


async def _handle_refused(_: HTTPConnection, error: Any) -> Response | None:
    response: Response | None = await error.respond()
    return response


def _is_unhandled(handlers: Mapping[Any, Any], decision: EndpointDecision) -> bool:
    """Return whether the app has no handler for refusals. With `on_refused`, handlers of any error do not count."""
    for kind in _RefusedRequest.__mro__:
        if (handler := handlers.get(kind)) is not None:
            for_any = issubclass(HTTPException, kind)
            return handler is http_exception_handler or (for_any and decision.gate.refusal_handler is not None)
    return True


class _RouteContext:
    """The limits of one route, grouped once; replaced when limits or routes are added.

    A *run* is a series of limits with no other dependency between them. `template`: None if the route is unknown.
    `checks[limit]`: the checks of the run that contains the limit. `scope_key`: the objects that identify the
    route in the scope; referenced, so that no other object gets their ids.
    """

    __slots__ = (
        "_all_limits",
        "_name",
        "_shown",
        "checks",
        "endpoint",
        "exempt",
        "runs",
        "scope_key",
        "template",
        "version",
    )

    def __init__(self, scope: Scope, info: RouteInfo | None, overrides: Container[Any] = ()) -> None:
        self.version: Final = EndpointLimit.version
        self.scope_key: Final = scope.get("route"), route_leaf(scope)
        self.endpoint: Final = scope.get("endpoint")
        self.exempt: Final = is_exempt(self.endpoint)
        self.template: Final = None if info is None else info.template
        self._name: Final = bucket_name_of(self.endpoint) if info is None else info.name
        self._shown: Final = display_name(info, self.endpoint)
        self.runs: Final = _runs(matched_route(scope), overrides)
        self._all_limits: Final = tuple(dict.fromkeys(one for run in self.runs for one in run))
        handlers, _ = scope.get("starlette.exception_handlers", (None, None))
        if isinstance(handlers, MutableMapping) and handlers.keys().isdisjoint(RefusedCharge.__mro__):
            handlers[RefusedCharge] = respond_to_charge  # Starlette looks up the handler when it has caught the error
        self.checks: Final = Memo[AsgiEndpointLimit, Sequence[EndpointCheck]](self._checks_for, Budget(_MAX_LIMITS))

    def _checks_for(self, one: AsgiEndpointLimit) -> Sequence[EndpointCheck]:
        # a limit without a run is in a route whose dependencies this version of FastAPI does not expose
        run = next((run for run in self.runs if one in run), (one,))
        return endpoint_checks(run, self._name, self._shown, self._all_limits if one in self._all_limits else run)


def _route_context(scope: Scope) -> _RouteContext:
    """Return the dependency limits of the matched route."""
    if overrides := getattr(scope.get("app"), "dependency_overrides", None):  # set by tests
        return _RouteContext(scope, route_info(scope), overrides)
    contexts = app_cache(scope.get("router"), "around")
    route, leaf = scope.get("route"), route_leaf(scope) if "fastapi" in scope else None
    scope_key: Any = id(route) if leaf is None else (id(route), id(leaf))
    context: _RouteContext | None = contexts.get(scope_key)
    if context is None or context.version != EndpointLimit.version or context.endpoint is not scope.get("endpoint"):
        context = _find_context(scope, scope_key, contexts)
    return context


def _find_context(scope: Scope, scope_key: Any, contexts: dict[Any, Any]) -> _RouteContext:
    infos = route_infos(scope)
    info = first_match(infos, scope)
    if len(infos) > 1 and info is not None:  # the route is mounted several times, so the request decides
        scope_key = (scope_key, info.template)
    context: _RouteContext | None = contexts.get(scope_key)
    if context is None or context.version != EndpointLimit.version or context.endpoint is not scope.get("endpoint"):
        context = _RouteContext(scope, info)
        if info is not None:
            contexts[scope_key] = context
    return context


def _runs(route: Any, overrides: Container[Any]) -> Sequence[tuple[AsgiEndpointLimit, ...]]:
    """Return the runs of limits that no other dependency separates."""
    leaf = starlette_route(route)  # another object for a websocket of an included router
    runs: list[list[AsgiEndpointLimit]] = [[]]
    for call in _dependency_calls(getattr(leaf, "dependant", None), overrides):
        if isinstance(call, AsgiEndpointLimit):
            runs[-1].append(call)
        else:
            runs.append([])
    return [tuple(dict.fromkeys(run)) for run in runs]


def _dependency_calls(dependant: Any, overrides: Container[Any]) -> Iterator[Any]:
    """Yield the dependencies in the order of FastAPI's calls; None for an overridden one."""
    for one in getattr(dependant, "dependencies", ()):
        if one.call in overrides:
            yield None
        else:
            yield from _dependency_calls(one, overrides)
            yield one.call
