"""Sends rate limit headers and refusals under WSGI, for the middleware and for Flask."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ratelimit_mw.core.runtime import run
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.on_refused import RefusalHandler, custom_refusal, warn_of_failed_handler, warn_of_success
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import (
    REASONS,
    HeaderList,
    HeaderStyle,
    Response,
    addable,
    addable_to_refusal,
    headers,
    raise_unhandled,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def send_refusal(
    request: Request,
    verdict: Verdict,
    refusal: Response,
    refusal_handler: RefusalHandler | None,
    start_response: "StartResponse",
) -> Iterable[bytes]:
    """Send the response to a refused request.

    `refusal`: the response if `refusal_handler` makes none. The caller builds it, because Flask needs it before this
    call; `asgi.send.send_refusal` builds its own.
    """
    if refusal_handler is not None and refusal_handler.kind == "wsgi":
        answer = _app_response(refusal_handler.call, request, refusal, start_response)
        if answer is not None:
            return answer
    refusal = run(custom_refusal(refusal_handler, request, verdict, refusal, None))
    return send_response(refusal, request.raw, start_response)


def send_response(response: Response, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    """Send a response to an HTTP request."""
    start_response(f"{response.status} {REASONS.get(response.status, 'Refused')}", response.headers)
    # a part even if it is empty: hypercorn sends no response without one
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else response.body]


def start_with_headers(
    state: RateLimitState,
    style: HeaderStyle,
    start_response: "StartResponse",
    status: str,
    fields: HeaderList,
    exc_info: Any = None,
) -> Callable[[bytes], object]:
    """Call `start_response` with the headers added. They describe everything charged for the request by then.

    Raises `RateLimited` if the app lets a refused charge pass, see `raise_unhandled`.
    """
    verdict = state.verdict
    if verdict is not None and not verdict.allowed:
        raise_unhandled(verdict, int(status[:3]))
    both = [*fields, *addable(verdict, headers(verdict, style), fields)]
    return start_response(status, both) if exc_info is None else start_response(status, both, exc_info)


def _app_response(
    app: "WSGIApplication", request: Request, refusal: Response, start_response: "StartResponse"
) -> Iterable[bytes] | None:
    """Let an app respond, and add the refusal's headers. Return None if it raises before it starts."""
    fields = refusal.headers_without_body
    started = False

    def start(status: str, theirs: HeaderList, *more: Any) -> Callable[[bytes], object]:
        nonlocal started
        started = True
        warn_of_success(app, status)
        added = addable_to_refusal(fields, (name for name, _ in theirs))
        return start_response(status, [*theirs, *added], *more)

    try:
        return app(request.raw, start)
    except Exception as error:
        if started:
            raise
        warn_of_failed_handler(app, error)
        return None
