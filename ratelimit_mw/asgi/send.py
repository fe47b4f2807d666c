"""Sends rate limit headers and refusals to ASGI servers.

This list shows which code sends a refusal, by the part that refused the request. It covers ASGI, and Django under ASGI
and WSGI. The other WSGI apps, Flask among them, are at the end.

- `RateLimitMiddleware`, Starlette's `RateLimit`, and `limit` on a class call `send_refusal`.
- `limit` on a function calls `starlette.respond_to_refused`. For HTTP it returns a Starlette response, which outer
  decorators can change. For a handshake, or if `on_refused` is an ASGI app, `send_refusal` sends the response.
- FastAPI's dependency `RateLimit` raises the error that `_refusal_error` in `fastapi.py` returns. A handler of the app
  can respond to this error. Without one, the package's own handler calls `starlette.respond_to_refused`.
- In a websocket that the app has accepted, `limit` on a function and FastAPI's dependency cannot send a response.
  There, `starlette.respond_to_refused` closes the websocket. If Starlette put no table of error handlers into the
  scope, FastAPI's dependency cannot register a handler that calls `respond_to_refused`: `_refusal_error` returns a
  `WebSocketException`, and Starlette closes the websocket.
- A limit on messages calls `_close_after_refusal` in `messages.py`.
- Django's middleware calls `django.responses.to_django`.
- A throttle of REST framework leaves the response to REST framework, see `django/throttle.py`.

To change the headers or the body of refusals, see `http/response.py`. To delay refusals, or to see each, start where
the verdict is known. With the integrations above, each refusing verdict passes through one of these five functions:

- `RateLimitMiddleware._decide` (`asgi/__init__.py`),
- `enforce` (`starlette/enforcement.py`),
- `_close_after_refusal` (`asgi/messages.py`), the only one that sees nothing but refusals,
- `_conclude` (`django/middleware.py`),
- `allow_request` (`django/throttle.py`). The first throttle of a view decides. The other throttles of the view return
  its result. So an override of `allow_request` that calls `super()` can see one refusal several times.

Without a `DisconnectWatcher` (`asgi/disconnect.py`), a delay continues after the client has disconnected.
`RateLimitMiddleware._on_longer_way` makes a watcher only for requests that the gate may delay, and not for a refusal
of the short way. A synchronous Django middleware and a throttle must not await a delay.

In the WSGI middleware (`wsgi/__init__.py`) and Flask (`flask/hooks.py`), the functions named `_decide` know the
verdict, and `wsgi/send.py` sends the refusal. In the decision service (`service/`), `RateLimitMiddleware` decides the
requests that a proxy forwards, and `service/forwarded.py` adapts the refusals to nginx and Envoy. A sixth function,
`Requests.response` (`service/requests.py`), builds the responses of the service's other calls, refusals among them:
checks, and gRPC calls (`service/grpc.py`).
"""

from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import logger
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.on_refused import custom_refusal, warn_of_failed_handler, warn_of_success
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import (
    REASONS,
    HeaderStyle,
    RawFields,
    Response,
    addable,
    addable_to_refusal,
    headers,
    names_of,
    raise_unhandled,
    raw,
    raw_headers,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
AddHeaders = Callable[[Verdict, Message], RawFields]

# The key of the `RateLimitState` in the scope. It is in the scope itself, because a faulty server may share
# scope["state"] between requests.
STATE_KEY = "ratelimit_mw"
_TRY_AGAIN_LATER, _POLICY_VIOLATION = 1013, 1008  # websocket close codes
_FORBIDDEN = 403


def with_headers(state: RateLimitState, add: AddHeaders, send: Send) -> Send:
    """Return a `send` that adds the rate limit headers to the start of the app's response.

    The headers describe everything charged for the request by then. Other messages pass unchanged. The `send` raises
    `RateLimited` if the app lets a refused charge pass, see `raise_unhandled`. `add`: see `adds_in`.
    """

    def send_with_headers(message: Message) -> "Awaitable[None]":  # quoted: not evaluated for each request
        """Return the awaitable of `send`; a coroutine around it would cost more."""
        if message["type"] == "http.response.start" and state.verdict is not None:
            message = {**message}  # a copy: an app may send the same message again
            message["headers"] = add(state.verdict, message)
        return send(message)

    return send_with_headers


def adds_in(style: HeaderStyle) -> AddHeaders:
    """Return the function that returns the headers of the start of a response, with ours in this style."""
    # both fields are lists, so they are valid beside the same fields of the app
    return raw_headers if style == "ietf" else partial(_added_in, style)


def _added_in(style: HeaderStyle, verdict: Verdict, message: Message) -> RawFields:
    raise_unhandled(verdict, message["status"])
    theirs = list(message.get("headers", ()))
    return [*theirs, *raw(addable(verdict, headers(verdict, style), zip(names_of(theirs), theirs, strict=True)))]


async def send_refusal(request: Request, verdict: Verdict, gate: AsyncGate, receive: Receive, send: Send) -> None:
    """Send the response to a refused request, or let `on_refused` send it.

    The docstring of this module lists the callers.
    """
    scope, refusal, refusal_handler = (
        request.raw,
        gate.default_refusal(request, verdict),
        gate.refusal_handler_for(verdict),
    )
    if scope["type"] == "websocket":
        await receive()  # a handshake is answered only after websocket.connect
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send(close_message(refusal.status))
            return
    elif (
        refusal_handler is not None
        and refusal_handler.kind == "asgi"
        and await _respond_by_app(refusal_handler.call, refusal, scope, receive, send)
    ):
        return
    if refusal_handler is not None:  # otherwise, the call would only cost time
        refusal = await custom_refusal(refusal_handler, request, verdict, refusal)
    await send_response(refusal, scope, send)


async def send_response(response: Response, scope: Scope, send: Send) -> None:
    """Send a response to an HTTP request or a websocket's handshake."""
    prefix = "http" if scope["type"] == "http" else "websocket.http"
    body = b"" if scope.get("method") == "HEAD" else response.body
    await send({"type": f"{prefix}.response.start", "status": response.status, "headers": response.raw_headers})
    await send({"type": f"{prefix}.response.body", "body": body})


def close_message(status: int) -> Message:
    """Return the websocket close message that corresponds to a response with this status."""
    code = _POLICY_VIOLATION if status == _FORBIDDEN else _TRY_AGAIN_LATER
    return {"type": "websocket.close", "code": code, "reason": REASONS[status]}


async def _respond_by_app(app: App, refusal: Response, scope: Scope, receive: Receive, send: Send) -> bool:
    """Let an app respond, and add the refusal's headers. Return whether it started a response."""
    fields = refusal.headers_without_body
    started = False

    async def send_with_refusal(message: Message) -> None:
        nonlocal started
        started = True
        if message["type"] == "http.response.start":
            warn_of_success(app, message["status"])
            theirs = list(message.get("headers", ()))
            message = {**message, "headers": [*theirs, *raw(addable_to_refusal(fields, names_of(theirs)))]}
        await send(message)

    try:
        await app(scope, receive, send_with_refusal)
    except Exception as error:
        if started:
            raise
        warn_of_failed_handler(app, error)
    return started


async def fail_startup(error: ConfigError, scope: Scope, receive: Receive, send: Send) -> None:
    """Fail the lifespan startup because of invalid settings; raise the error for any other scope.

    In a Starlette app (`app` in the scope) the error is raised for the lifespan, too: Starlette itself raises when a
    startup fails, and its TestClient expects that.
    """
    if scope["type"] == "lifespan":
        await receive()
        logger.error("%s", error)
        await send({"type": "lifespan.startup.failed", "message": f"ratelimit_mw: {error}"})
        if "app" not in scope:
            return
    raise error
