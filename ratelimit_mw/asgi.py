"""The middleware for ASGI apps: Starlette, FastAPI, Litestar, Quart and every other."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from inspect import isawaitable
from typing import Any, Unpack

from ratelimit_mw.advice import warn_of_cors
from ratelimit_mw.calls import name_of
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.gate import AsyncGate
from ratelimit_mw.notices import logger, warn_rarely
from ratelimit_mw.on_refused import answered
from ratelimit_mw.options import Headers, Options
from ratelimit_mw.request import Request, below, user_id
from ratelimit_mw.response import ABOUT_THE_BODY, NAMES, REASONS, HeaderList, Response, beside, headers
from ratelimit_mw.settings import Settings
from ratelimit_mw.verdict import Outcome, Verdict

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TRY_AGAIN_LATER = 1013  # websocket close code
_OUTCOME = "ratelimit_mw"  # key of the scope; the state's, too, may not be of this request alone, if a server errs
_FIELD_NAMES = {name: name.lower().encode("ascii") for name in NAMES}


class RateLimitMiddleware:
    """Limits how often a client may call `app`: `app.add_middleware(RateLimitMiddleware, limits="100/minute")`.

    `settings`: `Settings` or a mapping; keyword arguments are the same settings and go before it. The app finds the
    verdict in `scope["state"]["ratelimit"].verdict`, which is `request.state.ratelimit` in Starlette.

    Wrong settings raise `ConfigError`. Inside a running loop, where Starlette makes its middleware, the error is the
    answer to the server's lifespan start-up instead, so that the server stops with its message.
    """

    def __init__(
        self, app: App, settings: Settings | Mapping[str, Any] | None = None, /, **options: Unpack[Options]
    ) -> None:
        self.app = app
        self._error: ConfigError | None = None
        try:
            self._gate = AsyncGate(Settings.of(settings, options))
        except ConfigError as error:
            if not _inside_a_loop():
                raise
            self._error = error
            self._limited: tuple[str, ...] = ()
        else:
            self._limited = ("http", "websocket")
            self._immediate = self._gate.immediate
            self._style = self._gate.settings.headers
            warn_of_cors(app, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or refuse one request; everything that is neither HTTP nor a websocket goes straight through."""
        kind = scope["type"]
        if kind not in self._limited:
            await self._pass(scope, receive, send)
            return
        client = scope.get("client")
        request = _AsgiRequest(scope, client[0] if client else None, scope.get(_OUTCOME))
        verdict = self._immediate.admit(request) if self._immediate else await self._gate.admit(request)
        if verdict is None:
            await self.app(scope, receive, send)
        elif not verdict.allowed:
            await self._refuse(request, verdict, receive, send)
        else:
            if kind == "http" and self._style != "none":
                send = _with_headers(verdict, self._style, send)
            outcome = Outcome(verdict, request.outcome)
            if "state" in scope:  # which the server made for this request
                scope["state"]["ratelimit"] = scope[_OUTCOME] = outcome
            else:
                scope = {**scope, "state": {"ratelimit": outcome}, _OUTCOME: outcome}
            await self.app(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._error is not None:
            await _refuse_to_start(self._error, scope["type"], receive, send)
        elif scope["type"] == "lifespan":
            warn_of_cors(None, scope.get("app"))
            await self.app(scope, receive, self._closing(send))
        else:
            await self.app(scope, receive, send)

    async def _refuse(self, request: Request, verdict: Verdict, receive: Receive, send: Send) -> None:
        scope, own = request.raw, self._gate.refusal(verdict)
        answerer = self._gate.answerer
        if scope["type"] == "websocket":
            await receive()  # the handshake is answered only after websocket.connect
            if "websocket.http.response" not in (scope.get("extensions") or {}):
                await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": REASONS[own.status]})
                return
        elif answerer is not None and answerer.kind == "asgi":
            await answerer.call(scope, receive, _with_refusal(own, send))
            return
        if answerer is not None and answerer.kind == "plain":
            own = await _answered(answerer.call, request, verdict, own)
        prefix = "http" if scope["type"] == "http" else "websocket.http"
        fields = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in own.headers]
        body = b"" if scope.get("method") == "HEAD" else own.body
        await send({"type": f"{prefix}.response.start", "status": own.status, "headers": fields})
        await send({"type": f"{prefix}.response.body", "body": body})

    def _closing(self, send: Send) -> Send:
        """Close our store before the server hears that the app has shut down."""

        async def send_after_close(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self._gate.close()
            await send(message)

        return send_after_close


class _AsgiRequest(Request):
    __slots__ = ()

    @property
    def method(self) -> str:
        method: str = self.raw.get("method", "GET")
        return method.upper()

    @property
    def path(self) -> str:
        return below(self.raw.get("root_path", ""), self.raw["path"])

    @property
    def headers(self) -> Mapping[str, str]:
        found: dict[bytes, list[bytes]] = {}
        for name, value in self.raw["headers"]:
            found.setdefault(name.lower(), []).append(value)
        return {name.decode("latin-1"): b", ".join(values).decode("latin-1") for name, values in found.items()}

    def lines(self, name: str) -> Sequence[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for key, value in self.raw["headers"] if key.lower() == wanted]

    @property
    def user(self) -> str | None:
        user = self.raw.get("user")
        return None if user is None else user_id(user)


def _with_headers(verdict: Verdict, style: Headers, send: Send) -> Send:
    def send_with_headers(message: Message) -> Awaitable[None]:  # passes on the awaitable, without one of its own
        if message["type"] == "http.response.start":
            own = headers(verdict, style)
            if style == "ietf":  # lists, which stand beside whatever the app says
                fields = [(_FIELD_NAMES[name], value.encode()) for name, value in own]
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            else:
                message = _adding(own, message)
        return send(message)

    return send_with_headers


def _with_refusal(own: Response, send: Send) -> Send:
    """Add what a refusal says to the response of somebody else's app."""
    fields = [(name, value) for name, value in own.headers if name.lower() not in ABOUT_THE_BODY]

    def send_with_refusal(message: Message) -> Awaitable[None]:
        return send(_adding(fields, message) if message["type"] == "http.response.start" else message)

    return send_with_refusal


def _adding(own: HeaderList, message: Message) -> Message:
    theirs = list(message.get("headers", ()))
    names = {bytes(name).lower().decode("latin-1") for name, _ in theirs}
    return {**message, "headers": theirs + [(_FIELD_NAMES[name], value.encode()) for name, value in beside(own, names)]}


async def _answered(call: Any, request: Request, verdict: Verdict, own: Response) -> Response:
    try:
        answer = call(request, verdict)
        return answered(call, await answer if isawaitable(answer) else answer, own)
    except Exception as error:  # noqa: BLE001  # a refusal is answered, whatever the callable does
        warn_rarely(f"on_refused {name_of(call)}", "raised, our own answer is sent", error=error)
        return own


async def _refuse_to_start(error: ConfigError, kind: str, receive: Receive, send: Send) -> None:
    if kind != "lifespan":
        raise error
    await receive()
    logger.error("%s", error)
    await send({"type": "lifespan.startup.failed", "message": f"ratelimit_mw: {error}"})


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
