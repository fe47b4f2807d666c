"""Sends rate limit headers and refusals under WSGI, for the middleware and for Flask."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.on_refused import HANDLER_FAILED, RefusalHandler, checked_response
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import (
    BODY_HEADERS,
    REASONS,
    HeaderList,
    HeaderStyle,
    Response,
    headers,
    non_conflicting,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication


_LIST_FIELDS = 2  # RateLimit and RateLimit-Policy: as lists, they are valid beside the app's


def refuse(
    request: Request,
    verdict: Verdict,
    refusal: Response,
    refusal_handler: RefusalHandler | None,
    start_response: "StartResponse",
) -> Iterable[bytes]:
    """Send the response to a refused request: that of `refusal_handler`, or else `refusal`."""
    if refusal_handler is not None and refusal_handler.kind == "wsgi":
        answer = _app_response(refusal_handler.call, request, refusal, start_response)
        if answer is not None:
            return answer
    elif refusal_handler is not None:
        refusal = _handler_response(refusal_handler.call, request, verdict, refusal)
    start_response(f"{refusal.status} {REASONS.get(refusal.status, 'Refused')}", refusal.headers)
    return [] if request.raw["REQUEST_METHOD"] == "HEAD" else [refusal.body]


def with_headers(state: RateLimitState, style: HeaderStyle, start_response: "StartResponse") -> "StartResponse":
    """Return a `start_response` that adds the rate limit headers, for all that is charged by then."""
    return partial(_start, state, style, start_response)  # a closure would cost twice as much


def _start(
    state: RateLimitState,
    style: HeaderStyle,
    start_response: "StartResponse",
    status: str,
    fields: HeaderList,
    exc_info: Any = None,
) -> Callable[[bytes], object]:
    both = _merged(fields, headers(state.verdict, style))
    return start_response(status, both) if exc_info is None else start_response(status, both, exc_info)


def headers_without_body(refusal: Response) -> HeaderList:
    """Return the headers of a refusal, except those that describe its body."""
    return [(name, value) for name, value in refusal.headers if name.lower() not in BODY_HEADERS]


def _app_response(
    app: "WSGIApplication", request: Request, refusal: Response, start_response: "StartResponse"
) -> Iterable[bytes] | None:
    """Let an app respond, and add the refusal's headers. Return None if it raises before it starts."""
    fields = headers_without_body(refusal)
    started = False

    def start(status: str, theirs: HeaderList, *more: Any) -> Callable[[bytes], object]:
        nonlocal started
        started = True
        return start_response(status, _merged(theirs, fields), *more)

    try:
        return app(request.raw, start)
    except Exception as error:
        if started:
            raise
        warn_throttled(f"on_refused {callable_name(app)}", HANDLER_FAILED, error=error)
        return None


def _merged(theirs: HeaderList, added: HeaderList) -> HeaderList:
    lists = len(added) == _LIST_FIELDS and added[-1][0] == "RateLimit"
    return [*theirs, *(added if lists else non_conflicting(added, {name.lower() for name, _ in theirs}))]


def _handler_response(call: Any, request: Request, verdict: Verdict, refusal: Response) -> Response:
    try:
        return checked_response(call, call(request, verdict), refusal)
    except Exception as error:  # noqa: BLE001  # the request stays refused, whatever the callable does
        warn_throttled(f"on_refused {callable_name(call)}", HANDLER_FAILED, error=error)
        return refusal
