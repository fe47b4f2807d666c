"""The servers that spellings are sent to. Each is a context manager that runs an app of tests/apps."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from web.real_servers import APPS
from web_servers import (
    WebServer,
    serve_daphne,
    serve_developing,
    serve_granian,
    serve_gunicorn,
    serve_hypercorn,
    serve_uvicorn,
    serve_uwsgi,
    serve_waitress,
)

_TESTS: Final = str(Path(__file__).resolve().parent.parent)
Serving = Callable[[str], AbstractContextManager[WebServer]]


def _process(serve: Any, *options: str, prefix: str = "", **env: str) -> Serving:
    @contextmanager
    def running(app: str) -> Iterator[WebServer]:
        with serve(prefix + app, APPS, *options, env={"PYTHONPATH": _TESTS, **env}) as server:
            yield server

    return running


ASGI_SERVERS: Final[dict[str, Serving]] = {
    "uvicorn-h11": _process(serve_uvicorn, "--http", "h11", "--loop", "asyncio"),
    "uvicorn-httptools": _process(serve_uvicorn, "--http", "httptools", "--loop", "asyncio"),
    "uvicorn-root": _process(serve_uvicorn, "--http", "h11", "--loop", "asyncio", "--root-path", "/api"),
    "hypercorn": _process(serve_hypercorn),
    "hypercorn-root": _process(serve_hypercorn, "--root-path", "/api"),
    "granian": _process(serve_granian),
    "daphne": _process(serve_daphne),
    "gunicorn-asgi": _process(serve_gunicorn, "--worker-class", "asgi"),
}
WSGI_SERVERS: Final[dict[str, Serving]] = {
    "hypercorn-wsgi": _process(serve_hypercorn, prefix="wsgi:"),
    "granian-wsgi": _process(serve_granian, "--interface", "wsgi"),
    "gunicorn": _process(serve_gunicorn, "--worker-class", "gthread", "--threads", "2"),
    "uwsgi": _process(serve_uwsgi),
    "waitress": _process(serve_waitress, "--no-clear-untrusted-proxy-headers"),
    "werkzeug": _process(serve_developing, "werkzeug"),
    "wsgiref": _process(serve_developing, "wsgiref"),
}
WITH_SCRIPT_NAME: Final[dict[str, Serving]] = {
    "gunicorn-root": _process(serve_gunicorn, "--threads", "2", SCRIPT_NAME="/api")
}
