"""Builds the ASGI scope of a request from its parts, for a request that no server has received."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ratelimit_mw.http.targets import authority_of, unquoted
from ratelimit_mw.http.views import RawHeaders

_VERSION: Mapping[str, str] = {"version": "3.0"}


def scope_from_parts(
    method: str, target: bytes, headers: RawHeaders, client: tuple[str, int] | None, user: str | None = None
) -> dict[str, Any]:
    """Return the scope of an HTTP request.

    `target`: as the client sent it. `raw_path` keeps `#` and what follows, because some servers do; `TargetRequest`
    reads the path in every form. `headers`: names in lower case. `client`: the socket's peer; None for a unix socket.
    `user`: the name of the user that was authenticated.
    """
    path, _, query = target.partition(b"#")[0].partition(b"?")
    host = authority_of(target)
    if host is not None and (b"host", host) not in headers:  # an app may read it in the target or in the header
        headers = [(b"host", host), *headers]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": _VERSION,
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": unquoted(path).decode("utf-8", "replace"),
        "raw_path": target.partition(b"?")[0],
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": client,
        "state": {},
    }
    if user is not None:
        scope["user"] = SimpleNamespace(is_authenticated=bool(user), identity=user)
    return scope
