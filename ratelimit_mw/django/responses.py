"""Adds rate limit headers to Django's responses, and converts refusals to Django's responses."""

from inspect import isawaitable
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, ResponseHeaders
from msgspec import Struct

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.response_tracking import EndReason, ResponseTracker
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.on_refused import HANDLER_FAILED, RefusalHandler, checked_response
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import HeaderStyle, Response, headers, non_conflicting

_STATE_KEY: Final = "ratelimit_mw"  # where WSGI or ASGI middleware around Django stores the state
_LIMITS: Final = "ratelimit"
_POLICIES: Final = "ratelimit-policy"
_LOWER_NAMES: Final = (_POLICIES, _LIMITS)  # Django's keys, in the order of `response.headers`
_KEEPS_DICT: Final = isinstance(getattr(ResponseHeaders({}), "_store", None), dict)


class RequestContext(Struct, gc=False):
    """One middleware's part in one request.

    `adds_headers`: whether it adds the headers. `refused`: its refusal. `tracker`: reports the end of the response.
    """

    state: RateLimitState
    adds_headers: bool
    is_decided: bool = False
    refused: Response | None = None
    tracker: ResponseTracker | None = None

    @property
    def needs_decision(self) -> bool:
        """Whether to decide on a request without a view. False if another middleware refused it."""
        return self.state.verdict is None or self.state.verdict.allowed

    def end(self, ending: EndReason) -> None:
        """End the tracking of a request without a response to track."""
        if self.tracker is not None:
            self.tracker.end(ending)

    def answer(self, request: HttpRequest) -> HttpResponse | None:
        """Return a new response to a refused request; None for an admitted one."""
        return None if self.refused is None else _to_django(request, self.refused)


def request_context(request: Any, gate: Any, style: HeaderStyle) -> RequestContext:
    """Return the context of a new request, and set the state as `request.ratelimit`."""
    state = getattr(request, "ratelimit", None) or getattr(request, "scope", request.META).get(_STATE_KEY)
    if not isinstance(state, RateLimitState):
        state = RateLimitState(None, gate)
    request.ratelimit = state
    adds_headers = style != "none" and not state.headers_shown
    if adds_headers:
        state.headers_shown = True
    return RequestContext(state, adds_headers)


def replace_response(refused: HttpResponse, response: HttpResponseBase) -> HttpResponse:
    """Return a refusal in place of a response, which is closed together with it."""
    refused._resource_closers += response._resource_closers  # type: ignore[attr-defined]  # noqa: SLF001  # its files
    return refused


def end_on_close(response: HttpResponseBase, tracker: ResponseTracker) -> None:
    """Report the end when the server closes the response. Other middleware has run by then."""

    def close() -> None:
        tracker.response.started(response.status_code, list(response.items()))
        tracker.end("ended")

    response._resource_closers.append(close)  # type: ignore[attr-defined]  # noqa: SLF001  # called on close


def add_headers(response: HttpResponseBase, verdict: Verdict | None, style: HeaderStyle) -> None:
    """Add the rate limit headers. Fields that are lists are appended to the view's."""
    theirs, added = response.headers, headers(verdict, style)
    # Setting a field by name costs as much as making it: Django encodes name and value, and looks for line ends. These
    # fields have none, so they go straight into the dict of Django's own class, if it still keeps its fields there.
    if style == "ietf" and type(theirs) is ResponseHeaders and _KEEPS_DICT:
        fields: dict[str, tuple[str, str]] = theirs._store  # noqa: SLF001  # see above
        if _LIMITS not in fields and _POLICIES not in fields:
            fields.update(zip(_LOWER_NAMES, added, strict=False))  # `added` may be empty
            return
    names = {name.lower() for name in theirs}  # a lookup of a missing name costs an exception
    for name, value in added if style == "ietf" else non_conflicting(added, names):  # lists are valid beside the view's
        theirs[name] = f"{theirs[name]}, {value}" if name.lower() in names else value


def _to_django(request: HttpRequest, refusal: Response) -> HttpResponse:
    """Return a refusal as a response of Django."""
    body = b"" if request.method == "HEAD" else refusal.body
    response = HttpResponse(body, status=refusal.status)
    del response.headers["Content-Type"]
    for name, value in refusal.headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response.headers[name] = f"{response.headers[name]}, {value}" if name in response.headers else value
    # Django would log each one, and mail each 503 to the admins; a client, or a failed store, can cause any number
    response._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001
    return response


def refusal_from_handler(
    refusal_handler: RefusalHandler | None, request: Request, verdict: Verdict, refusal: Response
) -> Response:
    """Return the response of `on_refused`; the default one without it, or if it raises."""
    if refusal_handler is None:
        return refusal
    try:
        result = refusal_handler.call(request, verdict)
        return checked_response(
            refusal_handler.call, async_to_sync(_await)(result) if isawaitable(result) else result, refusal
        )
    except Exception as error:  # noqa: BLE001  # the request stays refused, whatever the callable does
        warn_throttled(f"on_refused {callable_name(refusal_handler.call)}", HANDLER_FAILED, error=error)
        return refusal


async def _await(result: Any) -> Any:
    return await result
