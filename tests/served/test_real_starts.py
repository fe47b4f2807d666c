"""Tests what a server prints at start: an error in its settings, after which it ends, or a warning."""

import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from web.real_servers import APPS, KINDS
from web_servers import (
    WebServer,
    WebServerError,
    serve_granian,
    serve_granian_run,
    serve_gunicorn,
    serve_hypercorn,
    serve_uvicorn,
    serve_uvicorn_run,
    serve_uwsgi,
)

pytestmark = pytest.mark.once

WRONG = {"asgi": "wrong_limit:app", "wsgi": "wrong_limit_wsgi:app"}


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.http2])
def test_invalid_settings_stop_the_server_with_an_error_message(name: str) -> None:
    kind = KINDS[name]
    with pytest.raises(WebServerError) as caught, kind.serve(WRONG[kind.interface], APPS, *kind.options):
        pass
    assert "its process ended with" in str(caught.value)  # 0 for some: hypercorn 0.18, waitress 3.0
    assert "rules[0].limits[1]: '10/mfoo': unknown period 'mfoo'" in str(caught.value)


BY_UVICORN_AND_GUNICORN = ["uvicorn.run", "uvicorn --workers", "GUNICORN_CMD_ARGS", "gunicorn.conf.py", "preloaded"]
BY_OTHERS = ["hypercorn.toml", "GRANIAN_WORKERS", "fork", "spawn", "uwsgi"]  # fork and spawn are Granian's, in code


def started_by_others(how: str, workers: int, folder: Path, env: dict[str, str]) -> AbstractContextManager[WebServer]:
    if how == "GRANIAN_WORKERS":
        return serve_granian("shared_asgi:app", APPS, env=env | {"GRANIAN_WORKERS": str(workers)})
    if how == "uwsgi":
        return serve_uwsgi("shared_wsgi:app", APPS, "--workers", str(workers), env=env)
    if how == "hypercorn.toml":
        settings = folder / f"hypercorn-{workers}.toml"
        settings.write_text(f"workers = {workers}\n")
        return serve_hypercorn("shared_asgi:app", APPS, "-c", str(settings), env=env)
    return serve_granian_run("shared_asgi:app", APPS, workers, how, env=env)


def started(how: str, workers: int, folder: Path) -> AbstractContextManager[WebServer]:
    """Start a server whose workers each count in memory. Their number is specified in the way that `how` names."""
    memory = {"STORE": "memory://"}
    if how in BY_OTHERS:
        return started_by_others(how, workers, folder, memory)
    if how == "uvicorn.run":
        return serve_uvicorn_run("shared_asgi:app", APPS, workers, env=memory)
    if how == "uvicorn --workers":
        return serve_uvicorn("shared_asgi:app", APPS, "--workers", str(workers), env=memory)
    if how == "GUNICORN_CMD_ARGS":
        more = {"GUNICORN_CMD_ARGS": f"--workers={workers}"}
        return serve_gunicorn("shared_wsgi:app", APPS, env=memory | more)
    file = folder / f"gunicorn-{workers}.conf.py"  # separate: Python reuses bytecode of equal size and second
    file.write_text(f"workers = {workers}\n")
    options = ("-c", str(file), *(["--preload"] if how == "preloaded" else []))
    return serve_gunicorn("shared_wsgi:app", APPS, *options, env=memory)


@pytest.mark.parametrize("how", [*BY_UVICORN_AND_GUNICORN, *BY_OTHERS])
def test_server_warns_at_start_of_a_memory_store_for_several_workers(how: str, tmp_path: Path) -> None:
    with started(how, 2, tmp_path) as server:
        deadline = time.monotonic() + 20
        while "memory:// counts in one process, and there are 2: " not in server.output():
            assert time.monotonic() < deadline, server.output()
            time.sleep(0.05)
    with started(how, 1, tmp_path) as server:
        pass
    assert "counts in one process" not in server.output()
