"""Rate limiting middleware for WSGI apps: Flask, Django, Bottle and others."""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Unpack

from msgspec import Struct

from ratelimit_mw.core.signatures import check_app
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RateLimited, Verdict
from ratelimit_mw.engine.entrance import enter_wsgi
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.reload import reloader
from ratelimit_mw.engine.response_tracking import track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.page_paths import page_paths
from ratelimit_mw.http.response import HeaderStyle
from ratelimit_mw.http.views import WsgiRequest
from ratelimit_mw.rules.deployment_checks import ProcessCountCheck
from ratelimit_mw.settings import Settings, SettingsValue
from ratelimit_mw.settings.options import Options
from ratelimit_mw.wsgi.send import send_refusal, send_response, start_with_headers
from ratelimit_mw.wsgi.tracking import call_tracked

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class Setup(Struct, frozen=True, eq=False):
    """What the settings in force make of the middleware. A reload replaces it as a whole."""

    gate: Gate
    style: HeaderStyle
    adds_headers: bool
    is_off: bool
    takes_short_way: bool


class RateLimitMiddleware:
    """Limits how often a client may call `app`.

    `app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limits="100/minute")`.

    `settings`: a `Settings` object or a mapping, or a callable that returns one. Keyword arguments are the same
    settings and take precedence. The app finds the verdict in `environ["ratelimit_mw"].verdict`. Invalid settings raise
    `ConfigError`.
    """

    @check_arguments(Options)
    def __init__(
        self,
        app: "WSGIApplication",
        settings: SettingsValue = None,
        **options: Unpack[Options],
    ) -> None:
        check_app(app, "WSGI")
        self.app = app
        found = Settings.of(settings, options)
        self._setup = self._build(found)
        self._reloader = reloader(found, lambda changed: self._build(changed, self._gate), self._use)
        self._processes = ProcessCountCheck(found.store)
        self._has_started = False

    def _build(self, settings: Settings, before: Gate | None = None) -> Setup:
        """Return what decides under these settings. `before`: the gate that it replaces in a reload."""
        settings = settings.exempting(page_paths(self.app))
        gate = Gate(settings, before=before)
        gate.rule_set.adapt_to_router(self.app)
        gate.warn_of_unused_slot_options()
        style, is_off = settings.headers, settings.enabled is False
        return Setup(gate, style, style != "none", is_off, not is_off and gate.has_short_way)

    def _use(self, setup: Setup) -> None:
        """Decide the requests that begin from now on by this."""
        self._setup = setup

    @property
    def _gate(self) -> Gate:
        return self._setup.gate

    def _start(self, environ: "WSGIEnvironment") -> None:
        """Examine the server, and start reloads, at the first request."""
        if not (self._processes.done or self._setup.is_off):
            self._processes.examine(environ)
        if self._reloader is not None:
            self._reloader.start()
        self._has_started = self._processes.done

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Admit or refuse one request. The app's iterable is wrapped only if its end must be tracked."""
        if not self._has_started:
            self._start(environ)
        setup = self._setup  # once: a reload may replace it
        way, verdict, client = None, None, None
        if setup.takes_short_way and "ratelimit_mw" not in environ and not environ.get("REMOTE_USER"):
            way, charges, client = enter_wsgi(setup.gate.rule_set, environ)
            verdict = None if way is None else setup.gate.take(way, charges, environ)
        if way is None or (verdict is not None and not verdict.allowed):
            return self._decide(setup, verdict, client, environ, start_response)
        state = environ["ratelimit_mw"] = RateLimitState(verdict, setup.gate, setup.adds_headers, True)
        start_response = partial(start_with_headers, state, setup.style, start_response)
        try:
            return self.app(environ, start_response)
        except RateLimited as error:
            return self._refuse(error, setup, environ, start_response)
        finally:
            state.app_returned()

    def _decide(
        self,
        setup: Setup,
        verdict: Verdict | None,
        client: str | None,
        environ: "WSGIEnvironment",
        start_response: "StartResponse",
    ) -> Iterable[bytes]:
        """Decide on the longer way. `verdict`, `client`: the short way's refusal, if any."""
        gate = setup.gate
        if setup.is_off:
            environ.setdefault("ratelimit_mw", RateLimitState(None, gate))
            return self.app(environ, start_response)
        peer_or_client = (environ.get("REMOTE_ADDR") or None) if verdict is None else client  # `admit` finds the client
        request = WsgiRequest(environ, peer_or_client, environ.get("ratelimit_mw"))
        if verdict is None:
            verdict = gate.admit(request)
        if request.answer is not None:
            return send_response(request.answer, environ, start_response)
        state = request.outer
        if state is None:
            state = RateLimitState(verdict, gate, in_app=True)
        elif verdict is not None:
            state.record(verdict, gate)
        environ["ratelimit_mw"] = state
        if verdict is not None and not verdict.allowed:
            response = gate.default_refusal(request, verdict)
            return send_refusal(request, verdict, response, gate.refusal_handler_for(verdict), start_response)
        if not state.headers_claimed:
            state.headers_claimed = setup.adds_headers
            start_response = partial(start_with_headers, state, setup.style, start_response)
        try:
            if request.on_end is not None and (tracker := track_response(request, state)) is not None:
                return call_tracked(self.app, environ, start_response, tracker)
            return self.app(environ, start_response)
        except RateLimited as error:
            return self._refuse(error, setup, environ, start_response)
        finally:
            state.app_returned()

    def _refuse(
        self, error: RateLimited, setup: Setup, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Send the refusal of a charge of the app. If the response has begun, the server raises an error."""
        gate, state = setup.gate, environ["ratelimit_mw"]
        verdict = state.refusal_of(error, gate)
        request = WsgiRequest(environ, environ.get("REMOTE_ADDR") or None, state)
        gate.rule_set.find_client(request)
        response = gate.default_refusal(request, verdict)
        return send_refusal(request, verdict, response, gate.refusal_handler_for(verdict), start_response)

    def close(self) -> None:
        """Close the store if the middleware opened it. WSGI has no shutdown event: call this from a server hook."""
        if self._reloader is not None:
            self._reloader.stop()
        self._gate.close()
