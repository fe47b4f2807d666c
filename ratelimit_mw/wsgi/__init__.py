"""Rate limiting middleware for WSGI apps: Flask, Django, Bottle and others."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from ratelimit_mw.core.signatures import check_app
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.entrance import enter_wsgi
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.response_tracking import track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.views import WsgiRequest
from ratelimit_mw.rules.deployment_checks import ProcessCountCheck
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.options import Options
from ratelimit_mw.wsgi.send import send_refusal, start_with_headers
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
        settings_in_use = self._gate.settings
        self._style = settings_in_use.headers
        self._adds_headers = self._style != "none"
        self._off = settings_in_use.enabled is False
        self._takes_short_way = not self._off and self._gate.has_short_way
        self._gate.rule_set.adapt_to_router(app)
        self._gate.warn_of_unused_slot_options()
        self._processes = ProcessCountCheck(settings_in_use.store)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Admit or refuse one request. The app's iterable is wrapped only if its end must be tracked."""
        if not (self._processes.done or self._off):
            self._processes.examine(environ)
        way, verdict, client = None, None, None
        if self._takes_short_way and "ratelimit_mw" not in environ and not environ.get("REMOTE_USER"):
            way, charges, client = enter_wsgi(self._gate.rule_set, environ)
            verdict = None if way is None else self._gate.take(way, charges)
        if way is None or (verdict is not None and not verdict.allowed):
            return self._decide(verdict, client, environ, start_response)
        is_limited = verdict is not None
        adds_headers = is_limited and self._adds_headers
        state = environ["ratelimit_mw"] = RateLimitState(verdict, self._gate, adds_headers, is_limited)
        if adds_headers:
            start_response = partial(start_with_headers, state, self._style, start_response)
        try:
            return self.app(environ, start_response)
        finally:
            state.app_returned()

    def _decide(
        self,
        verdict: Verdict | None,
        client: str | None,
        environ: "WSGIEnvironment",
        start_response: "StartResponse",
    ) -> Iterable[bytes]:
        """Decide on the longer way. `verdict`, `client`: the short way's refusal, if any."""
        if self._off:
            environ.setdefault("ratelimit_mw", RateLimitState(None, self._gate))
            return self.app(environ, start_response)
        if verdict is None:
            client = environ.get("REMOTE_ADDR") or None  # `admit` finds the client
        request = WsgiRequest(environ, client, environ.get("ratelimit_mw"))
        if verdict is None:
            verdict = self._gate.admit(request)
        state = request.outer
        if state is None:
            state = RateLimitState(verdict, self._gate, in_app=verdict is not None)
        elif verdict is not None:
            state.record(verdict, self._gate)
        environ["ratelimit_mw"] = state
        if verdict is None:
            return self.app(environ, start_response)
        if not verdict.allowed:
            response = self._gate.default_refusal(request, verdict)
            return send_refusal(request, verdict, response, self._gate.refusal_handler, start_response)
        if self._adds_headers and not state.headers_claimed:
            state.headers_claimed = True
            start_response = partial(start_with_headers, state, self._style, start_response)
        if request.on_end is not None and (tracker := track_response(request, state)) is not None:
            return call_tracked(self.app, environ, start_response, tracker)
        try:
            return self.app(environ, start_response)
        finally:
            state.app_returned()

    def close(self) -> None:
        """Close the store if the middleware opened it. WSGI has no shutdown event: call this from a server hook."""
        self._gate.close()
