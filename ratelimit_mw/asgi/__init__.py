"""Rate limiting middleware for ASGI apps: Starlette, FastAPI, Litestar, Quart and others."""

from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar, Final, Unpack

from ratelimit_mw.asgi.disconnect import ClientDisconnected, DisconnectWatcher, send_client_closed
from ratelimit_mw.asgi.messages import with_messages
from ratelimit_mw.asgi.send import (
    STATE_KEY,
    App,
    Message,
    Receive,
    Scope,
    Send,
    fail_startup,
    send_refusal,
    with_headers,
)
from ratelimit_mw.asgi.tracking import MIDDLEWARE_REGISTRY, track
from ratelimit_mw.checks.deployment import warn_of_authentication, warn_of_cors, warn_of_script_name
from ratelimit_mw.checks.endpoints import check_routes
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.runtime import in_event_loop
from ratelimit_mw.core.signatures import ADD_THE_CLASS, check_app
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.entrance import enter_asgi
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.runtime import Sleep, async_sleep
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.response import raw_headers
from ratelimit_mw.http.views import AsgiRequest, peer_of
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.options import Options

_NO_ASYNCIO: Final = (
    "the server runs the app with trio, and RateLimitMiddleware needs asyncio; run the server with its asyncio worker"
)
_KINDS: Final = ("http", "websocket")
_NOT_GIVEN: Final[Any] = object()  # a marker for an argument that is missing


class RateLimitMiddleware:
    """Limits how often a client may call `app`: `app.add_middleware(RateLimitMiddleware, limits="100/minute")`.

    `settings`: a `Settings` object or a mapping. Keyword arguments are the same settings and take precedence. The app
    finds the verdict in `scope["state"]["ratelimit"].verdict`, in Starlette `request.state.ratelimit.verdict`.

    Invalid settings raise `ConfigError`. Inside a running event loop, where Starlette builds its middleware, the error
    fails the server's lifespan startup instead, so that the server stops and shows the message.
    """

    request_type: ClassVar[type[AsgiRequest]] = AsgiRequest

    @check_arguments(Options)
    def __init__(
        self, app: App, settings: Settings | Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> None:
        self.app = app
        self._error: ConfigError | None = None
        self._rules: RuleSet | None = None  # None: every request takes the longer way
        self._routes_checked = False  # while false, requests take the longer way, which checks the routes
        try:
            check_app(app, "ASGI")
            self._gate = AsyncGate(Settings.of(settings, options))
            self._gate.warn_of_unused_slot_options()
            warn_of_authentication(app, self._gate.rule_set.keys, strict=self._gate.settings.strict)
            warn_of_script_name(app, self._gate.settings)
        except ConfigError as error:
            if not in_event_loop():
                raise
            self._fail(error)
        else:
            self._limited_types: tuple[str, ...] = _KINDS if self._gate.settings.enabled is not False else ()
            self._sync_gate = self._gate.sync_gate
            self._style = self._gate.settings.headers
            self._adds_headers = self._style != "none"
            self._may_hold = self._gate.may_hold
            self._tracks_all = False
            if MIDDLEWARE_REGISTRY.register(self):
                self.track_all()
            warn_of_cors(app, None)
            self._gate.rule_set.adapt_to_router(app)

    @property
    def settings(self) -> Settings:
        """The settings. Raises `ConfigError` if they are invalid."""
        if self._error is not None:
            raise self._error
        return self._gate.settings

    def _fail(self, error: ConfigError) -> None:
        """From now on, fail the lifespan startup and every request with this error."""
        self._error, self._limited_types = error, ()
        self._rules = None
        self._may_hold = self._tracks_all = False

    def track_all(self) -> None:
        """Track every response, because only routing shows whether an endpoint limit needs it."""
        self._rules, self._tracks_all = None, True

    def _finish_setup(self, scope: Scope) -> None:
        """Report limits on routes that are not enforced, then enable the short way.

        Runs once: at startup, or else at the first request.

        Some servers run no lifespan, and mounted apps have none. Raises `ConfigError` under trio, and for a finding
        that `strict` makes an error; every later request then fails with this error.
        """
        self._routes_checked = True
        if self._error is not None:
            return
        try:
            _check_asyncio()
            check_routes(scope.get("app") or self.app, self._gate.settings)
        except ConfigError as error:
            self._fail(error)
            raise
        if self._limited_types and not self._tracks_all and self._gate.has_short_way:
            self._rules = self._gate.rule_set

    async def __call__(self, scope: Scope, receive: Receive, send: Send = _NOT_GIVEN) -> None:
        """Admit or refuse one HTTP request or websocket; pass other scopes through."""
        way, verdict, client, rules = None, None, None, self._rules
        if rules is not None and scope["type"] == "http" and "user" not in scope and STATE_KEY not in scope:
            way, charges, client = enter_asgi(rules, scope)
            if way is not None:
                gate = self._sync_gate  # None if the store or a rule may need an await
                verdict = await self._gate.take(way, charges) if gate is None else gate.take(way, charges)
        if way is None or (verdict is not None and not verdict.allowed):
            await self._on_longer_way(verdict, client, scope, receive, send)
            return
        state = RateLimitState(verdict, self._gate, self._adds_headers, True)
        if self._style == "ietf":
            # with_headers() and _scope_with_state(), inlined: calling them would add 1/40 to the time that this class
            # takes per request. Default arguments are faster than closure cells. Annotations are quoted, so that they
            # are not evaluated for each request.
            def send_with_headers(
                message: "Message", send: "Send" = send, state: "RateLimitState" = state
            ) -> "Awaitable[None]":
                if message["type"] == "http.response.start" and (verdict := state.verdict) is not None:
                    message = {**message}  # a copy: an app may send the same message again
                    message["headers"] = raw_headers(verdict, message.get("headers", ()))
                return send(message)

            send = send_with_headers
        else:
            send = with_headers(state, self._style, send)
        try:
            scope["state"]["ratelimit"] = scope[STATE_KEY] = state
        except KeyError:  # the server made no `state`
            scope = {**scope}  # a copy that is then changed is made in two thirds of the time of a larger literal
            scope["state"] = {"ratelimit": state}
            scope[STATE_KEY] = state
        try:
            await self.app(scope, receive, send)
        finally:
            in_app, state.in_app = state.in_app, False  # app_returned(), inlined
            if in_app and state.extras is not None:
                state.settle_at_actual_cost()

    def _on_longer_way(
        self, verdict: Verdict | None, client: str | None, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None]:
        """Return the coroutine that decides the request, or passes another scope through.

        Raises `ConfigError` without `send`: then the user passed this object to `@app.middleware("http")` or the like,
        and Starlette calls it with `request` and `call_next`.
        """
        if send is _NOT_GIVEN:
            raise ConfigError(ADD_THE_CLASS, code="RL-047")
        if not self._routes_checked and scope["type"] in _KINDS:
            self._finish_setup(scope)
        # a verdict of the short way is a refusal, which is sent without a delay, so it needs no watcher
        if self._may_hold and verdict is None and scope["type"] == "http":
            return self._decide_with_watcher(scope, receive, send)
        return self._decide(verdict, client, scope, receive, send)

    async def _decide_with_watcher(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide an HTTP request that may be delayed. End it early if its client disconnects.

        A delay either paces an admitted request, or is the time that a request waits in a queue.
        """
        watcher = DisconnectWatcher(scope, receive)
        try:
            await self._decide(None, None, scope, watcher.receive, send, watcher.sleep)
        except ClientDisconnected:
            await send_client_closed(send)
        finally:
            watcher.end()

    async def _decide(
        self,
        verdict: Verdict | None,
        client: str | None,
        scope: Scope,
        receive: Receive,
        send: Send,
        sleep: Sleep = async_sleep,
    ) -> None:
        """Decide on the longer way. `verdict`, `client`: the short way's refusal, if any. `sleep`: delays the request.

        Sends the refusal if the middleware's own limits refuse a request or a handshake. Limits on endpoints refuse
        later, inside the app. Limits on messages act later, too, in `asgi/messages.py`.
        """
        if scope["type"] not in self._limited_types:
            await self._handle_other_scope(scope, receive, send)
            return
        peer_or_client = peer_of(scope) if verdict is None else client  # `admit` finds the client
        request = self.request_type(scope, peer_or_client, scope.get(STATE_KEY))
        if verdict is None:
            verdict = self._sync_gate.admit(request) if self._sync_gate else await self._gate.admit(request, (), sleep)
        state = request.outer
        if state is None:
            state = RateLimitState(verdict, self._gate, in_app=scope["type"] == "http")
        elif verdict is not None:
            state.record(verdict, self._gate)
        if verdict is not None and not verdict.allowed:
            await send_refusal(request, verdict, self._gate, receive, send)
            return
        app = self.app
        if request.on_end is not None or self._tracks_all:
            app, receive, send = track(request, state, app, receive, send)
        if scope["type"] == "http":
            if self._adds_headers and not state.headers_claimed:
                state.headers_claimed = True
                send = with_headers(state, self._style, send)
        elif request.messages is not None:
            receive, send = await with_messages(request, self._gate, state, receive, send)
        try:
            await app(_scope_with_state(scope, state), receive, send)
        finally:
            state.app_returned()

    async def _handle_other_scope(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._error is not None:
            await fail_startup(self._error, scope, receive, send)
        elif scope["type"] == "lifespan":
            warn_of_cors(None, scope.get("app"))
            try:
                self._finish_setup(scope)
            except ConfigError as error:
                await fail_startup(error, scope, receive, send)
                return
            await self.app(scope, receive, self._close_store_on_shutdown(send))
        else:
            if scope["type"] in _KINDS and STATE_KEY not in scope:  # `enabled = False` also turns endpoint limits off
                scope = _scope_with_state(scope, RateLimitState(None, self._gate))
            await self.app(scope, receive, send)

    def _close_store_on_shutdown(self, send: Send) -> Send:
        """Close the middleware's store before the server learns that the app has shut down."""

        async def send_after_close(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self._gate.close()
            await send(message)

        return send_after_close


def _check_asyncio() -> None:
    """Raise `ConfigError` under trio."""
    if not in_event_loop():
        raise ConfigError(_NO_ASYNCIO, code="RL-049")


def _scope_with_state(scope: Scope, state: RateLimitState) -> Scope:
    """Return the scope for the app, with this state. The state has no verdict if nothing limits the request."""
    if "state" not in scope:  # otherwise the server made one for this request
        scope = {**scope, "state": {}}
    scope["state"]["ratelimit"] = scope[STATE_KEY] = state
    return scope
