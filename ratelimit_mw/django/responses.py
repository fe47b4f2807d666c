"""What goes back to Django: our headers on a response, or a refusal."""

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
from ratelimit_mw.http.response import Headers, Response, headers, non_conflicting

_STATE_KEY: Final = "ratelimit_mw"  # where our WSGI and ASGI middleware, around Django, leave theirs
_LIMITS: Final = "ratelimit"
_POLICIES: Final = "ratelimit-policy"
_LOWER_NAMES: Final = (_POLICIES, _LIMITS)  # the names that Django keeps ours below, in the order of `headers`
_KEEPS_DICT: Final = isinstance(getattr(ResponseHeaders({}), "_store", None), dict)


class RequestContext(Struct, gc=False):
    """One middleware's part in one request: its outcome, whether it shows the headers, and what it refused with.

    `following`: who waits for the end of the response.
    """

    state: RateLimitState
    adds_headers: bool
    is_decided: bool = False
    refused: Response | None = None
    tracker: ResponseTracker | None = None

    @property
    def needs_decision(self) -> bool:
        """Whether it is to be decided where no view was reached: nothing is charged for what another refused."""
        return self.state.verdict is None or self.state.verdict.allowed

    def end(self, ending: EndReason) -> None:
        """The request ends without a response that could be followed."""
        if self.tracker is not None:
            self.tracker.end(ending)

    def answer(self, request: HttpRequest) -> HttpResponse | None:
        """What is answered to a request that was refused; a new one each time."""
        return None if self.refused is None else _to_django(request, self.refused)


def request_context(request: Any, gate: Any, style: Headers) -> RequestContext:
    """Begun when a request comes, which finds the outcome in `request.ratelimit`."""
    state = getattr(request, "ratelimit", None) or getattr(request, "scope", request.META).get(_STATE_KEY)
    if not isinstance(state, RateLimitState):
        state = RateLimitState(None, gate)
    request.ratelimit = state
    adds_headers = style != "none" and not state.headers_shown
    if adds_headers:
        state.headers_shown = True
    return RequestContext(state, adds_headers)


def replace_response(refused: HttpResponse, response: HttpResponseBase) -> HttpResponse:
    """A refusal in place of what was answered without a view, and which has to be closed too."""
    refused._resource_closers += response._resource_closers  # type: ignore[attr-defined]  # noqa: SLF001  # its files
    return refused


def end_on_close(response: HttpResponseBase, tracker: ResponseTracker) -> None:
    """Have the end told when the server closes the response: by then it is as all middleware have left it."""

    def close() -> None:
        tracker.response.started(response.status_code, list(response.items()))
        tracker.end("ended")

    response._resource_closers.append(close)  # type: ignore[attr-defined]  # noqa: SLF001  # what it closes with itself


def add_headers(response: HttpResponseBase, verdict: Verdict | None, style: Headers) -> None:
    """Add our headers; lists that a view began go on."""
    theirs, own = response.headers, headers(verdict, style)
    # Setting a field by name costs as much as making it: Django encodes name and value, and looks for line ends. Ours
    # have nothing of the kind, so where Django's own class keeps fields as it does now, they are put there.
    if style == "ietf" and type(theirs) is ResponseHeaders and _KEEPS_DICT:
        fields: dict[str, tuple[str, str]] = theirs._store  # noqa: SLF001  # see above
        if _LIMITS not in fields and _POLICIES not in fields:
            fields.update(zip(_LOWER_NAMES, own, strict=False))  # there may be none
            return
    names = {name.lower() for name in theirs}  # to ask Django for a name that is not there costs an exception
    for name, value in (
        own if style == "ietf" else non_conflicting(own, names)
    ):  # lists stand beside whatever the view says
        theirs[name] = f"{theirs[name]}, {value}" if name.lower() in names else value


def _to_django(request: HttpRequest, own: Response) -> HttpResponse:
    """A refusal as Django sends it."""
    body = b"" if request.method == "HEAD" else own.body
    response = HttpResponse(body, status=own.status)
    del response.headers["Content-Type"]
    for name, value in own.headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response.headers[name] = f"{response.headers[name]}, {value}" if name in response.headers else value
    # Django would log each, and mail each 503 to the admins: a client, or a store that is down, could cause any number
    response._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001
    return response


def refusal_from_handler(
    refusal_handler: RefusalHandler | None, request: Request, verdict: Verdict, own: Response
) -> Response:
    """What `on_refused` says, if there is one; ours if it raised."""
    if refusal_handler is None:
        return own
    try:
        result = refusal_handler.call(request, verdict)
        return checked_response(
            refusal_handler.call, async_to_sync(_await)(result) if isawaitable(result) else result, own
        )
    except Exception as error:  # noqa: BLE001  # a refusal is answered, whatever the callable does
        warn_throttled(f"on_refused {callable_name(refusal_handler.call)}", HANDLER_FAILED, error=error)
        return own


async def _await(result: Any) -> Any:
    return await result
