"""What goes back to Django: our headers on a response, or a refusal."""

from inspect import isawaitable
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, ResponseHeaders
from msgspec import Struct

from ratelimit_mw.callables import name_of
from ratelimit_mw.following import Ending, Following
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.on_refused import FAILED_TO_ANSWER, Answerer, answered
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.request import Request
from ratelimit_mw.response import Headers, Response, beside, headers
from ratelimit_mw.verdict import Verdict

_OUTCOME: Final = "ratelimit_mw"  # where our WSGI and ASGI middleware, around Django, leave theirs
_LIST: Final = "ratelimit"
_POLICIES: Final = "ratelimit-policy"
_BELOW: Final = (_POLICIES, _LIST)  # the names that Django keeps ours below, in the order of `headers`
_KEEPS_DICT: Final = isinstance(getattr(ResponseHeaders({}), "_store", None), dict)


class Turn(Struct, gc=False):
    """One middleware's part in one request: its outcome, whether it shows the headers, and what it refused with.

    `following`: who waits for the end of the response.
    """

    outcome: Outcome
    shows: bool
    decided: bool = False
    refused: Response | None = None
    following: Following | None = None

    @property
    def due(self) -> bool:
        """Whether it is to be decided where no view was reached: nothing is charged for what another refused."""
        return self.outcome.verdict is None or self.outcome.verdict.allowed

    def ends(self, ending: Ending) -> None:
        """The request ends without a response that could be followed."""
        if self.following is not None:
            self.following.end(ending)

    def answer(self, request: HttpRequest) -> HttpResponse | None:
        """What is answered to a request that was refused; a new one each time."""
        return None if self.refused is None else _rendered(request, self.refused)


def turn_of(request: Any, gate: Any, style: Headers) -> Turn:
    """Begun when a request comes, which finds the outcome in `request.ratelimit`."""
    outcome = getattr(request, "ratelimit", None) or getattr(request, "scope", request.META).get(_OUTCOME)
    if not isinstance(outcome, Outcome):
        outcome = Outcome(None, gate)
    request.ratelimit = outcome
    shows = style != "none" and not outcome.shown
    if shows:
        outcome.shown = True
    return Turn(outcome, shows)


def instead(refused: HttpResponse, response: HttpResponseBase) -> HttpResponse:
    """A refusal in place of what was answered without a view, and which has to be closed too."""
    refused._resource_closers += response._resource_closers  # type: ignore[attr-defined]  # noqa: SLF001  # its files
    return refused


def follow(response: HttpResponseBase, followed: Following) -> None:
    """Have the end told when the server closes the response: by then it is as all middleware have left it."""

    def close() -> None:
        followed.response.started(response.status_code, list(response.items()))
        followed.end("ended")

    response._resource_closers.append(close)  # type: ignore[attr-defined]  # noqa: SLF001  # what it closes with itself


def show(response: HttpResponseBase, verdict: Verdict | None, style: Headers) -> None:
    """Add our headers; lists that a view began go on."""
    theirs, own = response.headers, headers(verdict, style)
    # Setting a field by name costs as much as making it: Django encodes name and value, and looks for line ends. Ours
    # have nothing of the kind, so where Django's own class keeps fields as it does now, they are put there.
    if style == "ietf" and type(theirs) is ResponseHeaders and _KEEPS_DICT:
        kept: dict[str, tuple[str, str]] = theirs._store  # noqa: SLF001  # see above
        if _LIST not in kept and _POLICIES not in kept:
            kept.update(zip(_BELOW, own, strict=False))  # there may be none
            return
    names = {name.lower() for name in theirs}  # to ask Django for a name that is not there costs an exception
    for name, value in own if style == "ietf" else beside(own, names):  # lists stand beside whatever the view says
        theirs[name] = f"{theirs[name]}, {value}" if name.lower() in names else value


def _rendered(request: HttpRequest, own: Response) -> HttpResponse:
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


def answer(answerer: Answerer | None, request: Request, verdict: Verdict, own: Response) -> Response:
    """What `on_refused` says, if there is one; ours if it raised."""
    if answerer is None:
        return own
    try:
        found = answerer.call(request, verdict)
        return answered(answerer.call, async_to_sync(_awaited)(found) if isawaitable(found) else found, own)
    except Exception as error:  # noqa: BLE001  # a refusal is answered, whatever the callable does
        warn_rarely(f"on_refused {name_of(answerer.call)}", FAILED_TO_ANSWER, error=error)
        return own


async def _awaited(found: Any) -> Any:
    return await found
