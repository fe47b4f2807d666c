"""Rate limiting middleware for WSGI apps: Flask, Django, Bottle and others."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from ratelimit_mw.core.signatures import check_app
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.response_tracking import track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.views import WsgiRequest, is_wsgi_peer_lost, only_wsgi_header
from ratelimit_mw.rules.deployment_checks import ProcessCountCheck
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.rules.rule_set import RuleSet
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
        # None if every request needs the general path
        self._fast_rules = None if self._off else self._gate.fast_rules
        self._gate.rule_set.adapt_to_router(app)
        self._gate.warn_of_unused_slot_options()
        self._processes = ProcessCountCheck(settings_in_use.store)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Admit or refuse one request. The app's iterable is wrapped only if its end must be tracked."""
        if not (self._processes.done or self._off):
            self._processes.examine(environ)
        verdict, rules = None, self._fast_rules
        if rules is not None and "ratelimit_mw" not in environ and not environ.get("REMOTE_USER"):
            charge_plan = _fast_plan(rules, environ)
            verdict = None if charge_plan is None else self._gate.admit_plan(charge_plan)
            if verdict is not None and verdict.allowed:
                state = environ["ratelimit_mw"] = RateLimitState(verdict, self._gate, self._adds_headers, True)
                if self._adds_headers:
                    start_response = partial(start_with_headers, state, self._style, start_response)
                try:
                    return self.app(environ, start_response)
                finally:
                    state.app_returned()
        return self._decide(verdict, environ, start_response)

    def _decide(
        self, verdict: Verdict | None, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Decide on the general path. `verdict`: the fast path's refusal, if any."""
        if self._off:
            environ.setdefault("ratelimit_mw", RateLimitState(None, self._gate))
            return self.app(environ, start_response)
        # The fast path found the client's address, which `on_refused` needs after a refusal. Without a verdict, start
        # from the peer's address: `admit` finds the client's.
        client = _client(None if verdict is None else self._fast_rules, environ)
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


def _fast_plan(rules: RuleSet, environ: "WSGIEnvironment") -> Plan | None:
    """Return the plan of a request that has no user; None if the request needs the general path."""
    path: str = environ.get("PATH_INFO") or "/"
    plans = rules.plans_for(environ["REQUEST_METHOD"], path) if path.isascii() else None
    if plans is None:
        return None
    if not environ.get("REMOTE_ADDR") and is_wsgi_peer_lost(environ):
        return None
    client = _client(rules, environ)
    return None if client is None and rules.proxy_header is not None else plans[client]


def _client(rules: RuleSet | None, environ: "WSGIEnvironment") -> str | None:
    """Return the client's address; without `rules`, the peer's address.

    Returns None, too, if only the general path can read the address from the proxy's header.
    """
    peer = environ.get("REMOTE_ADDR") or None
    if rules is None or (name := rules.proxy_header) is None:
        return peer
    return rules.client_of(peer, only_wsgi_header(environ, name))
