"""Sends requests to an app, as a server does, but with as few instructions as that can take."""

import asyncio
import io
import sys
from collections.abc import Callable, MutableMapping
from functools import cache
from typing import Any, Final

from benchmarks.lab import Missing, package
from benchmarks.ours.asgi import App, Message, Scope, receive

Run = Callable[[int], object]  # sends that many requests
_FIELDS: Final = {"ratelimit", "ratelimit-policy"}
_last: MutableMapping[str, Any] = {}  # the start of the last response


def scope(client: str = "10.0.0.1", *headers: tuple[bytes, bytes]) -> Scope:
    """Return a request of ASGI."""
    usual = [(b"host", b"x"), (b"user-agent", b"b"), (b"accept", b"*/*")]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": "/items/1",
        "raw_path": b"/items/1",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [*usual, *headers],
        "client": (client, 1234),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


def environ(path: str = "/items/1") -> dict[str, Any]:
    """Return a request of WSGI."""
    return {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "SCRIPT_NAME": "",
        "QUERY_STRING": "",
        "SERVER_NAME": "x",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "10.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


@cache
def loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process: uvloop's, if there is one."""
    try:
        made: asyncio.AbstractEventLoop = package("uvloop").new_event_loop()
    except Missing:
        made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    return made


async def _send(message: Message) -> None:
    if message["type"] == "http.response.start":
        _last["status"], _last["headers"] = message["status"], message["headers"]


def _start(status: str, headers: list[tuple[str, str]], _exc_info: Any = None) -> None:
    _last["status"], _last["headers"] = status, headers


def asgi(app: App, make: Callable[[], Scope] = scope, tasks: int = 1) -> Run:
    """Return what sends requests to an ASGI app, from a number of tasks."""

    async def one_task(requests: int) -> None:
        for _ in range(requests):
            await app(make(), receive, _send)

    async def several(requests: int) -> None:
        await asyncio.gather(*(one_task(requests // tasks) for _ in range(tasks)))

    work = one_task if tasks == 1 else several
    return lambda requests: loop().run_until_complete(work(requests))


def wsgi(app: Any, path: str = "/items/1") -> Run:
    """Return what sends requests to a WSGI app."""

    def run(requests: int) -> None:
        for _ in range(requests):
            body = app(environ(path), _start)
            b"".join(body)
            getattr(body, "close", lambda: None)()

    return run


def checked(run: Run) -> Run:
    """Return what was given, after a request of it was admitted, with the header fields of a limit."""
    run(1)
    names = {(name.decode() if isinstance(name, bytes) else name).lower() for name, _ in _last["headers"]}
    assert str(_last["status"]).startswith("200"), _last
    assert names >= _FIELDS, _last
    return run
