"""The real servers that tests start, each with its usual options."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from web_servers import WebServer, serve_granian, serve_gunicorn, serve_hypercorn, serve_uvicorn, serve_waitress

APPS = Path(__file__).resolve().parent.parent / "apps"
_FOUND_WITHIN = 60.0  # seconds
OF_THE_SERVER = ("date", "server", "connection", "keep-alive", "via")  # headers that the server adds


@dataclass(frozen=True)
class Kind:
    """A server, the options it runs with, and how to connect to it."""

    serve: Callable[..., AbstractContextManager[WebServer]]
    interface: str
    options: tuple[str, ...] = ()
    http2: bool = False
    keeps_alive: bool = True


LONG_FIELDS = ("--limit-request-field_size", "16380")  # bytes of a header; 8190 by default, less than a scenario sends
THREADS = ("--worker-class", "gthread", "--threads", "2", *LONG_FIELDS)
KINDS = {
    "uvicorn": Kind(serve_uvicorn, "asgi", ("--http", "h11", "--loop", "asyncio")),
    "uvicorn-standard": Kind(serve_uvicorn, "asgi", ("--http", "httptools", "--loop", "uvloop")),
    "hypercorn": Kind(serve_hypercorn, "asgi"),
    "hypercorn-http2": Kind(serve_hypercorn, "asgi", http2=True),
    "granian": Kind(serve_granian, "asgi"),
    "granian-http2": Kind(serve_granian, "asgi", http2=True),
    "granian-wsgi": Kind(serve_granian, "wsgi", ("--interface", "wsgi")),
    "gunicorn-sync": Kind(serve_gunicorn, "wsgi", LONG_FIELDS, keeps_alive=False),
    "gunicorn-gthread": Kind(serve_gunicorn, "wsgi", THREADS),
    "waitress": Kind(serve_waitress, "wsgi"),
}


def one_of_each_process(server: WebServer, stack: ExitStack, processes: int) -> list[httpx.Client]:
    """Return clients, each connected to a different process. The app answers `/process` with the number of its own."""
    found: dict[str, httpx.Client] = {}
    deadline = time.monotonic() + _FOUND_WITHIN
    while len(found) < processes:
        assert time.monotonic() < deadline, server.output()
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=120))
        process = client.get("/process").text
        if found.setdefault(process, client) is not client:
            client.close()
    return list(found.values())
