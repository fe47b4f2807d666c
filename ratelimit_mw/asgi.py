"""The middleware for ASGI apps: Starlette, FastAPI, Litestar, Quart and every other."""

from collections.abc import Awaitable, Mapping
from typing import Any, Final, Unpack

from ratelimit_mw.advice import warn_of_authentication, warn_of_cors
from ratelimit_mw.callables import check_app
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.faces.asgi_follow import watched
from ratelimit_mw.faces.asgi_messages import with_messages
from ratelimit_mw.faces.asgi_send import (
    OUTCOME,
    App,
    Message,
    Receive,
    Scope,
    Send,
    refuse,
    refuse_to_start,
    with_headers,
)
from ratelimit_mw.faces.asgi_wait import ClientGone, Waiting, close
from ratelimit_mw.faces.inside import INSIDE
from ratelimit_mw.faces.loops import inside_a_loop
from ratelimit_mw.faces.unheeded import warn_of_unheeded
from ratelimit_mw.gate import AsyncGate
from ratelimit_mw.options import Options
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.response import raw_headers
from ratelimit_mw.settings import Settings
from ratelimit_mw.verdict import Verdict
from ratelimit_mw.views import AsgiRequest
from ratelimit_mw.waiting import Hold, asleep
from ratelimit_mw.words import answered

_KINDS: Final = ("http", "websocket")


class RateLimitMiddleware:
    """Limits how often a client may call `app`: `app.add_middleware(RateLimitMiddleware, limits="100/minute")`.

    `settings`: `Settings` or a mapping; keyword arguments are the same settings and go before it. The app finds the
    verdict in `scope["state"]["ratelimit"].verdict`, which is `request.state.ratelimit` in Starlette.

    Wrong settings raise `ConfigError`. Inside a running loop, where Starlette makes its middleware, the error is the
    answer to the server's lifespan start-up instead, so that the server stops with its message.
    """

    @answered(Options)
    def __init__(
        self, app: App, settings: Settings | Mapping[str, Any] | None = None, /, **options: Unpack[Options]
    ) -> None:
        self.app = app
        self._error: ConfigError | None = None
        try:
            check_app(app, "ASGI")
            self._gate = AsyncGate(Settings.of(settings, options))
            self._gate.warn_of_no_slots()
            warn_of_authentication(app, self._gate.keys, strict=self._gate.settings.strict)
        except ConfigError as error:
            if not inside_a_loop():
                raise
            self._fail(error)
        else:
            self._limited: tuple[str, ...] = _KINDS if self._gate.settings.enabled is not False else ()
            self._immediate = self._gate.immediate
            self._style = self._gate.settings.headers
            self._shows = self._style != "none"
            self._holds = self._gate.may_hold
            self._short = bool(self._limited) and self._style == "ietf"
            self._follows_all = False
            if INSIDE.enrol(self):
                self.follow_all()
            warn_of_cors(app, None)
            self._gate.look_at(app)

    def _fail(self, error: ConfigError) -> None:
        """Answer everything with this error."""
        self._error, self._limited = error, ()
        self._short = self._holds = self._follows_all = False

    def follow_all(self) -> None:
        """Follow the response to each request: which of them a limit on an endpoint asks for is not known before."""
        self._short, self._follows_all = False, True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or refuse one request; everything that is neither HTTP nor a websocket goes straight through."""
        verdict = None
        if self._short and scope["type"] == "http" and "user" not in scope and OUTCOME not in scope:
            client, gate = scope.get("client"), self._immediate
            address = client[0] if client else None
            if gate is not None:
                verdict = gate.admit_client(address, scope.get("method"))
            else:
                to_come = self._gate.admit_client(address, scope.get("method"))
                verdict = None if to_come is None else await to_come
        if verdict is None or not verdict.allowed:
            if self._holds and scope["type"] == "http":
                await self._decide_in_turn(scope, receive, send)
            else:
                await self._decide(verdict, scope, receive, send)
            return
        outcome = Outcome(verdict, self._gate, True)

        # As in `with_headers` and `_with_outcome`, whose two calls are a fortieth of all that is added to a request.
        # Defaults cost less than cells, and types in quotes nothing: the others are looked up for each request.
        def send_with_headers(
            message: "Message", send: "Send" = send, outcome: "Outcome" = outcome
        ) -> "Awaitable[None]":
            if message["type"] == "http.response.start" and outcome.verdict is not None:
                message = {**message}  # an app may send the same one again
                message["headers"] = raw_headers(outcome.verdict, message.get("headers", ()))
            return send(message)

        if "state" in scope:
            scope["state"]["ratelimit"] = scope[OUTCOME] = outcome
        else:
            scope = {**scope, "state": {"ratelimit": outcome}, OUTCOME: outcome}
        await self.app(scope, receive, send_with_headers)

    async def _decide_in_turn(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Where the request may have to wait, whose client may not do so for so long."""
        waiting = Waiting(scope, receive)
        try:
            await self._decide(None, scope, waiting.receive, send, waiting.hold)
        except ClientGone:
            await close(send)
        finally:
            waiting.end()

    async def _decide(
        self, verdict: Verdict | None, scope: Scope, receive: Receive, send: Send, hold: Hold = asleep
    ) -> None:
        """In every case. `verdict`: if it is known already. `hold`: see `AsyncGate.admit`."""
        if scope["type"] not in self._limited:
            await self._pass(scope, receive, send)
            return
        client = scope.get("client")
        request = AsgiRequest(scope, client[0] if client else None, scope.get(OUTCOME))
        if verdict is None:
            verdict = self._immediate.admit(request) if self._immediate else await self._gate.admit(request, (), hold)
        outcome = request.outcome
        if outcome is None:
            outcome = Outcome(verdict, self._gate)
        elif verdict is not None:
            outcome.add(verdict, self._gate)
        if verdict is not None and not verdict.allowed:
            await refuse(request, verdict, self._gate, receive, send)
            return
        app = self.app
        if request.followers is not None or self._follows_all:
            app, receive, send = watched(request, outcome, app, receive, send)
        if scope["type"] == "http":
            if self._shows and not outcome.shown:
                outcome.shown = True
                send = with_headers(outcome, self._style, send)
        elif request.messages is not None:
            receive, send = await with_messages(request, self._gate, outcome, receive, send)
        found = verdict is not None or (request.messages is not None and scope["type"] != "http")
        await app(_with_outcome(scope, outcome, found=found), receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._error is not None:
            await refuse_to_start(self._error, scope, receive, send)
        elif scope["type"] == "lifespan":
            warn_of_cors(None, scope.get("app"))
            try:
                warn_of_unheeded(scope.get("app"), strict=self._gate.settings.strict)
            except ConfigError as error:
                self._fail(error)
                await refuse_to_start(error, scope, receive, send)
                return
            await self.app(scope, receive, self._closing(send))
        else:
            if scope["type"] in _KINDS and OUTCOME not in scope:
                scope[OUTCOME] = Outcome(None, self._gate)  # switched off here, so are the limits on endpoints
            await self.app(scope, receive, send)

    def _closing(self, send: Send) -> Send:
        """Close our store before the server hears that the app has shut down."""

        async def send_after_close(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self._gate.close()
            await send(message)

        return send_after_close


def _with_outcome(scope: Scope, outcome: Outcome, *, found: bool) -> Scope:
    """The scope, in which the app finds what is known of its request, if anything was `found`."""
    if not found:
        scope[OUTCOME] = outcome  # so that limits on endpoints find the store, and have their headers shown
        return scope
    if "state" not in scope:  # else the server made it for this request
        return {**scope, "state": {"ratelimit": outcome}, OUTCOME: outcome}
    scope["state"]["ratelimit"] = scope[OUTCOME] = outcome
    return scope
