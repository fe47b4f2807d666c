"""Tests what a server prints at start: an error in its settings, after which it ends, or a warning."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from web.real_servers import APPS, KINDS
from web_servers import (
    WebServer,
    WebServerError,
    serve_granian,
    serve_gunicorn,
    serve_hypercorn,
    serve_uvicorn,
    serve_uwsgi,
)

MEMORY = {"STORE": "memory://"}
WRONG = {"asgi": "wrong_limit:app", "wsgi": "wrong_limit_wsgi:app"}


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.http2])
def test_invalid_settings_stop_the_server_with_an_error_message(name: str) -> None:
    kind = KINDS[name]
    with pytest.raises(WebServerError) as caught, kind.serve(WRONG[kind.interface], APPS, *kind.options):
        pass
    assert "its process ended with" in str(caught.value)  # 0 for some: hypercorn 0.18, waitress 3.0
    assert "rules[0].limits[1]: '10/mfoo': unknown period 'mfoo'" in str(caught.value)


WORKERS: dict[str, Callable[[int], AbstractContextManager[WebServer]]] = {  # ways to set their number
    "uvicorn --workers": lambda workers: serve_uvicorn("shared_asgi:app", APPS, "--workers", str(workers), env=MEMORY),
    "UVICORN_WORKERS": lambda workers: serve_uvicorn(
        "shared_asgi:app", APPS, env=MEMORY | {"UVICORN_WORKERS": str(workers)}
    ),
    "GUNICORN_CMD_ARGS": lambda workers: serve_gunicorn(
        "shared_wsgi:app", APPS, env=MEMORY | {"GUNICORN_CMD_ARGS": f"--workers={workers}"}
    ),
    "GRANIAN_WORKERS": lambda workers: serve_granian(
        "shared_asgi:app", APPS, env=MEMORY | {"GRANIAN_WORKERS": str(workers)}
    ),
    "hypercorn --workers": lambda workers: serve_hypercorn(
        "shared_asgi:app", APPS, "--workers", str(workers), env=MEMORY
    ),
    "uwsgi": lambda workers: serve_uwsgi("shared_wsgi:app", APPS, "--workers", str(workers), env=MEMORY),
}


@pytest.mark.parametrize("start", WORKERS.values(), ids=WORKERS)
def test_server_warns_at_start_of_a_memory_store_for_several_workers(
    start: Callable[[int], AbstractContextManager[WebServer]],
) -> None:
    with start(2) as server:
        deadline = time.monotonic() + 20
        while "memory:// counts in one process, and there are 2: " not in server.output():
            assert time.monotonic() < deadline, server.output()
            time.sleep(0.05)
    with start(1) as server:
        pass
    assert "counts in one process" not in server.output()
