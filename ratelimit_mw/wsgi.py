"""The middleware for WSGI apps: Flask, Django, Bottle and every other."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ratelimit_mw.advice import known_workers, warn_of_workers
from ratelimit_mw.calls import name_of
from ratelimit_mw.gate import Gate
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.on_refused import answered
from ratelimit_mw.options import Headers, Options
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.request import Request
from ratelimit_mw.response import ABOUT_THE_BODY, REASONS, HeaderList, Response, beside, headers
from ratelimit_mw.settings import Settings
from ratelimit_mw.verdict import Verdict
from ratelimit_mw.views import WsgiRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


_FAILED = "raised, our own answer is sent"
_LISTS = 2  # RateLimit and RateLimit-Policy, which stand beside whatever the app says


class RateLimitMiddleware:
    """Limits how often a client may call `app`.

    `app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limits="100/minute")`.

    `settings`: `Settings` or a mapping; keyword arguments are the same settings and go before it. The app finds the
    verdict in `environ["ratelimit_mw"].verdict`. Wrong settings raise `ConfigError`.
    """

    def __init__(
        self,
        app: "WSGIApplication",
        settings: Settings | Mapping[str, Any] | None = None,
        /,
        **options: Unpack[Options],
    ) -> None:
        self.app = app
        self._gate = Gate(Settings.of(settings, options))
        self._style = self._gate.settings.headers
        # once, if the server has several processes and nothing else said so
        self._warns = self._gate.settings.store == "memory://" and known_workers() == 1

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Admit or refuse one request. The app's own iterable is returned untouched."""
        if self._warns and environ.get("wsgi.multiprocess"):
            self._warns = False
            warn_of_workers(None)
        request = WsgiRequest(environ, environ.get("REMOTE_ADDR") or None, environ.get("ratelimit_mw"))
        verdict = self._gate.admit(request)
        if verdict is None:
            return self.app(environ, start_response)
        outcome = request.outcome
        if outcome is None:
            outcome = Outcome(verdict, self._gate)
        else:
            outcome.add(verdict)
        if not verdict.allowed:
            return self._refuse(request, verdict, start_response)
        environ["ratelimit_mw"] = outcome
        if self._style != "none" and not outcome.shown:
            outcome.shown = True
            start_response = _with_headers(outcome, self._style, start_response)
        return self.app(environ, start_response)

    def _refuse(self, request: Request, verdict: Verdict, start_response: "StartResponse") -> Iterable[bytes]:
        own, answerer = self._gate.refusal(request, verdict), self._gate.answerer
        if answerer is not None and answerer.kind == "wsgi":
            answer = _answer_of(answerer.call, request, own, start_response)
            if answer is not None:
                return answer
        elif answerer is not None:
            own = _answered(answerer.call, request, verdict, own)
        start_response(f"{own.status} {REASONS.get(own.status, 'Refused')}", own.headers)
        return [] if request.raw["REQUEST_METHOD"] == "HEAD" else [own.body]

    def close(self) -> None:
        """Close the store if the middleware made it. Servers end without telling; call it where yours does."""
        self._gate.close()


def _answer_of(
    app: "WSGIApplication", request: Request, own: Response, start_response: "StartResponse"
) -> Iterable[bytes] | None:
    """Have an app answer, with what a refusal says added. None when it raised before it began."""
    fields = [(name, value) for name, value in own.headers if name.lower() not in ABOUT_THE_BODY]
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
        warn_rarely(f"on_refused {name_of(app)}", _FAILED, error=error)
        return None


def _with_headers(outcome: Outcome, style: Headers, start_response: "StartResponse") -> "StartResponse":
    """A `start_response` that adds our headers. They say what is known of the request by then."""

    def start_with_headers(status: str, fields: HeaderList, exc_info: Any = None) -> Callable[[bytes], object]:
        both = _both(fields, headers(outcome.verdict, style))
        return start_response(status, both) if exc_info is None else start_response(status, both, exc_info)

    return start_with_headers


def _both(theirs: HeaderList, own: HeaderList) -> HeaderList:
    lists = len(own) == _LISTS and own[-1][0] == "RateLimit"
    return [*theirs, *(own if lists else beside(own, {name.lower() for name, _ in theirs}))]


def _answered(call: Any, request: Request, verdict: Verdict, own: Response) -> Response:
    try:
        return answered(call, call(request, verdict), own)
    except Exception as error:  # noqa: BLE001  # a refusal is answered, whatever the callable does
        warn_rarely(f"on_refused {name_of(call)}", _FAILED, error=error)
        return own
