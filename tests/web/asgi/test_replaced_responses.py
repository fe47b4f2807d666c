"""Tests that a replaced response, which nothing closes, keeps neither slots nor memory."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
from django.http import FileResponse, HttpRequest, HttpResponse
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Flask, Response, send_file
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import create_environ

from ratelimit_mw import asgi, wsgi
from ratelimit_mw.asgi.tracking import MIDDLEWARE_REGISTRY
from ratelimit_mw.core.events import DecisionEvent
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import HTTP
from web.django_ask import BOTH, Site
from web.django_site import OURS, asgi_site, wsgi_site

CONDITIONAL = "django.middleware.http.ConditionalGetMiddleware"
COMMON = "django.middleware.common.CommonMiddleware"
SLOTS: dict[str, Any] = {"limits": [], "concurrent": 1, "key": "all"}


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep endpoint limits of this module from making middlewares of other tests track responses."""
    monkeypatch.setattr(MIDDLEWARE_REGISTRY, "tracking_required", False)
    monkeypatch.setattr(MIDDLEWARE_REGISTRY, "_middleware", weakref.WeakSet())


def report(_: HttpRequest) -> HttpResponse:
    return HttpResponse("the report")


@pytest.mark.promise(7)
@BOTH
def test_slots_are_released_if_django_replaces_a_response_by_304_or_a_redirect(site: Site) -> None:
    """Django's own middleware drops the response of the view, and does not close it."""
    ask = site([path("report", report), path("slash/", report)], SLOTS, CONDITIONAL, COMMON, OURS)
    (tag,) = ask("/report").field("etag")
    again = [ask("/report", headers={"If-None-Match": tag}).status for _ in range(3)]
    assert (again, [ask("/slash").status for _ in range(3)], ask("/slash/").status) == ([304] * 3, [301] * 3, 200)


@pytest.mark.promise(7)
@BOTH
def test_count_status_reads_the_status_of_the_replaced_response(site: Site) -> None:
    """The outer middleware responds with 304, but the view responded with 200."""
    store = RecordingStore(clock=Clock())
    settings = {"limits": "9/hour", "count_status": [404], "store": store}
    ask = site([path("report", report)], settings, CONDITIONAL, OURS)
    (tag,) = ask("/report").field("etag")
    assert ask("/report", headers={"If-None-Match": tag}).status == 304
    assert [[charge.cost for charge in charges] for verb, charges in store.calls if verb == "settle"] == [[-1], [-1]]


def flask_app(**options: Any) -> Flask:
    app = Flask("shop")

    @app.after_request  # registered before the extension, so it runs after it
    def replaced(response: Response) -> Response:
        return Response("another") if response.status_code == 200 else response

    RateLimiter(app, **options)
    app.add_url_rule("/", "home", lambda: "hello")
    return app


@pytest.mark.promise(7)
def test_slots_are_released_if_flask_replaces_the_response_after_the_extension() -> None:
    client, answers = flask_app(**SLOTS).test_client(), []
    for _ in range(3):
        with client.get("/") as answer:
            answers.append((answer.status_code, answer.get_data(as_text=True)))
    assert answers == [(200, "another")] * 3


class Wrapper:
    """A server's `wsgi.file_wrapper`. The server sends such an object without reading it in Python."""

    def __init__(self, file: Any, _: int = 8192) -> None:
        self.file = file
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        return iter([self.file.read()])

    def close(self) -> None:
        self.closed = True


class Slotted:
    """A body on which no other attribute can be set."""

    __slots__ = ("closed",)

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"hello"])

    def close(self) -> None:
        self.closed = True


def _file() -> Response:
    return send_file(BytesIO(b"hello"), "text/plain")


def _passed_through(body: Any) -> Response:
    return Response(body, direct_passthrough=True)


FILES: dict[str, Callable[[], Response]] = {
    "file": _file,
    "iterator": lambda: _passed_through(iter([b"hello"])),
    "slotted": lambda: _passed_through(Slotted()),
}


@pytest.mark.promise(7)
@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapper of the server", "wrapper of werkzeug"])
@pytest.mark.parametrize("body", FILES)
def test_slots_and_charges_are_settled_when_flask_has_sent_a_file(body: str, wrapped: bool) -> None:
    """Werkzeug passes the file to the server as it is. The server closes only the file, not Flask's response."""
    store = RecordingStore(clock=Clock())
    app = Flask("shop")
    limiter = RateLimiter(app, store=store, **SLOTS)

    @app.get("/")
    @limiter.limit("9/hour", count_status=[401], final=False)
    def file() -> Response:
        return FILES[body]()

    for _ in range(3):
        environ = create_environ("/", environ_overrides={"REMOTE_ADDR": "192.0.2.1"})
        if wrapped:
            environ["wsgi.file_wrapper"] = Wrapper
        statuses: list[str] = []
        sent = app.wsgi_app(environ, lambda status, _, statuses=statuses: statuses.append(status) or len)
        assert (statuses, b"".join(sent)) == (["200 OK"], b"hello")
        assert isinstance(sent, Wrapper) == (wrapped and body == "file")  # recognized by the server
        sent.close()  # type: ignore[attr-defined]  # as a server does
        assert not isinstance(sent, Wrapper) or sent.closed
    settled = [charge.cost for verb, charges in store.calls if verb == "settle" for charge in charges]
    assert settled == [-1] * 6  # per request: its slot, and its charge, because its status does not count


SAME = HttpResponse("fine")


@pytest.mark.promise(7)
def test_a_shared_django_response_keeps_no_requests_in_memory() -> None:
    """Only the responses that replace the shared one are ever closed."""
    requests: weakref.WeakSet[Any] = weakref.WeakSet()

    def same(request: HttpRequest) -> HttpResponse:
        requests.add(request)
        return SAME

    settings = {"limits": "99/hour", "count_status": [404], "key": "all", "store": RecordingStore(clock=Clock())}
    app = wsgi_site([path("", same)], settings, (CONDITIONAL, OURS))
    for _ in range(20):
        body = app(create_environ("/", headers={"If-None-Match": "*"}), _started)
        body.close()
        del body
    gc.collect()
    assert (len(requests), len(SAME._resource_closers)) == (0, 0)  # type: ignore[attr-defined]  # Django's


# memory: each maker returns a function that serves one request, and closes its response if `close` is true

Serve = Callable[[weakref.WeakSet[Any], bool], None]


class Marked:
    """An object that lives as long as the request that has it in its environ or scope."""


def _over_wsgi(app: Any) -> Serve:
    def serve(alive: weakref.WeakSet[Any], close: bool) -> None:
        mark = Marked()
        alive.add(mark)
        body = app(create_environ("/", environ_overrides={"REMOTE_ADDR": "192.0.2.1", "mark": mark}), _started)
        next(iter(body))
        if close:
            body.close()

    return serve


def _started(*_: Any) -> Callable[[bytes], object]:
    return len


def _over_asgi(app: Any) -> Serve:
    async def send(_: Any) -> None: ...

    def serve(alive: weakref.WeakSet[Any], _: bool) -> None:
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.Event().wait()  # the client stays connected

        mark = Marked()
        alive.add(mark)
        asyncio.run(app({**HTTP, "query_string": b"", "mark": mark}, receive, send))

    return serve


def _wsgi(options: Any) -> Serve:
    def app(_: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield from (b"a", b"b")

    return _over_wsgi(wsgi.RateLimitMiddleware(app, **options))


def _flask(options: Any) -> Serve:
    return _over_wsgi(flask_app(**options).wsgi_app)


def file_view(_: HttpRequest) -> FileResponse:
    return FileResponse(iter([b"a", b"b"]))


def _django(options: Any) -> Serve:
    return _over_wsgi(wsgi_site([path("", file_view)], options, (OURS,)))


def _django_asgi(options: Any) -> Serve:
    return _over_asgi(asgi_site([path("", report)], options, (OURS,)))


async def home(_: Any) -> PlainTextResponse:
    return PlainTextResponse("hello")


def _starlette(options: Any) -> Serve:
    return _over_asgi(asgi.RateLimitMiddleware(Starlette(routes=[Route("/", home)]), **options))


def _fastapi(options: Any) -> Serve:
    app = FastAPI()
    limit = RateLimit("99/hour", count_status=[401])
    app.add_api_route("/", lambda: 1, dependencies=[Depends(limit)])
    return _over_asgi(asgi.RateLimitMiddleware(app, **options))


def keep_event(event: DecisionEvent) -> None:
    """Attach the event to its own request, as an app may do to log it at the end."""
    raw = event.request.raw
    (raw if isinstance(raw, dict) else vars(raw))["event"] = event


MAKERS = [_wsgi, _flask, _django, _django_asgi, _starlette, _fastapi]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"limits": "999/hour"},
    "count_status": {"limits": "999/hour", "count_status": [401]},
    "concurrent": {"limits": [], "concurrent": 99},
    "on_decision": {"limits": "999/hour", "on_decision": keep_event},
}


@pytest.mark.promise(7)
@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", MAKERS)
def test_no_request_stays_in_memory(make: Any, options: str, close: bool) -> None:
    """The garbage collector frees the request, also if the server does not close the response."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    serve = make({**OPTIONS[options], "key": "ip", "store": RecordingStore(clock=Clock())})
    for _ in range(20):
        serve(alive, close)
    gc.collect()
    assert len(alive) <= 1  # a framework may keep its last request


@pytest.mark.promise(7)
def test_a_request_and_its_body_are_freed_when_the_response_is_closed() -> None:
    """The garbage collector is off, because a process may receive many bodies before it runs."""
    requests: weakref.WeakSet[Any] = weakref.WeakSet()

    def receive(request: HttpRequest) -> HttpResponse:
        requests.add(request)
        return HttpResponse(request.body)

    settings = {"limits": "9/hour", "count_status": [404], "key": "all", "store": RecordingStore(clock=Clock())}
    app = wsgi_site([path("", receive)], settings, (OURS,))
    gc.disable()
    try:
        body = app(create_environ("/", method="POST", data=b"hello"), _started)
        assert (b"".join(body), len(requests)) == (b"hello", 1)
        body.close()
        del body
        assert len(requests) == 0
    finally:
        gc.enable()
