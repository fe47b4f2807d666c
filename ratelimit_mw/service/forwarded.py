"""Rebuilds the request about which a proxy calls the service, and renders the decision as the proxy needs it."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from ratelimit_mw.asgi.send import Message, Scope, Send
from ratelimit_mw.http.scopes import scope_from_parts
from ratelimit_mw.http.views import is_peer_lost
from ratelimit_mw.service.access import LOST, SECRET_HEADER, Access
from ratelimit_mw.service.answers import Rejected

NGINX: Final = b"/v1/nginx"
MAX_TARGET: Final = 8192  # bytes of path and query; the most that nginx and Apache accept by default

_OK: Final = 200
_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_HOST: Final = b"host"
_SECRET: Final = SECRET_HEADER.encode()
_MAX_BODY: Final = 2048  # bytes of a body that is sent as a header; proxies limit the size of headers
_HEADERS: Final = {  # per endpoint: the headers in which a proxy describes the request
    "forward": {"method": b"x-forwarded-method", "uri": b"x-forwarded-uri", "host": b"x-forwarded-host"},
    "nginx": {"method": b"x-original-method", "uri": b"x-original-uri"},
}

_MOVING: Final = (b"script_name", b"path_info")  # gunicorn moves the path by such a header, which proxies pass on

Rebuild = Callable[[Scope], "Forwarded"]
_PLAIN: Final = re.compile(r"/[A-Za-z0-9_.~/-]*")  # a path that is the same in each form


class Forwarded(Struct, frozen=True, gc=False):
    """A request that a proxy forwards.

    `fields`: the headers of the proxy's call. `dropped`: the names of headers to leave out, because they belong to the
    call and not to the request. `host`: the host of the request, if it is not that of the call.
    """

    method: str
    target: bytes
    client: tuple[str, int] | None
    fields: Sequence[tuple[bytes, bytes]]
    dropped: frozenset[bytes]
    host: bytes | None = None

    @property
    def path(self) -> str:
        """The path, for a report of a refusal."""
        return self.target.partition(b"?")[0].decode("utf-8", "replace")

    @property
    def plain_path(self) -> str | None:
        """The path, if it needs no decoding."""
        path = self.target.partition(b"?")[0].decode("latin-1")
        return path if _PLAIN.fullmatch(path) else None

    def scope(self) -> dict[str, Any]:
        """Return the ASGI scope of the request. Most requests are decided without it."""
        headers = [field for field in self.fields if field[0] not in self.dropped]
        if self.host is not None:
            headers = [(_HOST, self.host), *(field for field in headers if field[0] != _HOST)]
        return scope_from_parts(self.method, self.target, headers, self.client)


class ProxyRequests:
    """Rebuilds requests from the calls of trusted proxies. Raises `Rejected` for callers that are not trusted."""

    def __init__(self, access: Access) -> None:
        self._access: Final = access
        self._proxy_header: Final = access.proxy_header.encode()

    def from_headers(self, endpoint: str) -> Rebuild:
        """Return the function for an endpoint where headers describe the request: `forward` or `nginx`."""
        address_header, described = self._proxy_header, _HEADERS[endpoint]
        method_header, uri_header, host_header = described["method"], described["uri"], described.get("host")
        dropped = frozenset({*described.values(), _SECRET} - {address_header})

        def rebuild(scope: Scope) -> Forwarded:
            client = self._peer(scope)
            fields: list[tuple[bytes, bytes]] = scope["headers"]
            values = dict(fields)
            if len(values) != len(fields):
                repeated = _repeated(fields)
                for name in described.values():
                    if name in repeated:
                        raise Rejected(400, f"{name.decode()}: present twice, expected once, as the proxy sets it")
            if not values.keys().isdisjoint(_MOVING):
                raise _moving()
            method, uri, has_address = values.get(method_header), values.get(uri_header), address_header in values
            if not (method and uri and has_address):
                raise _missing(uri_header if method and not uri else address_header if method else method_header)
            if len(uri) > MAX_TARGET:
                raise too_long()
            return Forwarded(
                method.decode("latin-1"),
                uri,
                client,
                fields,
                dropped,
                None if host_header is None else values.get(host_header),
            )

        return rebuild

    def from_path(self, prefix: str) -> Rebuild:
        """Return the function for an endpoint where the request is as the client sent it, below a prefix."""
        address, length, dropped = self._proxy_header, len(prefix), frozenset({_SECRET})

        def rebuild(scope: Scope) -> Forwarded:
            client = self._peer(scope)
            fields: list[tuple[bytes, bytes]] = scope["headers"]
            if any(name in _MOVING for name, _ in fields):
                raise _moving()
            if all(name != address for name, _ in fields):
                raise _missing(address)
            root = len(scope.get("root_path", "").encode())
            raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
            target = raw_path.partition(b"?")[0][root + length :] or b"/"
            if query := scope.get("query_string"):
                target += b"?" + query
            if len(target) > MAX_TARGET:
                raise too_long()
            return Forwarded(scope["method"], target, client, fields, dropped)

        return rebuild

    def _peer(self, scope: Scope) -> tuple[str, int] | None:
        """Return the address of the caller. Raises `Rejected` if it is not a trusted proxy."""
        client: Any = scope.get("client")
        if not client and is_peer_lost(scope):  # not a unix socket, which `trusted_proxies` may list
            raise Rejected(_FORBIDDEN, LOST)
        distrust = self._access.distrust(client[0] if client else None)
        if distrust is not None:
            raise Rejected(_FORBIDDEN, distrust)
        return client or None


def _repeated(fields: Sequence[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the names that several headers have."""
    return frozenset(name for name, count in Counter(name for name, _ in fields).items() if count > 1)


def too_long() -> Rejected:
    """Return the answer to a request with a long path and query, which would take long to decode and match."""
    return Rejected(414, f"path: expected at most {MAX_TARGET} bytes with the query")


def _moving() -> Rejected:
    """Return the answer to a request for which the app and the rules might see different paths."""
    return Rejected(400, "a header SCRIPT_NAME or PATH_INFO, with an underscore, is not accepted")


def _missing(header: bytes) -> Rejected:
    return Rejected(400, f"{header.decode()}: missing, expected what the proxy's configuration in the docs sets")


def for_nginx(send: Send) -> Send:
    """Return a `send` for nginx's `auth_request`, which supports only the statuses 2xx, 401 and 403.

    A refusal becomes a 403, see `nginx_fields`.
    """
    start: Message = {}

    async def send_refusal_as_403(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start" and message["status"] != _OK:
            start = message
            return
        if start:
            fields = [*start["headers"], *nginx_fields(start["status"], message.get("body", b""))]
            await send({**start, "status": _FORBIDDEN, "headers": fields})
            start = {}
        await send(message)

    return send_refusal_as_403


def nginx_fields(status: int, body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell nginx more about a refusal than its 403.

    `X-RateLimit-Status` has the refusal's own status. `X-RateLimit-Body` has its body, because nginx drops that. A body
    that is long or contains line breaks is left out.
    """
    fields = [(b"x-ratelimit-status", b"%d" % status)]
    if len(body) <= _MAX_BODY and body.isascii() and body.decode("ascii").isprintable():
        fields.append((b"x-ratelimit-body", body))
    return fields


def for_envoy(send: Send) -> Send:
    """Return a `send` for `ext_authz` of Envoy: a refusal with 503 becomes one with 429.

    Envoy treats a 5xx as a failure of the service, and may then admit the request.
    """
    replaced = False

    async def send_without_5xx(message: Message) -> None:
        nonlocal replaced
        if message["type"] == "http.response.start" and message["status"] >= _SERVER_ERROR:
            replaced = True
            message = {**message, "status": _TOO_MANY}
        elif replaced and "body" in message:
            message = {**message, "body": message["body"].replace(b'"status":503', b'"status":429')}
        await send(message)

    return send_without_5xx


def without_body(send: Send) -> Send:
    """Return a `send` for a rebuilt HEAD request. Its refusal has no body, so this sets the length to 0.

    The proxy's own request is not a HEAD, so the server would wait for the body that the length announces.
    """

    async def send_without_length(message: Message) -> None:
        if message["type"] == "http.response.start":
            fields = [field for field in message["headers"] if field[0] != b"content-length"]
            message = {**message, "headers": [*fields, (b"content-length", b"0")]}
        await send(message)

    return send_without_length
