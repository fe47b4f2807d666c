"""The dashboard as an ASGI app and as a WSGI app."""

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from inspect import isawaitable
from typing import Any, Final
from urllib.parse import quote

from ratelimit_mw.asgi.send import Receive, Scope, Send
from ratelimit_mw.dashboard.app import MAX_BODY, Call, Page
from ratelimit_mw.dashboard.pages import Answer, error_answer
from ratelimit_mw.http.views import AsgiRequest, WsgiRequest, peer_of

_DIGITS: Final = 9  # of a Content-Length, zeros in front included
_BODY_SECONDS: Final = 10.0  # until the body of a POST has arrived
_TOO_LATE: Final = error_answer(408, f"body: expected within {_BODY_SECONDS:.0f} s", [("Connection", "close")])
_TOO_LONG: Final = error_answer(413, f"body: expected at most {MAX_BODY} bytes", [("Connection", "close")])


class Dashboard:
    """An ASGI app to mount. See `ratelimit_mw.dashboard.dashboard`. `page`: answers the requests."""

    exempts_itself: Final = True  # see `http.page_paths`

    def __init__(self, page: Page) -> None:
        self.page: Final = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _run_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _send(await self._answer(scope, receive), scope, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        call, authorize = _asgi_call(scope), self.page.access.authorize
        authorized = None if authorize is None else authorize(call.request)
        if isawaitable(authorized):
            authorized = await authorized
        begun = self.page.begin(call, authorized)
        if isinstance(begun, Answer):
            return begun
        try:
            body = await asyncio.wait_for(_body(receive), _BODY_SECONDS) if call.method == "POST" else b""
        except TimeoutError:
            return _TOO_LATE
        if body is None:
            return _TOO_LONG
        return await asyncio.to_thread(self.page.finish, call, begun, body)


def _asgi_call(scope: Scope) -> Call:
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if root and path.startswith(root):  # a server or router that leaves the mount in the path
        path = path[len(root) :]
    return Call(
        scope["method"],
        _in_url(root.encode()),
        path.removeprefix("/"),
        scope.get("query_string", b"").decode("latin-1"),
        AsgiRequest(scope, peer_of(scope)),
        scope.get("scheme") == "https",
        path != "",
    )


def _in_url(root: bytes) -> str:
    """Return the path of a mount as a header may contain it: a client may choose a part of it."""
    path = quote(root).lstrip("/")
    return f"/{path}" if path else ""


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if it is too long."""
    body: bytes = b""
    while True:
        message = await receive()
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > MAX_BODY:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return body


async def _send(answer: Answer, scope: Scope, send: Send) -> None:
    fields = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": fields})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})


async def _run_lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


class WsgiDashboard:
    """The same as a WSGI app. See `ratelimit_mw.dashboard.dashboard_wsgi`."""

    exempts_itself: Final = True  # see `http.page_paths`

    def __init__(self, page: Page) -> None:
        self.page: Final = page

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        answer = self._answer(environ)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", answer.headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def beside(self, app: Any, path: str) -> "Beside":
        """Return a WSGI app that answers requests below `path` with the dashboard, and all others with `app`."""
        return Beside(self, app, path)

    def _answer(self, environ: dict[str, Any]) -> Answer:
        root, path = environ.get("SCRIPT_NAME", "").rstrip("/"), environ.get("PATH_INFO", "")
        call = Call(
            environ["REQUEST_METHOD"],
            _in_url(root.encode("latin-1")),
            path.removeprefix("/"),
            environ.get("QUERY_STRING", ""),
            WsgiRequest(environ, environ.get("REMOTE_ADDR") or None),
            environ.get("wsgi.url_scheme") == "https",
            path != "",
        )
        authorize = self.page.access.authorize
        begun = self.page.begin(call, None if authorize is None else authorize(call.request))
        if isinstance(begun, Answer):
            return begun
        body = b""
        if call.method == "POST":
            length = environ.get("CONTENT_LENGTH") or "0"
            if not (length.isascii() and length.isdigit() and len(length) <= _DIGITS and int(length) <= MAX_BODY):
                return _TOO_LONG
            body = environ["wsgi.input"].read(int(length))
        return self.page.finish(call, begun, body)


class Beside:
    """Two WSGI apps: `mounts` has those by path, `app` answers all other requests."""

    def __init__(self, dashboard: WsgiDashboard, app: Any, path: str) -> None:
        self.mounts: Final = {path.rstrip("/"): dashboard}
        self.app: Final = app

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Pass the request on."""
        path = environ.get("PATH_INFO", "")
        for mount, dashboard in self.mounts.items():
            if path == mount or path.startswith(f"{mount}/"):
                root = environ.get("SCRIPT_NAME", "") + mount
                return dashboard({**environ, "SCRIPT_NAME": root, "PATH_INFO": path[len(mount) :]}, start_response)
        answer: Iterable[bytes] = self.app(environ, start_response)
        return answer
