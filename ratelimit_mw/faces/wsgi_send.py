"""What all faces under WSGI send: a refusal, and our headers beside an app's own."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ratelimit_mw.callables import name_of
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.on_refused import FAILED_TO_ANSWER, Answerer, answered
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.request import Request
from ratelimit_mw.response import ABOUT_THE_BODY, REASONS, HeaderList, Headers, Response, beside, headers
from ratelimit_mw.verdict import Verdict

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication


_LISTS = 2  # RateLimit and RateLimit-Policy, which stand beside whatever the app says


def refuse(
    request: Request, verdict: Verdict, own: Response, answerer: Answerer | None, start_response: "StartResponse"
) -> Iterable[bytes]:
    """Answer a refused request: as `answerer` says, else with `own`."""
    if answerer is not None and answerer.kind == "wsgi":
        answer = _answer_of(answerer.call, request, own, start_response)
        if answer is not None:
            return answer
    elif answerer is not None:
        own = _answered(answerer.call, request, verdict, own)
    start_response(f"{own.status} {REASONS.get(own.status, 'Refused')}", own.headers)
    return [] if request.raw["REQUEST_METHOD"] == "HEAD" else [own.body]


def with_headers(outcome: Outcome, style: Headers, start_response: "StartResponse") -> "StartResponse":
    """A `start_response` that adds our headers. They say what is known of the request by then."""
    return partial(_start, outcome, style, start_response)  # a function made here would cost twice as much


def _start(
    outcome: Outcome,
    style: Headers,
    start_response: "StartResponse",
    status: str,
    fields: HeaderList,
    exc_info: Any = None,
) -> Callable[[bytes], object]:
    both = _both(fields, headers(outcome.verdict, style))
    return start_response(status, both) if exc_info is None else start_response(status, both, exc_info)


def beyond_the_body(own: Response) -> HeaderList:
    """What a refusal says in headers, whoever writes its body."""
    return [(name, value) for name, value in own.headers if name.lower() not in ABOUT_THE_BODY]


def _answer_of(
    app: "WSGIApplication", request: Request, own: Response, start_response: "StartResponse"
) -> Iterable[bytes] | None:
    """Have an app answer, with what a refusal says added. None when it raised before it began."""
    fields = beyond_the_body(own)
    begun = False

    def start(status: str, theirs: HeaderList, *more: Any) -> Callable[[bytes], object]:
        nonlocal begun
        begun = True
        return start_response(status, _both(theirs, fields), *more)

    try:
        return app(request.raw, start)
    except Exception as error:
        if begun:
            raise
        warn_rarely(f"on_refused {name_of(app)}", FAILED_TO_ANSWER, error=error)
        return None


def _both(theirs: HeaderList, own: HeaderList) -> HeaderList:
    lists = len(own) == _LISTS and own[-1][0] == "RateLimit"
    return [*theirs, *(own if lists else beside(own, {name.lower() for name, _ in theirs}))]


def _answered(call: Any, request: Request, verdict: Verdict, own: Response) -> Response:
    try:
        return answered(call, call(request, verdict), own)
    except Exception as error:  # noqa: BLE001  # a refusal is answered, whatever the callable does
        warn_rarely(f"on_refused {name_of(call)}", FAILED_TO_ANSWER, error=error)
        return own
