"""The real servers that tests start, each with its usual options."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from web_servers import WebServer, serve_granian, serve_gunicorn, serve_hypercorn, serve_uvicorn, serve_waitress

APPS = Path(__file__).resolve().parent.parent / "apps"
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
