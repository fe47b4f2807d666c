"""Rate limiting middleware for ASGI apps: Starlette, FastAPI, Litestar, Quart and others."""

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar, Final, Unpack

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.asgi.disconnect import ClientDisconnected, DisconnectWatcher, send_client_closed
from ratelimit_mw.asgi.messages import with_messages
from ratelimit_mw.asgi.send import (
    STATE_KEY,
    App,
    Message,
    Receive,
    Scope,
    Send,
    adds_in,
    close_message,
    fail_startup,
    send_refusal,
    send_response,
    with_headers,
)
from ratelimit_mw.asgi.tracking import MIDDLEWARE_REGISTRY, track
from ratelimit_mw.checks.deployment import warn_of_authentication, warn_of_cors, warn_of_script_name
from ratelimit_mw.checks.endpoints import check_routes
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.runtime import in_event_loop
from ratelimit_mw.core.signatures import ADD_THE_CLASS, check_app
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RateLimited, Verdict, refusal_in
from ratelimit_mw.engine.entrance import enter_asgi
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.overload import OverloadGuard
from ratelimit_mw.engine.reload import Reloader, reloader
from ratelimit_mw.engine.runtime import Sleep, async_sleep
from ratelimit_mw.engine.shedding import shed_way
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.page_paths import page_paths
from ratelimit_mw.http.response import HeaderStyle
from ratelimit_mw.http.views import AsgiRequest, peer_of
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings, SettingsValue
from ratelimit_mw.settings.options import Options

_NO_ASYNCIO: Final = (
    "the server runs the app with trio, and RateLimitMiddleware needs asyncio; run the server with its asyncio worker"
)
_KINDS: Final = ("http", "websocket")
_NOT_GIVEN: Final[Any] = object()  # a marker for an argument that is missing
Refused = tuple[Verdict, str | None]  # a refusal of the short way, and the client's address


class Setup(Struct, frozen=True, eq=False):
    """What the settings in force make of the middleware. A reload replaces it as a whole.

    `gate`: None if the settings are invalid. `rules`: those of the short way; None if every request takes the longer
    one. `limited_types`: the types of scopes that are limited. `add`: see `adds_in`. `guard`: that of the gate.
    """

    gate: Any = None
    rules: RuleSet | None = None
    sync_gate: Gate | None = None  # None if the store or a rule may need an await
    limited_types: tuple[str, ...] = ()
    style: HeaderStyle = "none"
    adds_headers: bool = False
    may_hold: bool = False
    add: Any = None
    guard: OverloadGuard | None = None


class RateLimitMiddleware:
    """Limits how often a client may call `app`: `app.add_middleware(RateLimitMiddleware, limits="100/minute")`.

    `settings`: a `Settings` object or a mapping, or a callable that returns one. Keyword arguments are the same
    settings and take precedence. The app finds the verdict in `scope["state"]["ratelimit"].verdict`, in Starlette
    `request.state.ratelimit.verdict`.

    Invalid settings raise `ConfigError`. Inside a running event loop, where Starlette builds its middleware, the error
    fails the server's lifespan startup instead, so that the server stops and shows the message.
    """

    request_type: ClassVar[type[AsgiRequest]] = AsgiRequest

    @check_arguments(Options)
    def __init__(self, app: App, settings: SettingsValue = None, **options: Unpack[Options]) -> None:
        self.app = app
        self._error: ConfigError | None = None
        self._checked_app: Any = None  # the app whose routes were checked; before, requests take the longer way
        self._tracks_all = False
        self._reloader: Reloader[Setup] | None = None
        try:
            check_app(app, "ASGI")
            found = Settings.of(settings, options)
            self._setup = self._build(found)
            self._reloader = reloader(found, self._rebuild, self._use)
        except ConfigError as error:
            if not in_event_loop():
                raise
            self._fail(error)
        else:
            if MIDDLEWARE_REGISTRY.register(self):
                self.track_all()
            warn_of_cors(app, None, found.headers)

    def _build(self, settings: Settings, before: AsyncGate | None = None) -> Setup:
        """Return what decides under these settings. `before`: the gate that it replaces in a reload."""
        settings = settings.exempting(page_paths(self._checked_app or self.app))
        gate = AsyncGate(settings, before=before)
        gate.warn_of_unused_slot_options()
        warn_of_authentication(self.app, gate.rule_set.keys, strict=settings.strict)
        warn_of_script_name(self.app, settings)
        gate.rule_set.adapt_to_router(self.app)
        types, style = _KINDS if settings.enabled is not False else (), settings.headers
        adds = style != "none"
        return Setup(gate, None, gate.sync_gate, types, style, adds, gate.may_hold, adds_in(style), gate.guard)

    def _rebuild(self, settings: Settings) -> Setup:
        """Return what decides after a reload."""
        check_routes(self._checked_app, settings)
        return self._with_short_way(self._build(settings, self._gate))

    def _use(self, setup: Setup) -> None:
        """Decide the requests that begin from now on by this."""
        self._setup = setup
        if self._tracks_all:  # since `setup` was made
            self.track_all()

    def _with_short_way(self, setup: Setup) -> Setup:
        """Return `setup`, which takes the short way if it can. Only once the routes were checked."""
        takes_short_way = setup.limited_types and not self._tracks_all and setup.gate.has_short_way
        return replace(setup, rules=setup.gate.rule_set) if takes_short_way else setup

    @property
    def settings(self) -> Settings:
        """The settings. Raises `ConfigError` if they are invalid."""
        if self._error is not None:
            raise self._error
        return self._gate.settings

    @property
    def _gate(self) -> AsyncGate:
        gate: AsyncGate = self._setup.gate
        return gate

    def _fail(self, error: ConfigError) -> None:
        """From now on, fail the lifespan startup and every request with this error."""
        self._error, self._setup, self._tracks_all = error, Setup(), False

    def track_all(self) -> None:
        """Track every response, because only routing shows whether an endpoint limit needs it."""
        self._tracks_all = True
        self._setup = replace(self._setup, rules=None)

    def _finish_setup(self, scope: Scope) -> None:
        """Report limits on routes that are not enforced, then enable the short way and reloads.

        Runs at startup, or else at the first request.

        Some servers run no lifespan, and mounted apps have none. Raises `ConfigError` under trio, and for a finding
        that `strict` makes an error; every later request then fails with this error.
        """
        self._checked_app = scope.get("app") or self.app
        if self._error is not None:
            return
        try:
            _check_asyncio()
            self._gate.runtime.loop = asyncio.get_running_loop()  # for charges in the threads of sync endpoints
            settings = self._gate.settings
            check_routes(self._checked_app, settings)
            if settings.exempting(page_paths(self._checked_app)) is not settings:  # mounted since this was made
                self._use(self._build(settings, self._gate))
        except ConfigError as error:
            self._fail(error)
            raise
        self._setup = self._with_short_way(self._setup)
        if self._reloader is not None:
            self._reloader.start()

    async def __call__(  # noqa: C901  # each part of its own would be a call more for each request
        self, scope: Scope, receive: Receive, send: Send = _NOT_GIVEN
    ) -> None:
        """Admit or refuse one HTTP request or websocket; pass other scopes through."""
        setup = self._setup  # once: a reload may replace it
        way = verdict = client = at_work = None  # `at_work`: the guard, and the key of the request there
        rules, guard = setup.rules, setup.guard
        if rules is not None and scope["type"] == "http" and "user" not in scope and STATE_KEY not in scope:
            way, charges, client = enter_asgi(rules, scope)
            if way is not None:
                if guard is not None:
                    at_work = guard, id(scope)
                    if way.share is not None and not guard.enter(way.share, at_work[1]):
                        way, charges = shed_way(way.rule, way.match.route), ()
                gate = setup.sync_gate
                verdict = await setup.gate.take(way, charges, scope) if gate is None else gate.take(way, charges, scope)
        if way is None or (verdict is not None and not verdict.allowed):
            refused = None if verdict is None else (verdict, client)
            await self._on_longer_way(setup, refused, scope, receive, send)
            return
        state = RateLimitState(verdict, setup.gate, setup.adds_headers, True)

        # with_headers() and _scope_with_state(), inlined: calling them would add 1/40 to the time that this class takes
        # per request. Default arguments are faster than closure cells. Annotations are quoted, so that they are not
        # evaluated for each request.
        def send_with_headers(
            message: "Message",
            send: "Send" = send,
            state: "RateLimitState" = state,
            add: "Any" = setup.add,
            at_work: "tuple[OverloadGuard, int] | None" = at_work,
        ) -> "Awaitable[None]":
            if message["type"] == "http.response.start":
                if at_work is not None:
                    at_work[0].answered(at_work[1])
                if (verdict := state.verdict) is not None:
                    message = {**message}  # a copy: an app may send the same message again
                    message["headers"] = add(verdict, message)
            return send(message)

        send = send_with_headers
        try:
            scope["state"]["ratelimit"] = scope[STATE_KEY] = state
        except KeyError:  # the server made no `state`
            # A copy that is then changed is made in two thirds of the time of a larger literal. The key in `at_work` is
            # the `id` of the other one, which has to live as long.
            _other, scope = scope, {**scope}
            scope["state"] = {"ratelimit": state}
            scope[STATE_KEY] = state
        app = self.app  # a call of an attribute would take longer
        try:
            await app(scope, receive, send)
        except (RateLimited, ExceptionGroup) as error:
            await self._refuse(refusal_in(error), setup, state, scope, receive, send)
        finally:
            in_app, state.in_app = state.in_app, False  # app_returned(), inlined
            if in_app and state.extras is not None:
                state.settle_at_actual_cost()
            if at_work is not None and at_work[1] in at_work[0].at_work:
                at_work[0].left(at_work[1])

    def _on_longer_way(
        self, setup: Setup, refused: Refused | None, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None]:
        """Return the coroutine that decides the request, or passes another scope through.

        Raises `ConfigError` without `send`: then the user passed this object to `@app.middleware("http")` or the like,
        and Starlette calls it with `request` and `call_next`.
        """
        if send is _NOT_GIVEN:
            raise ConfigError(ADD_THE_CLASS, code="RL-047")
        if self._checked_app is None and scope["type"] in _KINDS:
            self._finish_setup(scope)
        # a refusal of the short way is sent without a delay, so it needs no watcher
        if setup.may_hold and refused is None and scope["type"] == "http":
            return self._decide_with_watcher(setup, scope, receive, send)
        return self._decide(setup, refused, scope, receive, send)

    async def _decide_with_watcher(self, setup: Setup, scope: Scope, receive: Receive, send: Send) -> None:
        """Decide an HTTP request that may be delayed. End it early if its client disconnects.

        A delay either paces an admitted request, or is the time that a request waits in a queue.
        """
        watcher = DisconnectWatcher(scope, receive)
        try:
            await self._decide(setup, None, scope, watcher.receive, send, watcher.sleep)
        except ClientDisconnected:
            await send_client_closed(send)
        finally:
            watcher.end()

    async def _decide(
        self,
        setup: Setup,
        refused: Refused | None,
        scope: Scope,
        receive: Receive,
        send: Send,
        sleep: Sleep = async_sleep,
    ) -> None:
        """Decide on the longer way. `refused`: the short way's refusal, if any. `sleep`: delays the request.

        Sends the refusal if the middleware's own limits refuse a request or a handshake. Limits on endpoints refuse
        later, inside the app. Limits on messages act later, too, in `asgi/messages.py`.
        """
        if scope["type"] not in setup.limited_types:
            await self._handle_other_scope(scope, receive, send)
            return
        gate = setup.gate
        verdict, client = refused or (None, peer_of(scope))  # `admit` finds the client from the peer
        request = self.request_type(scope, client, scope.get(STATE_KEY))
        if verdict is None:
            verdict = setup.sync_gate.admit(request) if setup.sync_gate else await gate.admit(request, (), sleep)
        if request.answer is not None:
            await send_response(request.answer, scope, send)
            return
        state = _recorded(request, verdict, gate)
        if verdict is not None and not verdict.allowed:
            await send_refusal(request, verdict, gate, receive, send)
            return
        app = self.app
        if request.on_end is not None or self._tracks_all:
            app, receive, send = track(request, state, app, receive, send)
        if scope["type"] == "http":
            if not state.headers_claimed:
                state.headers_claimed = setup.adds_headers
                send = with_headers(state, setup.add, send)
        elif request.messages is not None:
            receive, send = await with_messages(request, gate, state, receive, send)
        try:
            await app(_scope_with_state(scope, state), receive, send)
        except (RateLimited, ExceptionGroup) as error:
            await self._refuse(refusal_in(error), setup, state, scope, receive, send)
        finally:
            state.app_returned()

    async def _refuse(
        self, error: RateLimited, setup: Setup, state: RateLimitState, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the refusal of a charge of the app. If the response has begun, the server or this raises an error."""
        tracker = state.tracker
        if tracker is not None and tracker.response.status is not None:
            raise error
        verdict = state.refusal_of(error, setup.gate)
        if scope["type"] == "websocket":  # the app may have accepted it
            status = setup.gate.default_refusal(AsgiRequest(scope, None, state), verdict).status
            await send(close_message(status))
            return
        request = self.request_type(scope, peer_of(scope), state)
        setup.gate.rule_set.find_client(request)
        await send_refusal(request, verdict, setup.gate, receive, send)

    async def _handle_other_scope(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._error is not None:
            await fail_startup(self._error, scope, receive, send)
        elif scope["type"] == "lifespan":
            warn_of_cors(None, scope.get("app"), self._setup.style)
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
                if self._reloader is not None:
                    self._reloader.stop()
                await self._gate.close()
            await send(message)

        return send_after_close


def _check_asyncio() -> None:
    """Raise `ConfigError` under trio."""
    if not in_event_loop():
        raise ConfigError(_NO_ASYNCIO, code="RL-049")


def _recorded(request: AsgiRequest, verdict: Verdict | None, gate: AsyncGate) -> RateLimitState:
    """Return the state of a request with this verdict."""
    state: RateLimitState | None = request.outer
    if state is None:
        return RateLimitState(verdict, gate, in_app=request.raw["type"] == "http")
    if verdict is not None:
        state.record(verdict, gate)
    return state


def _scope_with_state(scope: Scope, state: RateLimitState) -> Scope:
    """Return the scope for the app, with this state. The state has no verdict if nothing limits the request."""
    if "state" not in scope:  # otherwise the server made one for this request
        scope = {**scope, "state": {}}
    scope["state"]["ratelimit"] = scope[STATE_KEY] = state
    return scope
