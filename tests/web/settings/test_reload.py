"""Changed settings are taken over while the app runs; a mistake changes nothing."""

import asyncio
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from msgspec.structs import replace

from ratelimit_mw import asgi, wsgi
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.engine.reload import FIXED, Reloader
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.metrics.families import POLICY_INFO
from ratelimit_mw.metrics.registry import COUNTS, Registry
from ratelimit_mw.service import service
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.source import FileSource
from ratelimit_mw.testing import Clock, RecordingStore
from web import faces
from web.in_process import answers, statuses
from web.scenario import Answer, Step

PLACE = "limits.toml"
FIXED_SAYS = "changed, which a reload cannot take over; restart, or undo it"
KEPT = "not taken over, the settings in force stay"
_times = count(1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Reloader[Any]]:
    """The reloaders that requests have started. The tests look in place of their threads."""
    found: list[Reloader[Any]] = []

    def start(self: Reloader[Any]) -> None:
        if self not in found:
            found.append(self)

    monkeypatch.setattr(Reloader, "start", start)
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which the settings are."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str) -> None:
    """Write the settings at once, with a time of their own that is long ago."""
    new = Path("new.toml")
    new.write_text(text)
    at = next(_times)
    os.utime(new, (at, at))
    new.rename(PLACE)


def load(text: str) -> Settings:
    write(f"reload = true\n{text}")
    return Settings.load(PLACE)


def change(text: str) -> None:
    write(f"reload = true\n{text}")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log since the last call, without refused requests and the lines of the level DEBUG."""
    records = [record for record in caplog.records if record.name == "ratelimit_mw"]
    lines = [record.getMessage() for record in records if record.levelno > logging.DEBUG]
    caplog.clear()
    return lines


# how each integration gets a Settings object
GIVEN: dict[str, Callable[[Settings], Any]] = {
    name: (lambda found: found)
    if name in ("flask extension", "django", "django async")
    else lambda found: {"settings": found}
    for name in faces.FACES
}


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", faces.FACES)
def test_each_face_takes_over_a_changed_file_and_keeps_what_it_has_after_a_mistake(
    name: str, here: Path, started: list[Reloader[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ratelimit_mw")
    send = faces.FACES[name](GIVEN[name](load('limits = "2/hour"\nheaders = "legacy"')))

    def ask() -> tuple[int, list[str]]:
        answer: Answer = send(Step())
        return answer.status, answer.field("x-ratelimit-limit") or answer.field("ratelimit-policy")

    assert [ask() for _ in range(3)] == [(200, ["2"]), (200, ["2"]), (429, ["2"])]
    (reloader,) = started
    logged(caplog)
    reloader.look()
    assert (ask(), logged(caplog)) == ((429, ["2"]), [])
    change('limits = "3/hour"')
    reloader.look()
    assert logged(caplog) == [f"ratelimit_mw: {PLACE}: taken over"]
    shown = ['"default";q=3;w=3600']
    assert [ask() for _ in range(4)] == [*[(200, shown)] * 3, (429, shown)]
    logged(caplog)
    change('limits = "4/hour"\n[[rules]]\npath = "/x"\nlimits = "5/minut"')
    for _ in range(2):
        reloader.look()
    (line,) = logged(caplog)
    assert line.startswith(f"ratelimit_mw: {PLACE}: {KEPT}: {PLACE}:5: rules[0].limits: '5/minut': unknown period")
    assert ask() == (429, shown)
    change('limits = "3/hour"')
    reloader.look()
    assert (ask(), logged(caplog)) == ((429, shown), [])
    change('limits = "3/hour"\nenabled = false')
    reloader.look()
    assert [ask() for _ in range(2)] == [(200, []), (200, [])]
    change('limits = "3/hour"')
    reloader.look()
    assert ask() == (429, shown)


@pytest.mark.promise(9)
def test_a_file_that_disappears_changes_nothing_and_is_found_again(
    here: Path, started: list[Reloader[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    send = faces.FACES["wsgi"]({"settings": load('limits = "1/hour"')})
    assert [send(Step()).status for _ in range(2)] == [200, 429]
    logged(caplog)
    Path(PLACE).unlink()
    for _ in range(2):
        started[0].look()
    (line,) = logged(caplog)
    assert line.startswith(f"ratelimit_mw: {PLACE}: {KEPT}: {PLACE}: [Errno 2]")
    assert send(Step()).status == 429
    change('limits = "2/hour"')
    started[0].look()
    assert [send(Step()).status for _ in range(3)] == [200, 200, 429]


OTHERS = {
    "store": 'store = "sqlite:///other.db"',
    "store_timeout": "store_timeout = 0.2",
    "on_store_event": 'on_store_event = "call:web.settings.test_reload:logged"',
    "key_secret": 'key_secret = "another text of some length"',
    "plain_keys": "plain_keys = true",
    "metrics": "metrics = true",
    "metrics_folder": 'metrics_folder = "/run/app"',
}


def test_every_fixed_setting_has_a_row() -> None:
    assert tuple(OTHERS) == FIXED


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", FIXED)
def test_a_setting_that_needs_a_restart_keeps_all_settings(
    name: str, here: Path, started: list[Reloader[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    send = faces.FACES["wsgi"]({"settings": load('limits = "1/hour"')})
    assert send(Step()).status == 200
    logged(caplog)
    change(f'limits = "9/hour"\n{OTHERS[name]}')
    started[0].look()
    assert logged(caplog) == [
        f"ratelimit_mw: {PLACE}: {KEPT}: {PLACE}:3: {name}: {FIXED_SAYS}",
    ]
    assert send(Step()).status == 429


def test_arguments_of_the_code_take_precedence_after_a_reload_too(here: Path, started: list[Reloader[Any]]) -> None:
    send = faces.FACES["wsgi"]({"settings": load('limits = "1/hour"'), "shadow": True})
    assert [send(Step()).status for _ in range(2)] == [200, 200]
    change('limits = "1/hour"\nshadow = false\nheaders = "none"')
    started[0].look()
    answer = send(Step())
    assert (answer.status, answer.field("ratelimit")) == (200, [])


def test_requests_under_way_keep_the_settings_that_they_began_with(here: Path, started: list[Reloader[Any]]) -> None:
    """The app changes the settings during a request: the headers of its response are those of before."""
    seen: list[Any] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        change('limits = "5/hour"\nheaders = "none"')
        started[0].look()
        environ["ratelimit_mw"].settle(2)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"hello"]

    def start_response(status: str, fields: list[tuple[str, str]], _: object = None) -> Any:
        seen.append((status, [value for name, value in fields if name == "RateLimit"]))

    middleware = wsgi.RateLimitMiddleware(app, load('limits = "4/hour"'))
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1"}
    before = middleware._gate
    list(middleware({**environ}, start_response))
    assert seen == [("200 OK", ['"default";r=3;t=3600'])]
    assert middleware._gate is not before
    assert middleware._gate.store_for("store") is before.store_for("store")
    (charge,) = before.rule_set.short_way("GET", "/", "192.0.2.1", lambda _: ())[1]
    assert before.store_for("store").peek([replace(charge, cost=0)])[0].remaining == 2  # type: ignore[union-attr]  # settled


@pytest.mark.parametrize("is_async", [False, True])
def test_what_counts_requests_under_way_is_handed_over(is_async: bool, here: Path) -> None:
    make: Any = asgi.RateLimitMiddleware if is_async else wsgi.RateLimitMiddleware
    settings = load(f'limits = "2/hour"\nmax_waiting = 3\nremember_refused = 5\nstore = "sqlite:///{here}/limits.db"')
    middleware = make(_asgi_app if is_async else _wsgi_app, settings)
    before = middleware._gate
    assert before.delay_capacity.enter(["a"])
    before.nested  # noqa: B018  # made before the reload
    change(f'limits = "3/hour"\nmax_waiting = 2\nremember_refused = 5\nstore = "sqlite:///{here}/limits.db"')
    middleware._reloader.look()
    after = middleware._gate
    assert after.settings.limits == "3/hour"
    for name in ("_store", "_fallback", "_queues", "reporter"):
        assert getattr(after, name) is getattr(before, name)
    assert after.nested.store_for("store") is before.store_for("store")
    assert after.nested.store_for("local") is before.nested.store_for("local")
    assert (after.delay_capacity._free, before.delay_capacity._free) == (1, 2)
    before.delay_capacity.leave(["a"])
    assert (after.delay_capacity._free, after.delay_capacity._used_by_key) == (2, {})
    if is_async:
        assert after._settlement_queues is before._settlement_queues
    before.close() if not is_async else asyncio.run(before.close())


def test_the_gate_before_is_freed(here: Path, started: list[Reloader[Any]]) -> None:
    middleware = wsgi.RateLimitMiddleware(_wsgi_app, load('limits = "2/hour"'))
    send = faces._over_werkzeug(middleware)
    send(Step())
    before = weakref.ref(middleware._gate)
    change('limits = "3/hour"')
    started[0].look()
    send(Step())
    gc.collect()
    assert before() is None


def _wsgi_app(_: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"hello"]


async def _asgi_app(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def test_limits_of_endpoints_are_compiled_with_the_new_settings(here: Path, started: list[Reloader[Any]]) -> None:
    app = FastAPI(dependencies=[Depends(RateLimit("1/hour", store="memory://", name="own"))])

    @app.get("/x", dependencies=[Depends(RateLimit("2/hour"))])
    async def view() -> str:
        return "hello"

    app.add_middleware(asgi.RateLimitMiddleware, load('limits = []\nkey = "header:x-key"'))

    def ask(key: str) -> int:
        return statuses(app, "/x", headers={"x-key": key})[0]

    assert [ask(key) for key in ("a", "a", "b", "b")] == [200, 429, 200, 429]  # by the store of its own
    change('limits = []\nkey = "ip"')
    started[0].look()
    assert [ask(key) for key in ("c", "d", "e")] == [200, 429, 429]
    change('limits = []\nkey = "header:x-key"')
    started[0].look()
    assert [ask(key) for key in ("a", "b", "c")] == [429, 429, 200]  # that store is handed over, with what it counted


def test_limits_of_flasks_views_are_compiled_with_the_new_settings(here: Path, started: list[Reloader[Any]]) -> None:
    app = Flask(__name__)

    @app.get("/x")
    @flask_limit("1/hour")
    def view() -> str:
        return "hello"

    RateLimiter(app, load('limits = []\nkey = "header:x-key"'))
    ask = app.test_client().get
    assert [ask("/x", headers={"x-key": key}).status_code for key in "aab"] == [200, 429, 200]
    change('limits = []\nkey = "ip"')
    started[0].look()
    assert [ask("/x", headers={"x-key": key}).status_code for key in "cd"] == [200, 429]


def test_findings_are_logged_once_per_text_and_with_strict_keep_the_settings(
    here: Path, started: list[Reloader[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    weak = 'limits = "{}/hour"\nkey = "header:x-of-reload-{}"'
    send = faces.FACES["wsgi"]({"settings": load(weak.format(1, 1))})
    send(Step())
    assert "rule default: its key, header:x-of-reload-1, is written by the client" in logged(caplog)[0]
    for text, expected in [((2, 1), 0), ((2, 2), 1), ((3, 1), 0), ((3, 2), 0)]:
        change(weak.format(*text))
        started[0].look()
        assert len([line for line in logged(caplog) if "x-of-reload" in line]) == expected
    change("strict = true\n" + weak.format(9, 2))
    started[0].look()
    (line,) = logged(caplog)
    assert f"{PLACE}: {KEPT}: " in line
    assert send(Step(headers={"x-of-reload-2": "k"})).field("ratelimit-policy") == ['"default";q=3;w=3600']


def test_findings_on_routes_are_made_again(
    here: Path, started: list[Reloader[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    app = Flask(__name__)
    app.add_url_rule("/x", view_func=lambda: "hello", endpoint="x")
    RateLimiter(app, load("limits = []"))
    assert app.test_client().get("/x").status_code == 200
    logged(caplog)
    change('limits = []\n[[rules]]\npath = "/y-of-reload"\nlimits = "1/hour"')
    started[0].look()
    (line,) = logged(caplog)
    assert "/y-of-reload" in line


SETTINGS: dict[str, Any] = {}


def current() -> Any:
    """The settings of the app."""
    if "raises" in SETTINGS:
        raise RuntimeError(SETTINGS["raises"])
    return SETTINGS.get("settings", SETTINGS)


@pytest.fixture
def of_callable() -> Iterator[dict[str, Any]]:
    SETTINGS.clear()
    SETTINGS.update(limits="1/hour")
    yield SETTINGS
    SETTINGS.clear()


NAME = f"call:{__name__}:current"


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", faces.FACES)
@pytest.mark.parametrize("given", [NAME, current])
def test_each_face_takes_over_the_settings_of_a_callable(
    name: str, given: Any, started: list[Reloader[Any]], of_callable: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    send = faces.FACES[name](GIVEN[name](given))
    assert [send(Step()).status for _ in range(2)] == [200, 429]
    of_callable["limits"] = "2/hour"  # the same object with another content
    started[0].look()
    assert [send(Step()).status for _ in range(3)] == [200, 200, 429]
    logged(caplog)
    of_callable["raises"] = "secret"
    for _ in range(2):
        started[0].look()
    place = given if given == NAME else "current"
    assert logged(caplog) == [f"ratelimit_mw: {place}: {KEPT}: settings: {place} raised RuntimeError"]
    del of_callable["raises"]
    of_callable["settings"] = Settings(limits="3/hour")
    started[0].look()
    assert [send(Step()).status for _ in range(4)] == [200, 200, 200, 429]
    of_callable["settings"] = ["3/hour"]
    logged(caplog)
    started[0].look()
    assert logged(caplog) == [
        f"ratelimit_mw: {place}: {KEPT}: settings: {place} returned list, expected Settings or a mapping"
    ]


def test_settings_of_a_callable_are_found_in_a_thread_if_a_loop_runs(of_callable: dict[str, Any]) -> None:
    threads: list[str] = []

    def found() -> Any:
        threads.append(threading.current_thread().name)
        return of_callable

    async def make() -> asgi.RateLimitMiddleware:
        return asgi.RateLimitMiddleware(_asgi_app, found)

    assert asyncio.run(make()).settings.limits == "1/hour"
    assert threads == ["ratelimit_mw settings"]


def _of_a_request(request: Any) -> Any:
    return request


WRONG: list[tuple[Any, str]] = [
    (_of_a_request, "settings: _of_a_request takes (request); it is called without arguments: def _of_a_request()"),
    ("call:os:nothing", "settings: got 'call:os:nothing', expected call:PACKAGE.MODULE:FUNCTION of a function"),
    ("call:os:getcwd", "settings: call:os:getcwd returned str, expected Settings or a mapping"),
]


@pytest.mark.parametrize(("given", "text"), WRONG)
def test_a_callable_that_returns_no_settings_is_an_error(given: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        wsgi.RateLimitMiddleware(_wsgi_app, given)
    assert text in str(error.value)


async def _async_settings() -> Mapping[str, Any]:
    return {"limits": []}


def test_an_async_callable_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"settings: .*async"):
        wsgi.RateLimitMiddleware(_wsgi_app, _async_settings)  # type: ignore[arg-type]  # the mistake


def test_the_service_takes_over_limits_and_proxies(here: Path, started: list[Reloader[Any]]) -> None:
    write('reload = true\nlimits = "1/hour"\nplain_keys = true')
    secret = "sixteen-letters!"
    app = service(PLACE, secret=secret)

    def admitted() -> list[bool]:
        body, headers = b'{"path": "/", "ip": "192.0.2.9"}', {"x-ratelimit-secret": secret}
        got = answers(app, *[("POST", "/v1/check")] * 2, content=body, headers=headers)
        return [b'"allowed":true' in answer.body for answer in got]

    run_lifespan(app)
    assert admitted() == [True, False]
    change('limits = "2/hour"\nplain_keys = true\ntrusted_proxies = ["192.0.2.1"]')
    started[0].look()
    assert app.access.distrust("192.0.2.1") is None
    assert admitted() == [True, True]
    change('limits = "2/hour"\nplain_keys = true\nconcurrent = 5')  # which the service cannot apply
    started[0].look()
    assert admitted() == [False, False]


def run_lifespan(app: Any) -> None:
    """Start an ASGI app, and leave it running."""

    async def started_app() -> None:
        sent = asyncio.Event()
        messages = iter(["lifespan.startup"])

        async def receive() -> Any:
            kind = next(messages, None)
            if kind is None:
                await asyncio.Event().wait()
            return {"type": kind}

        async def send(_: Any) -> None:
            sent.set()

        running = asyncio.create_task(app({"type": "lifespan"}, receive, send))
        await sent.wait()
        running.cancel()

    asyncio.run(started_app())


def test_reload_without_a_file_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    wsgi.RateLimitMiddleware(_wsgi_app, limits="1/hour", reload=True)
    (line,) = logged(caplog)
    assert line.startswith("ratelimit_mw: reload: true, but the settings come from no file")


@pytest.mark.parametrize("text", ["", "reload = false", "reload = true\nrefresh = 0"])
def test_a_file_is_not_looked_at_unless_it_should_be(text: str, here: Path, started: list[Reloader[Any]]) -> None:
    write(f'limits = "1/hour"\n{text}')
    send = faces.FACES["wsgi"]({"settings": Settings.load(PLACE)})
    assert [send(Step()).status for _ in range(2)] == [200, 429]
    assert started == []


def test_the_metrics_show_the_settings_in_force_and_a_failed_reload(
    here: Path, started: list[Reloader[Any]], counts: Registry
) -> None:
    def shown() -> dict[tuple[str, ...], int]:
        return {labels: value for (name, labels), value in COUNTS.own_counts().items() if name == POLICY_INFO.name}

    send = faces.FACES["wsgi"]({"settings": load('limits = "1/hour"\nmetrics = true')})
    send(Step())
    ((first, state),) = shown()
    assert state == "ok"
    change('limits = "2/hour"\nmetrics = true')
    started[0].look()
    ((second, state),) = shown()
    assert (second != first, state) == (True, "ok")
    change('limits = "2/hou"\nmetrics = true')
    started[0].look()
    assert shown() == {(second, "failed"): 1}
    change('limits = "1/hour"\nmetrics = true')
    started[0].look()
    assert shown() == {(first, "ok"): 1}


# the thread


def test_the_thread_looks_and_ends_with_the_middleware(here: Path) -> None:
    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "ratelimit_mw reload"]

    before = threads()
    write('reload = true\nrefresh = 0.01\nlimits = "1/hour"')
    made = [wsgi.RateLimitMiddleware(_wsgi_app, Settings.load(PLACE))]
    assert threads() == before
    assert [faces._over_werkzeug(made[0])(Step()).status for _ in range(2)] == [200, 429]
    (thread,) = [one for one in threads() if one not in before]
    write('reload = true\nrefresh = 0.01\nlimits = "2/hour"')
    _until(lambda: made[0]._gate.settings.limits == "2/hour")
    made[0].close()
    thread.join(60)
    assert not thread.is_alive()
    made[0]._reloader.start()  # type: ignore[union-attr]  # of these settings
    (thread,) = [one for one in threads() if one not in before]
    made.clear()
    _until(lambda: gc.collect() >= 0 and not thread.is_alive())  # a look under way has a reference


def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks with threads
def test_a_forked_child_looks_too(here: Path) -> None:
    write('reload = true\nrefresh = 0.01\nlimits = "1/hour"')
    middleware = wsgi.RateLimitMiddleware(_wsgi_app, Settings.load(PLACE))
    faces._over_werkzeug(middleware)(Step())
    child = os.fork()
    if not child:
        try:
            _until(lambda: middleware._gate.settings.limits == "2/hour")
        except BaseException:  # noqa: BLE001  # the child of a test must end
            os._exit(1)
        os._exit(0)
    write('reload = true\nrefresh = 0.01\nlimits = "2/hour"')
    assert os.waitpid(child, 0) == (child, 0)
    middleware.close()


def test_a_system_without_threads_is_reported(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    send = faces.FACES["wsgi"]({"settings": load('limits = "1/hour"')})
    monkeypatch.setattr(threading.Thread, "start", fails)
    assert [send(Step()).status for _ in range(2)] == [200, 429]
    line = "ratelimit_mw: reload: no thread can be started, so nothing is reloaded: can't start new thread"
    assert [one for one in logged(caplog) if "reload" in one] == [line]


# files


def test_a_file_is_read_again_if_it_changes_while_it_is_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileSource(Path(PLACE), dict)
    write("limits = []")
    texts = ["limits = [1]", "limits = [2]"]
    real = Path.read_text

    def read_text(path: Path, *arguments: Any) -> str:
        text = real(path, *arguments)
        if texts:
            write(texts.pop(0))
        return text

    monkeypatch.setattr(Path, "read_text", read_text)
    assert source._read(waits=True)[0] == "limits = [2]"


def test_a_file_that_was_written_just_now_is_read_when_it_is_at_rest(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FileSource(Path(PLACE), dict)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            Path(PLACE).write_text("limits = [2]")  # the rest
        else:
            write("limits = [2]")

    monkeypatch.setattr(time, "sleep", sleep)
    Path(PLACE).write_text("limits = [")
    assert source._read(waits=True)[0] == "limits = [2]"
    assert slept == [0.1] * len(slept)
    assert source._read(waits=False)[0] == "limits = [2]"


def test_a_change_within_the_resolution_of_the_clock_of_files_is_seen(here: Path) -> None:
    """A file of the same size, written at the same time, is read as long as its time is close to the present."""
    source = FileSource(Path(PLACE), dict)
    Path(PLACE).write_text("limits = [1]")
    assert source.mark() is None
    write("limits = [1]")
    mark = source.mark()
    assert mark is not None
    assert source.mark() == mark
    write("limits = [2]")
    assert source.mark() != mark


def test_nothing_is_read_unless_the_file_changes(
    here: Path, started: list[Reloader[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    send = faces.FACES["wsgi"]({"settings": load('limits = "1/hour"')})
    send(Step())
    started[0].look()
    monkeypatch.setattr(Path, "read_text", None)
    started[0].look()


def test_the_folder_of_the_process_may_change(here: Path, started: list[Reloader[Any]], tmp_path: Path) -> None:
    send = faces.FACES["wsgi"]({"settings": load('limits = "1/hour"')})
    assert [send(Step()).status for _ in range(2)] == [200, 429]
    change('limits = "2/hour"')
    (tmp_path / "other").mkdir()
    os.chdir(tmp_path / "other")
    started[0].look()
    assert [send(Step()).status for _ in range(3)] == [200, 200, 429]


def test_a_store_object_of_the_code_stays(here: Path, started: list[Reloader[Any]]) -> None:
    store = RecordingStore(clock=Clock())
    send = faces.FACES["wsgi"]({"settings": load('limits = "1/hour"'), "store": store})
    assert send(Step()).status == 200
    change('limits = "2/hour"')
    started[0].look()
    assert send(Step()).status == 200
    assert [charges[0].limit.quota for verb, charges in store.calls if verb == "take"] == [1, 2]


def test_the_loop_goes_on_while_many_rules_are_built(started: list[Reloader[Any]]) -> None:
    """Counts the turns of the loop, because a busy machine stops each process at times."""
    rules = [{"path": f"/r{number}/{{x}}", "limits": f"{number + 1}/hour"} for number in range(500)]
    made: dict[str, Any] = {"limits": "1/hour", "rules": rules}
    middleware = asgi.RateLimitMiddleware(_asgi_app, lambda: made)
    assert statuses(middleware, "/") == [200]

    async def turns() -> int:
        count, task = 0, asyncio.ensure_future(asyncio.to_thread(started[0].look))
        while not task.done():
            await asyncio.sleep(0.001)
            count += 1
        await task
        return count

    made["rules"] = rules[1:]
    assert asyncio.run(turns()) >= 5
    assert len(middleware.settings.rules) == 499


def test_many_rules_are_few_objects(started: list[Reloader[Any]]) -> None:
    """Python adds them up: a full garbage collection, which stops the loop, comes when a quarter more were kept."""
    rules = [{"path": f"/r{number}/{{x}}", "limits": f"{number + 1}/hour"} for number in range(500)]
    asgi.RateLimitMiddleware(_asgi_app, limits="1/hour", rules=rules)  # makes what all such objects share
    gc.collect()
    gc.disable()  # so that what is made and dropped again counts, if only a collection would free it
    try:
        before = len(gc.get_objects())
        middleware = asgi.RateLimitMiddleware(_asgi_app, limits="1/hour", rules=rules)
        made = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert len(middleware.settings.rules) == 500
    assert made < 25 * len(rules)
