"""FastAPI: limits as dependencies of an app, a router or a route, beside the middleware or without it."""

import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from functools import partial
from types import FrameType
from typing import Any, ClassVar, Final, Unpack

from msgspec import json

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.checks import HonorsExempt
from ratelimit_mw.asgi.send import close_message
from ratelimit_mw.core.errors import ConfigError, require
from ratelimit_mw.core.signatures import callable_name, check_parentheses
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RateLimited, Verdict
from ratelimit_mw.http.response import BODY_HEADERS, RESPONSES, raw_headers
from ratelimit_mw.http.response import Response as OwnResponse
from ratelimit_mw.settings.rule import EndpointLimitOptions, LimitsSpec
from ratelimit_mw.starlette.dependencies import route_context
from ratelimit_mw.starlette.enforcement import AsgiEndpointLimit, EndpointDecision, admit_by_address, enforce

with require("fastapi"):
    from fastapi import HTTPException, Response, WebSocket, WebSocketException
    from fastapi.exception_handlers import http_exception_handler
    from fastapi.requests import HTTPConnection

from ratelimit_mw.starlette import exempt, limit, refusal_response

__all__ = ["RateLimit", "RateLimitMiddleware", "exempt", "limit"]

_HINT: Final = 'did you mean Depends(RateLimit("5/minute"))?'
_ON_A_FUNCTION: Final = (
    'did you mean @limit("5/minute"), or Depends(RateLimit("5/minute")) in the dependencies of the route?'
)
_DECORATED: Final[Any] = object()  # the response, where there is none
Answer = Callable[[], Awaitable[Response | None]]


class _Signature:
    """What `inspect.signature` reads of the class: FastAPI does so where it is a dependency that nobody called."""

    def __get__(self, instance: object, owner: type) -> Any:
        """Raise ConfigError if FastAPI reads it of the class; else there is none, as in other classes."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # to know who reads it
        while frame is not None and frame.f_globals.get("__name__") in ("inspect", "functools"):
            frame = frame.f_back
        if instance is None and frame is not None and str(frame.f_globals.get("__name__")).startswith("fastapi."):
            raise ConfigError(f"got the class RateLimit as a dependency: {_HINT}")
        raise AttributeError("__signature__")


class RateLimit(AsgiEndpointLimit, HonorsExempt):
    """A dependency that limits an app, a router or a route: `dependencies=[Depends(RateLimit("5/minute"))]`.

    `limits` and options: as in a rule of the settings, and `store`, a URL or an AsyncStore. Without a `name` each route
    has a bucket of its own, called after its methods and its full template; with one, all routes that it is on share
    it. The key `route` is the full template. Raises `ConfigError` for what is wrong.

    Inside of `RateLimitMiddleware` its store and settings are used, its own limits count too, and it shows the headers.
    Without it, `store`, or else memory of this process, with a warning; then FastAPI drops our headers where the
    endpoint returns a response object of its own.

    Dependencies that stand one after the other are decided in one step: all are charged, or none. One that stands
    behind another dependency, such as who is logged in, is decided after that one.

    Refused, the endpoint is not called, and the answer is the middleware's, unless the app has a handler for
    `RateLimited`, for the status, or for `HTTPException`. The error is all three, and has a `verdict`. A websocket is
    closed with 1013, or refused by a response where the server can.
    """

    __signature__ = _Signature()
    responses: ClassVar[dict[int | str, dict[str, Any]]] = RESPONSES
    """What to document: `FastAPI(responses=RateLimit.responses)`, or that of a router or route."""

    @check_arguments(EndpointLimitOptions)
    def __init__(self, limits: LimitsSpec, *, store: Any = None, **options: Unpack[EndpointLimitOptions]) -> None:
        check_parentheses(limits)
        super().__init__(limits, store=store, **options)
        vars(self)["__call__"] = self._admit  # where FastAPI looks whether it is async

    @property
    def dependency(self) -> Any:
        """What FastAPI reads where it is among `dependencies` without `Depends`: raises ConfigError."""
        raise ConfigError(f"got a RateLimit as a dependency: {_HINT}")

    def __call__(self, connection: HTTPConnection, response: Response = _DECORATED) -> Coroutine[Any, Any, None]:
        """Admit a request, or raise. Raises `ConfigError` at once where it decorates a function.

        An async function would raise that only when it is awaited, and a decorator awaits nothing.
        """
        if response is _DECORATED:
            shown = callable_name(connection) if callable(connection) else f"{connection!r:.100}"
            raise ConfigError(f"got @RateLimit(...) on {shown}: {_ON_A_FUNCTION}")
        return self._admit(connection, response)

    async def _admit(self, connection: HTTPConnection, response: Response) -> None:
        scope = connection.scope
        context = route_context(scope)
        if context.exempt:
            return
        checks = context.checks(self)
        verdict = None if response.raw_headers else admit_by_address(scope, checks)
        if verdict is not None and verdict.allowed:  # the usual case, in short
            response.raw_headers += raw_headers(verdict)
            return
        decision = await enforce(scope, checks, context.template, verdict)
        if decision is None:
            return
        if decision.refusing_verdict:
            raise await _error(decision, decision.refusing_verdict, connection)
        if not response.raw_headers:
            response.raw_headers += decision.raw_fields
            return
        for field, value in decision.fields:  # all that was charged so far, in place of what one before us said
            response.headers[field] = value


class _Refused(RateLimited, HTTPException):
    """A refusal that handlers of the app may answer: as such, by its status, or as any HTTPException."""

    def __init__(self, verdict: Verdict, own: OwnResponse, answer: Answer) -> None:
        fields = {name: value for name, value in own.headers if name.lower() not in BODY_HEADERS}
        HTTPException.__init__(self, own.status, json.decode(own.body)["detail"], fields)
        self.verdict = verdict
        self.answer = answer


class _RefusedOurWay(_Refused):
    """One that nobody else in the app answers."""


class _RefusedWebSocket(RateLimited):
    """The same of a websocket, for which handlers of responses are not made."""

    def __init__(self, verdict: Verdict, answer: Answer) -> None:
        super().__init__(verdict)
        self.answer = answer


async def _error(decision: EndpointDecision, verdict: Verdict, connection: HTTPConnection) -> Exception:
    """What to raise, and that the app knows how to answer it."""
    answer = partial(refusal_response, decision, verdict, connection)
    own = decision.gate.refusal(decision.request, verdict)
    # which the app looks at when it has caught the error
    handlers, _ = connection.scope.get("starlette.exception_handlers", (None, None))
    if isinstance(connection, WebSocket):
        if not isinstance(handlers, MutableMapping):
            return WebSocketException(close_message(own.status)["code"])
        handlers[_RefusedWebSocket] = _answer
        return _RefusedWebSocket(verdict, answer)
    if not isinstance(handlers, MutableMapping) or not _app_leaves_it(handlers, decision):
        return _Refused(verdict, own, answer)
    handlers[_RefusedOurWay] = _answer
    return _RefusedOurWay(verdict, own, answer)


async def _answer(_: HTTPConnection, error: Any) -> Response | None:
    response: Response | None = await error.answer()
    return response


def _app_leaves_it(handlers: Mapping[Any, Any], decision: EndpointDecision) -> bool:
    """Whether the app leaves the answer to us: it has no handler, or none but for any error, beside `on_refused`."""
    for kind in _Refused.__mro__:
        if (handler := handlers.get(kind)) is not None:
            for_any = issubclass(HTTPException, kind)
            return handler is http_exception_handler or (for_any and decision.gate.refusal_handler is not None)
    return True
