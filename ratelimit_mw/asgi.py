"""The middleware for ASGI apps: Starlette, FastAPI, Litestar, Quart and every other."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ratelimit_mw.advice import warn_of_cors
from ratelimit_mw.asgi_send import App, Message, Receive, Scope, Send, refuse, refuse_to_start, with_headers
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.gate import AsyncGate
from ratelimit_mw.options import Options
from ratelimit_mw.request import Request, below, user_id
from ratelimit_mw.settings import Settings
from ratelimit_mw.verdict import Outcome

_OUTCOME = "ratelimit_mw"  # key of the scope; the state's, too, may not be of this request alone, if a server errs


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
            await refuse(request, verdict, self._gate, receive, send)
        else:
            if kind == "http" and self._style != "none":
                send = with_headers(verdict, self._style, send)
            outcome = Outcome(verdict, request.outcome)
            if "state" in scope:  # which the server made for this request
                scope["state"]["ratelimit"] = scope[_OUTCOME] = outcome
            else:
                scope = {**scope, "state": {"ratelimit": outcome}, _OUTCOME: outcome}
            await self.app(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._error is not None:
            await refuse_to_start(self._error, scope["type"], receive, send)
        elif scope["type"] == "lifespan":
            warn_of_cors(None, scope.get("app"))
            await self.app(scope, receive, self._closing(send))
        else:
            await self.app(scope, receive, send)

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

    def header_lines(self, name: str) -> Sequence[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for key, value in self.raw["headers"] if key.lower() == wanted]

    @property
    def user(self) -> str | None:
        user = self.raw.get("user")
        return None if user is None else user_id(user)


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
