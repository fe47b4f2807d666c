"""Limiters of a few lines: what a limit costs at least in each framework. They check nothing and have no options."""

from __future__ import annotations  # else those of functions inside functions are evaluated for each request

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.lab import package
from benchmarks.ours.asgi import App, Message, Receive, Scope, Send

_SECOND: Final = 10**9  # nanoseconds
_SCRIPT: Final = Path(__file__).with_name("floor.lua")
_IPV4: Final = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)")
Fields = Iterable[tuple[bytes, bytes]]


class Gcra:
    """The least state: one number per key."""

    def __init__(self, quota: int, seconds: int) -> None:
        self._window = seconds * _SECOND
        self._unit = max(1, self._window // quota)
        self._drained: dict[str, int] = {}
        self.policy = f'"default";q={quota};w={seconds}'.encode()
        self.form = b'"default";r=%d;t=%d'

    def take(self, key: str) -> tuple[int, int] | None:
        """Return the units left and the seconds to the next one, or None if no unit is left."""
        now = time.monotonic_ns()
        drained = self._drained.get(key, 0)
        drained = (drained if drained > now else now) + self._unit
        left = self._window - (drained - now)
        if left < 0:
            return None
        self._drained[key] = drained
        return left // self._unit, (self._unit - left % self._unit + 999_999_999) // 1_000_000_000


def _send_with(send: Send, fields: Fields) -> Send:
    def send_with_headers(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *fields]}
        return send(message)

    return send_with_headers


async def _refuse(send: Send) -> None:
    await send({"type": "http.response.start", "status": 429, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Asgi:
    """Middleware with some limits per address."""

    def __init__(self, app: App, limits: Sequence[Gcra]) -> None:
        self._app, self._limits = app, limits
        self._policy = (b"ratelimit-policy", b", ".join(limit.policy for limit in limits))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        key, limits = scope["client"][0], self._limits
        if len(limits) == 1:
            if (taken := limits[0].take(key)) is None:
                await _refuse(send)
                return
            value = limits[0].form % taken
        else:
            parts = []
            for limit in limits:
                if (taken := limit.take(key)) is None:
                    await _refuse(send)
                    return
                parts.append(limit.form % taken)
            value = b", ".join(parts)
        await self._app(scope, receive, _send_with(send, (self._policy, (b"ratelimit", value))))


class Proxied:
    """Middleware with a limit per path, which trusts one proxy."""

    def __init__(self, app: App, rules: Mapping[tuple[str, int], Gcra], default: Gcra) -> None:
        self._app, self._rules, self._default = app, rules, default
        self._proxies = {"10.0.0.1": True}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        segments = scope["path"].split("/")
        limit = self._rules.get((segments[1], len(segments)), self._default)
        key = scope["client"][0]
        if self._proxies.get(key):
            for name, value in scope["headers"]:
                if name == b"x-forwarded-for":
                    text = value.decode("latin-1").rpartition(",")[2].strip()
                    if _IPV4.fullmatch(text):
                        key = text
        if (taken := limit.take(key)) is None:
            await _refuse(send)
            return
        fields = ((b"ratelimit-policy", limit.policy), (b"ratelimit", limit.form % taken))
        await self._app(scope, receive, _send_with(send, fields))


class Redis:
    """Middleware with some limits per address in Redis: one connection, which writes all commands of a turn at once."""

    def __init__(self, app: App, host: str, port: int, limits: int) -> None:
        self._app, self._host, self._port, self._limits = app, host, port, limits
        self._policy = (b"ratelimit-policy", b", ".join([b'"default";q=10000000;w=3600'] * limits))
        self._connected = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if not self._connected:
            await self._connect()
        key = scope["client"][0]
        keys = [f"floor:{key}:{number}" for number in range(self._limits)]
        reply = await self._ask(("EVALSHA", self._sha, str(self._limits), *keys, "360", "3600000000"))
        if reply[0] == 0:
            await _refuse(send)
            return
        value = b", ".join([b'"default";r=%d;t=%d' % ((3600000000 - used) // 360, 1) for used in reply])
        await self._app(scope, receive, _send_with(send, (self._policy, (b"ratelimit", value))))

    async def _connect(self) -> None:
        hiredis = package("hiredis")
        self._connected = True
        self._pack = hiredis.pack_command
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._commands: list[bytes] = []
        reader, waiting = hiredis.Reader(), self._waiting

        class Protocol(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                reader.feed(data)
                while (reply := reader.gets()) is not False:
                    waiting.popleft().set_result(reply)

        self._loop = asyncio.get_running_loop()
        self._transport, _ = await self._loop.create_connection(Protocol, self._host, self._port)
        self._sha = await self._ask(("SCRIPT", "LOAD", _SCRIPT.read_text("utf-8")))

    def _ask(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        if not self._commands:
            self._loop.call_soon(self._flush)
        self._commands.append(self._pack(command))
        reply = self._loop.create_future()
        self._waiting.append(reply)
        return reply

    def _flush(self) -> None:
        self._transport.write(b"".join(self._commands))
        self._commands.clear()


def text_fields(limit: Gcra, key: str) -> list[tuple[str, str]] | None:
    """Take a unit. Returns the header fields of WSGI and its frameworks, or None if no unit is left."""
    if (taken := limit.take(key)) is None:
        return None
    value = '"default";r=%d;t=%d' % taken  # noqa: UP031  # what takes least
    return [("RateLimit-Policy", limit.policy.decode()), ("RateLimit", value)]


class Wsgi:
    """Middleware with one limit per address."""

    def __init__(self, app: Any, limit: Gcra) -> None:
        self._app, self._limit = app, limit

    def __call__(self, environ: Any, start_response: Callable[..., Any]) -> Any:
        """See PEP 3333."""
        fields = text_fields(self._limit, environ["REMOTE_ADDR"])
        if fields is None:
            start_response("429 Too Many Requests", [])
            return [b""]

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, *fields], exc_info)

        return self._app(environ, start)


class Django:
    """Django's middleware with one limit per address."""

    _limit = Gcra(10**7, 3600)

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        """See Django's documentation of middleware."""
        fields = text_fields(self._limit, request.META["REMOTE_ADDR"])
        if fields is None:
            return package("django.http").HttpResponse(status=429)
        response = self._get_response(request)
        for name, value in fields:
            response.headers[name] = value
        return response
