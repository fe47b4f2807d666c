"""A statement that creates middleware and discards it gets a warning; other statements do not."""

import _thread
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from ratelimit_mw import MemoryStore, asgi, wsgi
from web.asgi_talk import HTTP, LIFESPAN, SHUTDOWN, STARTUP, App200, talk
from web.wsgi_talk import Server, hello, read

KINDS = pytest.mark.parametrize(
    ("kind", "app", "fix"),
    [
        (wsgi.RateLimitMiddleware, hello, "app.wsgi_app = RateLimitMiddleware(app.wsgi_app, ...)"),
        (asgi.RateLimitMiddleware, App200(), "app = RateLimitMiddleware(app, ...)"),
    ],
    ids=["wsgi", "asgi"],
)
STORES = pytest.mark.parametrize("store", ["memory://", "redis://127.0.0.1:1/0", MemoryStore()])


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect reference cycles before the test ends."""
    yield
    gc.collect()


@KINDS
@STORES
def test_discarded_middleware_logs_a_warning_with_its_line(
    kind: Any, app: Any, fix: str, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kind(app, limits="9/hour", store=store)
    kind(
        app,
        limits="9/hour",
        enabled=False,
    )
    line = sys._getframe().f_lineno - 6
    text = "ratelimit_mw: RateLimitMiddleware at test_discarded.py:{} is thrown away before its first request, so it "
    text += f"limits nothing; assign it: {fix}"
    assert caplog.messages == [text.format(line), text.format(line + 1)]


@KINDS
def test_assigned_middleware_without_requests_logs_no_warning(
    kind: Any, app: Any, fix: str, caplog: pytest.LogCaptureFixture
) -> None:
    def made() -> Any:
        return kind(app, limits="9/hour")

    def last() -> None:
        _ = kind(app, limits="9/hour")

    assigned = kind(app, limits="9/hour")
    del assigned
    made()
    last()
    gc.collect()
    assert (caplog.messages, fix[:3]) == ([], "app")


@KINDS
def test_middleware_dropped_outside_python_code_logs_no_warning(
    kind: Any, app: Any, fix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server in C, such as uWSGI, may drop an app while no Python function runs, as this thread does."""
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    holder, dropped = [kind(app, limits="9/hour")], threading.Event()
    weakref.finalize(holder[0], dropped.set)
    _thread.start_new_thread(holder.clear, ())
    assert dropped.wait(60)
    assert (raised, caplog.messages, fix[:3]) == ([], [], "app")


@pytest.mark.parametrize("enabled", [True, False])
def test_middleware_that_has_served_logs_no_warning(enabled: bool, caplog: pytest.LogCaptureFixture) -> None:
    own: dict[str, Any] = {"limits": "9/hour", "enabled": enabled}
    read(Server().ask(wsgi.RateLimitMiddleware(hello, **own)))
    read(Server().ask(wsgi.RateLimitMiddleware(hello, **own, store=MemoryStore())))
    talk(asgi.RateLimitMiddleware(App200(), **own), HTTP)
    talk(asgi.RateLimitMiddleware(Starlette(), **own), LIFESPAN, STARTUP, SHUTDOWN)
    assert caplog.messages == []


def test_interpreter_exit_logs_no_warning(tmp_path: Path) -> None:
    tmp_path.joinpath("app.py").write_text(
        "from ratelimit_mw import asgi, wsgi\n"
        "made = [asgi.RateLimitMiddleware(print, limits='9/hour'), wsgi.RateLimitMiddleware(print, limits='9/hour')]\n"
    )
    done = subprocess.run([sys.executable, "app.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
