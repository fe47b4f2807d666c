"""Rate limiting middleware for ASGI apps: Starlette, FastAPI, Litestar, Quart and others."""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Unpack

from ratelimit_mw.asgi.checks import MIDDLEWARE_REGISTRY, warn_of_unenforced
from ratelimit_mw.asgi.disconnect import ClientDisconnected, DisconnectWatcher, send_client_closed
from ratelimit_mw.asgi.messages import with_messages
from ratelimit_mw.asgi.send import (
    STATE_KEY,
    App,
    Message,
    Receive,
    Scope,
    Send,
    refuse,
    refuse_to_start,
    with_headers,
)
from ratelimit_mw.asgi.tracking import track
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.signatures import check_app
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.acquire import Sleep, async_sleep
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.runtime import in_event_loop
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.response import raw_headers
from ratelimit_mw.http.views import AsgiRequest
from ratelimit_mw.rules.startup_checks import warn_of_authentication, warn_of_cors
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.options import Options

_NO_ASYNCIO: Final = (
    "the server runs the app with trio, and RateLimitMiddleware needs asyncio; run the server with its asyncio worker"
)
_KINDS: Final = ("http", "websocket")


class RateLimitMiddleware:
    """Limits how often a client may call `app`: `app.add_middleware(RateLimitMiddleware, limits="100/minute")`.

    `settings`: a `Settings` object or a mapping. Keyword arguments are the same settings and take precedence. The app
    finds the verdict in `scope["state"]["ratelimit"].verdict`, in Starlette `request.state.ratelimit.verdict`.

    Invalid settings raise `ConfigError`. Inside a running event loop, where Starlette builds its middleware, the error
    fails the server's lifespan startup instead, so that the server stops and shows the message.
    """

    @check_arguments(Options)
    def __init__(
        self, app: App, settings: Settings | Mapping[str, Any] | None = None, **options: Unpack[Options]
    ) -> None:
        self.app = app
        self._error: ConfigError | None = None
        try:
            check_app(app, "ASGI")
            self._gate = AsyncGate(Settings.of(settings, options))
            self._gate.warn_of_unused_slot_options()
            warn_of_authentication(app, self._gate.keys, strict=self._gate.settings.strict)
        except ConfigError as error:
            if not in_event_loop():
                raise
            self._fail(error)
        else:
            self._limited_types: tuple[str, ...] = _KINDS if self._gate.settings.enabled is not False else ()
            self._sync_gate = self._gate.sync_gate
            self._style = self._gate.settings.headers
            self._adds_headers = self._style != "none"
            self._may_delay = self._gate.may_delay
            self._use_fast_path = bool(self._limited_types) and self._style == "ietf"
            self._tracks_all = False
            if MIDDLEWARE_REGISTRY.register(self):
                self.track_all()
            warn_of_cors(app, None)
            self._gate.adapt_to_router(app)

    def _fail(self, error: ConfigError) -> None:
        """From now on, fail the lifespan startup and every request with this error."""
        self._error, self._limited_types = error, ()
        self._use_fast_path = self._may_delay = self._tracks_all = False

    def track_all(self) -> None:
        """Track every response: only routing shows whether an endpoint limit needs it."""
        self._use_fast_path, self._tracks_all = False, True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or refuse one HTTP request or websocket; pass other scopes through."""
        verdict = None
        if self._use_fast_path and scope["type"] == "http" and "user" not in scope and STATE_KEY not in scope:
            client, gate = scope.get("client"), self._sync_gate
            address = client[0] if client else None
            if gate is not None:
                verdict = gate.admit_by_address(address, scope.get("method"))
            else:
                pending = self._gate.admit_by_address(address, scope.get("method"))
                verdict = None if pending is None else await pending
        if verdict is None or not verdict.allowed:
            if self._may_delay and scope["type"] == "http":
                await self._decide_with_delay(scope, receive, send)
            else:
                await self._decide(verdict, scope, receive, send)
            return
        state = RateLimitState(verdict, self._gate, True)

        # with_headers() and _scope_with_state(), inlined: calls would add 1/40 to the time of this class per request.
        # Default arguments are faster than closure cells; quoted annotations are not evaluated for each request.
        def send_with_headers(
            message: "Message", send: "Send" = send, state: "RateLimitState" = state
        ) -> "Awaitable[None]":
            if message["type"] == "http.response.start" and state.verdict is not None:
                message = {**message}  # a copy: an app may send the same message again
                message["headers"] = raw_headers(state.verdict, message.get("headers", ()))
            return send(message)

        if "state" in scope:
            scope["state"]["ratelimit"] = scope[STATE_KEY] = state
        else:
            scope = {**scope, "state": {"ratelimit": state}, STATE_KEY: state}
        await self.app(scope, receive, send_with_headers)

    async def _decide_with_delay(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide under rules with a `max_delay` or a queue, and end the request early if its client disconnects.

        Such rules have no fast path.
        """
        watcher = DisconnectWatcher(scope, receive)
        try:
            await self._decide(None, scope, watcher.receive, send, watcher.sleep)
        except ClientDisconnected:
            await send_client_closed(send)
        finally:
            watcher.end()

    async def _decide(
        self, verdict: Verdict | None, scope: Scope, receive: Receive, send: Send, sleep: Sleep = async_sleep
    ) -> None:
        """Decide on the general path. `verdict`: the fast path's refusal, if any. `sleep`: see `AsyncGate.admit`.

        Every refusal of a request or handshake by the middleware is sent here; `messages` closes open websockets.
        """
        if scope["type"] not in self._limited_types:
            await self._handle_other_scope(scope, receive, send)
            return
        client = scope.get("client")
        request = AsgiRequest(scope, client[0] if client else None, scope.get(STATE_KEY))
        if verdict is None:
            verdict = self._sync_gate.admit(request) if self._sync_gate else await self._gate.admit(request, (), sleep)
        state = request.state
        if state is None:
            state = RateLimitState(verdict, self._gate)
        elif verdict is not None:
            state.record(verdict, self._gate)
        if verdict is not None and not verdict.allowed:
            await refuse(request, verdict, self._gate, receive, send)
            return
        app = self.app
        if request.on_end is not None or self._tracks_all:
            app, receive, send = track(request, state, app, receive, send)
        if scope["type"] == "http":
            if self._adds_headers and not state.headers_shown:
                state.headers_shown = True
                send = with_headers(state, self._style, send)
        elif request.messages is not None:
            receive, send = await with_messages(request, self._gate, state, receive, send)
        await app(_scope_with_state(scope, state), receive, send)

    async def _handle_other_scope(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._error is not None:
            await refuse_to_start(self._error, scope, receive, send)
        elif scope["type"] == "lifespan":
            warn_of_cors(None, scope.get("app"))
            try:
                _check_asyncio()
                warn_of_unenforced(scope.get("app"), strict=self._gate.settings.strict)
            except ConfigError as error:
                self._fail(error)
                await refuse_to_start(error, scope, receive, send)
                return
            await self.app(scope, receive, self._close_store_on_shutdown(send))
        else:
            if scope["type"] in _KINDS and STATE_KEY not in scope:  # `enabled` is off for endpoint limits too
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
        raise ConfigError(_NO_ASYNCIO)


def _scope_with_state(scope: Scope, state: RateLimitState) -> Scope:
    """Return the scope for the app, with this state, which has no verdict if nothing limits the request."""
    if "state" not in scope:  # otherwise the server made one for this request
        return {**scope, "state": {"ratelimit": state}, STATE_KEY: state}
    scope["state"]["ratelimit"] = scope[STATE_KEY] = state
    return scope
