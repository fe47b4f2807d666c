"""Rate limiting middleware for WSGI apps: Flask, Django, Bottle and others."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ratelimit_mw.core.signatures import check_app
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.response_tracking import track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.views import WsgiRequest
from ratelimit_mw.rules.startup_checks import ProcessCountCheck
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.options import Options
from ratelimit_mw.wsgi.send import refuse, with_headers
from ratelimit_mw.wsgi.tracking import call_tracked

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class RateLimitMiddleware:
    """Limits how often a client may call `app`.

    `app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limits="100/minute")`.

    `settings`: a `Settings` object or a mapping. Keyword arguments are the same settings and take precedence. The app
    finds the verdict in `environ["ratelimit_mw"].verdict`. Invalid settings raise `ConfigError`.
    """

    @check_arguments(Options)
    def __init__(
        self,
        app: "WSGIApplication",
        settings: Settings | Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_app(app, "WSGI")
        self.app = app
        self._gate = Gate(Settings.of(settings, options))
        self._style = self._gate.settings.headers
        self._off = self._gate.settings.enabled is False
        self._gate.adapt_to_router(app)
        self._gate.warn_of_unused_slot_options()
        self._processes = ProcessCountCheck(self._gate.settings.store)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Admit or refuse one request. The app's iterable is wrapped only if its end must be tracked."""
        if self._off:
            environ.setdefault("ratelimit_mw", RateLimitState(None, self._gate))
            return self.app(environ, start_response)
        if self._processes.unknown:
            self._processes.examine(environ)
        request = WsgiRequest(environ, environ.get("REMOTE_ADDR") or None, environ.get("ratelimit_mw"))
        verdict = self._gate.admit(request)
        state = request.state
        if state is None:
            state = RateLimitState(verdict, self._gate)
        elif verdict is not None:
            state.record(verdict, self._gate)
        environ["ratelimit_mw"] = state
        if verdict is None:
            return self.app(environ, start_response)
        if not verdict.allowed:
            response = self._gate.default_refusal(request, verdict)
            return refuse(request, verdict, response, self._gate.refusal_handler, start_response)
        if self._style != "none" and not state.headers_shown:
            state.headers_shown = True
            start_response = with_headers(state, self._style, start_response)
        if request.on_end is not None and (tracker := track_response(request, state)) is not None:
            return call_tracked(self.app, environ, start_response, tracker)
        return self.app(environ, start_response)

    def close(self) -> None:
        """Close the store if the middleware opened it. WSGI has no shutdown event: call this from a server hook."""
        self._gate.close()
