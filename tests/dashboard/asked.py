"""Asks a dashboard within this process, as an ASGI app or as a WSGI app."""

import asyncio
import io
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec import json

from ratelimit_mw.dashboard import dashboard, dashboard_wsgi
from ratelimit_mw.dashboard.fronts import Dashboard, WsgiDashboard

SECRET = "one-secret-of-the-tests"  # not a secret
SIGNED_IN: Mapping[str, Any] = {"Authorization": f"Bearer {SECRET}"}
MOUNT = "/rate-limits"


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.decode(self.body)


def made(face: str, *given: Any, **options: Any) -> Any:
    """Return a dashboard. `face`: asgi or wsgi."""
    return (dashboard if face == "asgi" else dashboard_wsgi)(*given, **options)


def ask(
    app: Any,
    path: str,
    method: str = "GET",
    *,
    body: bytes = b"",
    peer: str = "127.0.0.1",
    host: str = "localhost",
    scheme: str = "http",
    version: str = "1.1",
    mount: str = MOUNT,
    **headers: Any,
) -> Got:
    """Return the answer to a request below the mount. `headers`: with underscores for hyphens."""
    fields = {"host": host} | {name.lower().replace("_", "-"): value for name, value in headers.items()}
    if isinstance(app, Dashboard):
        return asyncio.run(_asgi(app, mount, path, method, body, peer, scheme, version, fields))
    assert isinstance(app, WsgiDashboard)
    parts = urlsplit(path)
    environ = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": mount.encode().decode("latin-1"),
        "PATH_INFO": parts.path,
        "QUERY_STRING": parts.query,
        "REMOTE_ADDR": peer,
        "SERVER_NAME": peer,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": scheme,
        "SERVER_PROTOCOL": f"HTTP/{version}",
        **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in fields.items()},
    }
    found: list[Any] = []
    content = b"".join(app(environ, lambda status, fields: found.extend((status, fields))))
    return Got(int(found[0].split()[0]), {name.lower(): value for name, value in found[1]}, content)


async def arrives() -> None:
    """Wait until the body of a request arrives."""


async def _asgi(
    app: Dashboard,
    mount: str,
    path: str,
    method: str,
    body: bytes,
    peer: str,
    scheme: str,
    version: str,
    fields: Mapping[str, str],
) -> Got:
    parts = urlsplit(path)
    scope = {
        "type": "http",
        "method": method,
        "scheme": scheme,
        "http_version": version,
        "root_path": mount,
        "path": mount + parts.path,
        "query_string": parts.query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in fields.items()],
        "client": (peer, 1),
        "server": (peer, 80),
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await arrives()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Got(sent[0]["status"], headers, sent[1]["body"])


def data(app: Any, query: str = "seconds=300", **headers: Any) -> Any:
    """Return `data.json`, for the signed in."""
    got = ask(app, f"/data.json?{query}", **(headers or SIGNED_IN))
    assert got.status == 200, got
    return got.json


def post(app: Any, name: str, asked: Any, **headers: Any) -> Got:
    """Send a call with the token of the page."""
    token = data(app, **headers)["token"]
    return ask(app, f"/{name}", "POST", body=json.encode(asked), X_Token=token, **(headers or SIGNED_IN))
