"""The middleware for WSGI apps: Flask, Django, Bottle and every other."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ratelimit_mw.advice import Processes
from ratelimit_mw.callables import check_app
from ratelimit_mw.faces.wsgi_follow import followed
from ratelimit_mw.faces.wsgi_send import refuse, with_headers
from ratelimit_mw.following import following
from ratelimit_mw.gate import Gate
from ratelimit_mw.options import Options
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.settings import Settings
from ratelimit_mw.views import WsgiRequest
from ratelimit_mw.words import answered

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class RateLimitMiddleware:
    """Limits how often a client may call `app`.

    `app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limits="100/minute")`.

    `settings`: `Settings` or a mapping; keyword arguments are the same settings and go before it. The app finds the
    verdict in `environ["ratelimit_mw"].verdict`. Wrong settings raise `ConfigError`.
    """

    @answered(Options)
    def __init__(
        self,
        app: "WSGIApplication",
        settings: Settings | Mapping[str, Any] | None = None,
        /,
        **options: Unpack[Options],
    ) -> None:
        check_app(app, "WSGI")
        self.app = app
        self._gate = Gate(Settings.of(settings, options))
        self._style = self._gate.settings.headers
        self._off = self._gate.settings.enabled is False
        self._gate.look_at(app)
        self._gate.warn_of_no_slots()
        self._processes = Processes(self._gate.settings.store)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Admit or refuse one request. The app's own iterable is returned untouched."""
        if self._off:
            return self.app(environ, start_response)
        if self._processes.unknown:
            self._processes.look(environ)
        request = WsgiRequest(environ, environ.get("REMOTE_ADDR") or None, environ.get("ratelimit_mw"))
        verdict = self._gate.admit(request)
        if verdict is None:
            return self.app(environ, start_response)
        outcome = request.outcome
        if outcome is None:
            outcome = Outcome(verdict, self._gate)
        else:
            outcome.add(verdict, self._gate)
        if not verdict.allowed:
            own = self._gate.refusal(request, verdict)
            return refuse(request, verdict, own, self._gate.answerer, start_response)
        environ["ratelimit_mw"] = outcome
        if self._style != "none" and not outcome.shown:
            outcome.shown = True
            start_response = with_headers(outcome, self._style, start_response)
        if request.followers is not None and (begun := following(request, outcome)) is not None:
            return followed(self.app, environ, start_response, begun)
        return self.app(environ, start_response)

    def close(self) -> None:
        """Close the store if the middleware made it. Servers end without telling; call it where yours does."""
        self._gate.close()
