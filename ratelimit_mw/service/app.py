"""The decision service as an ASGI app: its endpoints, and the checks of their callers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Self

from ratelimit_mw.asgi import RateLimitMiddleware, Setup
from ratelimit_mw.asgi.send import Message, Receive, Scope, Send, send_response
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.http.request import strip_root
from ratelimit_mw.http.response import Response, headers, raw
from ratelimit_mw.http.views import TargetRequest, asgi_lines
from ratelimit_mw.metrics import CONTENT_TYPE, exposition
from ratelimit_mw.rules.rule_set import UNDECIDED, ShortWay
from ratelimit_mw.service.access import Access, web_page_problem
from ratelimit_mw.service.answers import Rejected, json_response
from ratelimit_mw.service.calls import HitCall, RequestParts, SettleCall, read_call, read_either
from ratelimit_mw.service.forwarded import Forwarded, ProxyRequests, Rebuild, for_envoy, for_nginx, without_body
from ratelimit_mw.service.hits import Hits
from ratelimit_mw.service.requests import Requests
from ratelimit_mw.service.reservations import CommitCall, EndCall, Reservations, ReserveCall
from ratelimit_mw.settings import Settings

_MAX_BODY: Final = 65_536  # bytes of a JSON call; even the largest sensible call has only some hundred headers
_BODY_TIMEOUT: Final = 10.0  # seconds for the whole body
_ENVOY: Final = "/v1/envoy"
_EMPTY: Final[list[tuple[bytes, bytes]]] = [(b"content-length", b"0")]
_ADMITTED: Final = "ratelimit_mw.admitted"  # a key in the state of a rebuilt request
_FIRST_REDIRECT: Final = 300
_BAD_REQUEST, _NOT_FOUND = 400, 404
_OK: Final = {"type": "http.response.start", "status": 200, "headers": _EMPTY}
_END: Final = {"type": "http.response.body", "body": b""}


Call = Callable[[bytes], Awaitable[Any]]
Render = Callable[[Send], Send]  # changes a decision into what a proxy expects


class Endpoints(NamedTuple):
    """What answers the calls under the settings in force. A reload replaces it as a whole.

    `rebuild`: for each path, the function that returns the request that a proxy describes.
    """

    access: Access
    requests: Requests
    rebuild: Mapping[str, tuple[Rebuild, Render | None]]
    rebuild_envoy: Rebuild
    calls: Mapping[str, Call]

    @classmethod
    def of(cls, gate: AsyncGate, secret: str) -> Self:
        """Return the endpoints over a gate. `secret`: the text that callers must send."""
        access, hits, requests = Access(gate.settings, secret), Hits(gate), Requests(gate)
        proxies, reservations = ProxyRequests(access), Reservations(hits)
        rebuild: dict[str, tuple[Rebuild, Render | None]] = {
            "/v1/forward": (proxies.from_headers("forward"), None),
            "/v1/nginx": (proxies.from_headers("nginx"), for_nginx),
        }
        calls: dict[str, Call] = {
            "/v1/check": lambda body: requests.check_call(read_call(body, RequestParts)),
            "/v1/hit": lambda body: hits.hit_call(read_call(body, HitCall)),
            "/v1/reserve": lambda body: reservations.reserve_call(read_call(body, ReserveCall)),
            "/v1/commit": lambda body: reservations.commit_call(read_call(body, CommitCall)),
            "/v1/cancel": lambda body: reservations.cancel_call(read_call(body, EndCall)),
            "/v1/settle": lambda body: hits.settle_call(read_call(body, SettleCall)),
            "/v1/peek": lambda body: _by_kind(read_either(body), hits.peek_call, requests.peek_call),
            "/v1/reset": lambda body: _by_kind(read_either(body), hits.reset_call, requests.reset_call),
        }
        return cls(access, requests, rebuild, proxies.from_path(_ENVOY), calls)


class LimitedAnswer(RateLimitMiddleware):
    """The middleware around an app that answers every admitted request with an empty 200.

    `endpoints`: those of the service, which a reload replaces.
    """

    request_type = TargetRequest

    def __init__(self, settings: Settings, secret: str) -> None:
        super().__init__(_answer, settings)
        if self._error is not None:
            raise self._error
        self._secret: Final = secret
        self.endpoints = Endpoints.of(self._gate, secret)

    def _build(self, settings: Settings, before: AsyncGate | None = None) -> Setup:
        setup = super()._build(settings, before)
        setup.gate.rule_set.adapt_to_router(None)
        return setup

    def _use(self, setup: Setup) -> None:
        super()._use(setup)
        self.endpoints = Endpoints.of(setup.gate, self._secret)

    async def decide(self, request: Forwarded, receive: Receive, send: Send, render: Render | None) -> None:
        """Send the decision on a request. `render`: changes a refusal into what the proxy expects.

        If the short way admits the request, this takes half the time of the middleware around an app.
        """
        setup = self._setup  # once: a reload may replace it
        way, charges, client = _enter(setup, request)
        verdict = None
        if way is not None:
            gate = setup.sync_gate
            verdict = await setup.gate.take(way, charges, request) if gate is None else gate.take(way, charges, request)
            if verdict is None or verdict.allowed:
                await send({**_OK, "headers": [*_EMPTY, *raw(headers(verdict, setup.style))]})
                await send(_END)
                return
        scope = request.scope()
        send = _never_admitting(scope, send if render is None else render(send))
        if verdict is None:
            await self._on_longer_way(setup, None, scope, receive, send)
        else:
            await self._decide(setup, (verdict, client), scope, receive, send)


def _enter(setup: Setup, request: Forwarded) -> ShortWay:
    if setup.rules is None or (path := request.plain_path) is None:
        return UNDECIDED
    peer = request.client[0] if request.client else None
    return setup.rules.short_way(request.method, path, peer, partial(asgi_lines, request.fields))


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "lifespan":
        scope["state"][_ADMITTED] = True
        await send(_OK)
        await send(_END)
        return
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def _never_admitting(scope: Scope, send: Send) -> Send:
    """Return a `send` that changes the status 2xx of a refusal to 429.

    `on_refused` may choose such a status, with a warning in the log. A proxy would admit the request.
    """

    async def send_no_success(message: Message) -> None:
        if (
            message["type"] == "http.response.start"
            and message["status"] < _FIRST_REDIRECT
            and _ADMITTED not in scope["state"]
        ):
            message = {**message, "status": 429}
        await send(message)

    return send_no_success


class Service:
    """An ASGI app that decides requests of other servers. See `ratelimit_mw.service.service`."""

    def __init__(self, settings: Settings, secret: str) -> None:
        self._limited: Final = LimitedAnswer(settings, secret)
        self._counts: Final = settings.metrics

    @property
    def access(self) -> Access:
        """Checks the callers."""
        return self._limited.endpoints.access

    @property
    def requests(self) -> Requests:
        """Decides requests that callers describe."""
        return self._limited.endpoints.requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] != "http":
            await self._handle_other_scope(scope, receive, send)
            return
        path: str = scope["path"]
        if scope.get("root_path"):
            path = strip_root(scope["root_path"], path)
        endpoints = self._limited.endpoints  # once: a reload may replace them
        rebuild: Rebuild | None
        rebuild, render = endpoints.rebuild.get(path, (None, None))
        if rebuild is None and (path == _ENVOY or path.startswith(f"{_ENVOY}/")):
            rebuild, render = endpoints.rebuild_envoy, for_envoy
        try:
            endpoints.access.check(scope)
            if rebuild is None:
                response = await self._respond(endpoints.calls.get(path), path, scope, receive)
            else:
                request = rebuild(scope)
                if request.method == "HEAD" != scope["method"]:
                    send = without_body(send)
                await self._limited.decide(request, receive, send, render)
                return
        except Rejected as error:
            response = error.response
            # of a proxy's configuration; mistakes in the body of a call are in the answer to the program that calls
            if response.status == _NOT_FOUND or (rebuild is not None and response.status == _BAD_REQUEST):
                warn_throttled("service", "refused a call: %s", error, code="RL-242")
            if render is not None:
                send = render(send)
        await send_response(response, scope, send)

    async def _respond(self, call: Call | None, path: str, scope: Scope, receive: Receive) -> Response:
        """Return the answer to a call that is not about a proxy's request. Raises `Rejected` for an invalid call."""
        if call is None:
            return self._read(path, scope)
        if scope["method"] != "POST":
            raise Rejected(405, f"method: got {scope['method']}, expected POST", [("Allow", "POST")])
        if (web_page := web_page_problem(scope)) is not None:
            raise Rejected(403, web_page)
        try:
            return json_response(await call(await _body(receive)))
        except ConfigError as error:
            raise Rejected(400, error.problems[0]) from None

    def _read(self, path: str, scope: Scope) -> Response:
        if path not in ("/healthz", "/metrics"):
            raise Rejected(404, f"path: got {path!r:.100}, expected one of {', '.join(self.paths)}")
        if scope["method"] not in ("GET", "HEAD"):
            raise Rejected(405, f"method: got {scope['method']}, expected GET", [("Allow", "GET, HEAD")])
        if path == "/metrics":
            return self._exposition()
        return json_response({"status": "ok"})

    def _exposition(self) -> Response:
        """Return the counts for Prometheus. Raises `Rejected` if the settings do not count."""
        if not self._counts:
            raise Rejected(404, "metrics: false in the settings of this service, expected true")
        try:
            body = exposition()
        except ImportError as error:
            raise Rejected(404, f"metrics: {error}") from None
        return Response(200, [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body)))], body)

    @property
    def paths(self) -> list[str]:
        """The paths of all endpoints."""
        endpoints = self._limited.endpoints
        return [*endpoints.rebuild, f"{_ENVOY}/...", *endpoints.calls, "/healthz", "/metrics"]

    async def _handle_other_scope(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "the service has no websockets"})
        elif scope["type"] == "lifespan":
            await self._limited(scope, receive, send)


async def _by_kind(
    call: Any, of_key: Callable[[Any], Awaitable[Any]], of_request: Callable[[Any], Awaitable[Any]]
) -> Any:
    return await (of_key(call) if isinstance(call, HitCall) else of_request(call))


async def _body(receive: Receive) -> bytes:
    """Return the body of a call. Raises `Rejected` if it is long or slow, or if the caller disconnected."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Rejected(400, "body: the caller disconnected before its end")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > _MAX_BODY:
                    raise Rejected(413, f"body: expected at most {_MAX_BODY} bytes", [("Connection", "close")])
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise Rejected(408, f"body: did not end within {_BODY_TIMEOUT:g} s", [("Connection", "close")]) from None
