"""Adds rate limit headers to Django's responses, and converts refusals to Django's responses."""

from collections.abc import Awaitable
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, ResponseHeaders
from msgspec import Struct

from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.response_tracking import EndReason, ResponseTracker
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.on_refused import await_result, custom_refusal
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import HeaderStyle, Response, addable, headers

_LIMITS: Final = "ratelimit"  # a key in Django's dict
_POLICIES: Final = "ratelimit-policy"
_KEEPS_DICT: Final = isinstance(getattr(ResponseHeaders({}), "_store", None), dict)


class RequestContext(Struct):
    """What one middleware remembers of one request.

    `setup`: what decides it, also after a reload. `adds_headers`: whether the middleware adds the headers. `outer`: the
    context of the next middleware outside. `verdict`: its verdict. `client`: the client's address, if the short way
    refused. `refusal`: its response, if it refuses, or answers what is left of limits. `tracker`: reports the end of
    the response.
    """

    middleware: Any
    state: RateLimitState
    setup: Any
    adds_headers: bool
    outer: "RequestContext | None"
    is_decided: bool = False
    verdict: Verdict | None = None
    client: str | None = None
    refusal: Response | None = None
    tracker: ResponseTracker | None = None

    @property
    def needs_decision(self) -> bool:
        """Whether the request is undecided. False if another middleware refused it."""
        return not (self.is_decided or self.state.is_refused)

    def end(self, ending: EndReason) -> None:
        """End the tracking of a request without a response to track."""
        if self.tracker is not None:
            self.tracker.end(ending)


def replace_response(refusal: HttpResponse, response: HttpResponseBase) -> HttpResponse:
    """Return a refusal that replaces a response. When the refusal is closed, so is the response."""
    refusal._resource_closers += response._resource_closers  # type: ignore[attr-defined]  # noqa: SLF001  # its files
    return refusal


def end_on_close(request: HttpRequest, response: HttpResponseBase, tracker: ResponseTracker) -> None:
    """Report the end when Django closes the request, which it does when the server closes the last response.

    The middleware's own response may never be closed: middleware outside may replace it, as Django's own does for a
    redirect or a 304. The app may also return one response object to many requests, so it gets no reference to them.
    """
    close_request = request.close

    def close() -> None:
        vars(request).pop("close", None)  # cuts the cycle, so that the body is freed without the collector
        try:
            tracker.response.started(response.status_code, list(response.items()))
            tracker.end("ended")
        finally:
            close_request()

    request.close = close  # type: ignore[method-assign]  # an attribute of this object


def add_headers(response: HttpResponseBase, verdict: Verdict | None, style: HeaderStyle) -> None:
    """Add the rate limit headers. A field that is a list is appended to the view's field of the same name.

    The response may be one of the view, a refusal, or the 429 that REST framework builds for a throttle. To add a new
    header to the 429 of a throttle, set it at the top of this function, if the verdict refuses and the response does
    not have it.
    """
    theirs, added = response.headers, headers(verdict, style)
    # Setting a field by name takes as long as making it, because Django encodes name and value, and looks for line
    # breaks. These fields have none, so they are written into the dict inside Django's class, if that still has one.
    if style == "ietf" and type(theirs) is ResponseHeaders and _KEEPS_DICT:
        fields: dict[str, tuple[str, str]] = theirs._store  # noqa: SLF001  # see above
        if added and _LIMITS not in fields and _POLICIES not in fields:
            fields[_POLICIES], fields[_LIMITS] = added
            return
    for name, value in addable(verdict, added, theirs.items()):
        theirs[name] = f"{theirs[name]}, {value}" if name in theirs else value


async def refusal_of(gate: Any, request: Request, verdict: Verdict, waits: Any) -> Response:
    """Return the response to a refused request. `waits`: waits for `on_refused`."""
    default = gate.default_refusal(request, verdict)
    return await custom_refusal(gate.refusal_handler_for(verdict), request, verdict, default, waits)


def to_django(request: HttpRequest, refusal: Response) -> HttpResponse:
    """Return a new response of Django with the status, headers and body of a refusal."""
    body = b"" if request.method == "HEAD" else refusal.body
    response = HttpResponse(body, status=refusal.status)
    del response.headers["Content-Type"]
    for name, value in refusal.headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response.headers[name] = f"{response.headers[name]}, {value}" if name in response.headers else value
    # Otherwise Django would log each refusal, and mail each 503 to the admins. Clients or a failed store can cause
    # many.
    response._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001
    return response


async def wait_in_thread(result: Awaitable[Any]) -> Any:
    """Return the result of an awaitable, in a thread without an event loop. Runs an event loop for it alone."""
    return async_to_sync(await_result)(result)
