"""`Request` for ASGI scopes and WSGI environs, and the WSGI servers that merge header names."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any, Final

from ratelimit_mw.core.log import Finding, warn_throttled
from ratelimit_mw.http.request import Headers, Request, as_text, strip_root, user_id
from ratelimit_mw.http.targets import decoded, paths_of_target, readings

_MERGING_SERVERS: Final = re.compile(r"Granian|WSGIServer/|gunicorn/(?:1?\d|2[01])\.", re.IGNORECASE)
# runserver has the `SERVER_SOFTWARE` of wsgiref's server, but drops header names with underscores
_DJANGO_SERVER: Final = "django.core.servers.basehttp"
# a comma with which a server joins headers: these servers write no space after it, proxies do; uWSGI writes one, too
_JOINED: Final = re.compile(r",(?! )")
_JOINED_BY_UWSGI: Final = re.compile(",")

RawHeaders = Sequence[tuple[bytes, bytes]]  # the headers of an ASGI scope; names in lower case

UNDERSCORE_FINDING: Final = Finding(
    "trusted_proxies: this WSGI server reads a header X_Forwarded_For as X-Forwarded-For, so a client can forge its "
    "address; drop header names with underscores in the proxy, or use a server that does (gunicorn, waitress)",
    code="RL-110",
)


def asgi_lines(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[str]:
    """Return all lines of a header, in order; `name` is in lower case. For one header, faster than an `AsgiRequest`."""
    raw, length, lines = name.encode("latin-1"), len(name), []  # comparing the length first halves the time
    for key, value in headers:
        if len(key) == length and key.lower() == raw:
            lines.append(value.decode("latin-1"))  # a list comprehension would be another call
    return lines


def peer_of(scope: Mapping[str, Any]) -> str | None:
    """Return the address of the socket's other end, as an ASGI server reports it."""
    client = scope.get("client")
    return client[0] if client else None


def is_peer_lost(scope: Mapping[str, Any]) -> bool:
    """Return whether a TCP client reset its connection before the server read its address.

    uvicorn then reports no client, as for a unix socket. But a unix socket has no port: servers report its path as the
    host, or the first two characters of its path as host and port (gunicorn).
    """
    return not scope.get("client") and [type(part) for part in scope.get("server") or ()] == [str, int]


class AsgiRequest(Request):
    """A view of an ASGI scope of HTTP or a websocket."""

    __slots__ = ("_lines",)

    def __init__(self, raw: Any, client: str | None, outer: Any = None, route: str | None = None) -> None:
        super().__init__(raw, client, outer, route)
        self._lines: dict[bytes, list[bytes]] | None = None

    @property
    def is_answerable(self) -> bool:
        return bool(self.raw["type"] == "http")

    @property
    def method(self) -> str:
        method: str = self.raw.get("method", "GET")
        return method.upper()

    @property
    def path(self) -> str:
        return strip_root(self.raw.get("root_path", ""), self.raw["path"])

    @property
    def paths(self) -> Sequence[str]:
        path, root = self.raw["path"], self.raw.get("root_path", "")
        if not root and path[:1] == "/":
            return (path,)
        paths = [strip_root(root, path), *readings((path,))]
        if root:  # Litestar drops everything up to the first `root`, Quart and Django drop it as a prefix
            paths[1:] = [one.partition(root)[2] if root in one else one for one in paths[1:]]
        return tuple(dict.fromkeys(one or "/" for one in paths))

    @property
    def headers(self) -> Mapping[str, str]:
        lines = self._lines_by_name()
        return Headers({name.decode("latin-1"): b", ".join(values).decode("latin-1") for name, values in lines.items()})

    def header_lines(self, name: str) -> Sequence[str]:
        return [value.decode("latin-1") for value in self._lines_by_name().get(name.encode("latin-1").lower(), ())]

    def _lines_by_name(self) -> Mapping[bytes, Sequence[bytes]]:
        """Return all lines, which are sorted by name once: a client can send 16,000, and each rule reads the host."""
        if self._lines is None:
            self._lines = {}
            for name, value in self.raw["headers"]:
                self._lines.setdefault(name.lower(), []).append(value)
        return self._lines

    @property
    def is_peer_lost(self) -> bool:
        return self.client is None and is_peer_lost(self.raw)

    @property
    def user(self) -> str | None:
        user = self.raw.get("user")
        return None if user is None else user_id(user)

    @property
    def state(self) -> SimpleNamespace:
        return SimpleNamespace(**self.raw.get("state", {}))


class TargetRequest(AsgiRequest):
    """A view of a request that no server has received. See `scope_from_parts`."""

    __slots__ = ()

    @property
    def is_answerable(self) -> bool:
        return False

    @property
    def paths(self) -> Sequence[str]:
        root, paths = self.raw["root_path"], paths_of_target(self.raw["raw_path"])
        return tuple(dict.fromkeys(strip_root(root, path) for path in paths)) if root else paths


def wsgi_lines(environ: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return all lines of a header as one; `name` is in lower case. WSGI servers join several with commas."""
    value = environ.get(_variable(name))
    return () if value is None else (value,)


class WsgiRequest(Request):
    """A view of a WSGI environ."""

    __slots__ = ()

    @property
    def method(self) -> str:
        method: str = self.raw["REQUEST_METHOD"]
        return method.upper()

    @property
    def path(self) -> str:
        return self.paths[0]

    @property
    def paths(self) -> Sequence[str]:
        # PEP 3333: bytes decoded as latin-1. SCRIPT_NAME is not part of PATH_INFO.
        text: str = self.raw.get("PATH_INFO") or "/"
        if text.isascii():
            return (text,)
        return tuple(path or "/" for path in decoded(text.encode("latin-1")))

    @property
    def headers(self) -> Mapping[str, str]:
        values_by_name = {
            name[5:].replace("_", "-").lower(): value for name, value in self.raw.items() if name.startswith("HTTP_")
        }
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if self.raw.get(name):
                values_by_name[name.replace("_", "-").lower()] = self.raw[name]
        return Headers(values_by_name)

    def header_lines(self, name: str) -> Sequence[str]:
        return wsgi_lines(self.raw, name)

    @property
    def joined_values(self) -> re.Pattern[str] | None:
        return joined_values(self.raw)

    @property
    def is_peer_lost(self) -> bool:
        return is_wsgi_peer_lost(self.raw)

    @property
    def user(self) -> str | None:
        return as_text(self.raw.get("REMOTE_USER"))


@lru_cache(maxsize=256)
def _variable(name: str) -> str:
    """Return the name of a header in a WSGI environ."""
    variable = name.upper().replace("-", "_")
    return variable if variable in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{variable}"


def joined_values(environ: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Return the pattern of a comma with which the WSGI server may have joined a header `X_Y` to `X-Y`.

    Returns None for a server that drops names with underscores. A server that its environ does not identify counts as
    one that drops them.
    """
    software = environ.get("SERVER_SOFTWARE")
    if software is None:
        if "uwsgi.version" in environ:
            return _JOINED_BY_UWSGI
        return _JOINED if _is_of_asgi_server(environ) else None  # uvicorn, hypercorn and asgiref do not drop them
    if not _MERGING_SERVERS.match(software):
        return None
    return None if software.startswith("WSGIServer/") and _DJANGO_SERVER in sys.modules else _JOINED


def is_wsgi_peer_lost(environ: Mapping[str, Any]) -> bool:
    """Return the same as `is_peer_lost` for the environ of an ASGI server's WSGI adapter; other servers lose no peer.

    For a unix socket, `SERVER_NAME` is its path or `localhost`.
    """
    if environ.get("REMOTE_ADDR") or "SERVER_SOFTWARE" in environ or not _is_of_asgi_server(environ):
        return False
    try:
        ip_address(environ.get("SERVER_NAME", ""))
    except ValueError:
        return False
    return True


def _is_of_asgi_server(environ: Mapping[str, Any]) -> bool:
    """Return whether an environ may be one of an ASGI server's WSGI adapter, which sets both of these to True.

    Only for an environ without `SERVER_SOFTWARE`.
    """
    return environ.get("wsgi.multithread") is True and environ.get("wsgi.multiprocess") is True


def unambiguous_values(name: str, values: Sequence[str], joined: re.Pattern[str]) -> Sequence[str]:
    """Return the lines of a proxy's header; none if the server joined lines, which hides the proxy's own line.

    `joined`: see `joined_values`.
    """
    if not any(joined.search(value) for value in values):
        return values
    warn_throttled(
        name,
        "the server joined several headers of this name, or of its spelling with underscores; all of them are ignored",
        code="RL-227",
    )
    return ()
