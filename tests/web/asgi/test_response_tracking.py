"""Callbacks at the end of a response are called once, after the response, in every integration."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper

import pytest

from ratelimit_mw.asgi.tracking import TrackedApp
from ratelimit_mw.engine import gate
from ratelimit_mw.engine.response_tracking import EndReason, OnEnd, ResponseTracker, spawn, track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.views import WsgiRequest
from ratelimit_mw.testing import Clock, RecordingStore
from ratelimit_mw.wsgi.tracking import call_tracked
from web.asgi_talk import BODY, HTTP, START, WEBSOCKET, Talk
from web.faces import FACES, AppError
from web.scenario import Step
from web.wsgi_talk import Server, read

Heard = list[tuple[EndReason | None, int | None]]
LIMITED = {"limits": "5/minute", "on_decision": lambda _: None}  # not on the short way
_SECRET = "what a client sent"
STREAMED: dict[str, Any] = {**START, "headers": [(b"X-One", b"1"), (b"x-one", b"2"), (b"Set-Cookie", b"a=b")]}
PART = {**BODY, "more_body": True}


def hearing(heard: Heard) -> OnEnd:
    return lambda one: heard.append((one.response.ending, one.response.status))


def begun(heard: Heard) -> ResponseTracker:
    return ResponseTracker(None, RateLimitState(None), [hearing(heard)])


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What a callback on every admitted request receives: how the response ended, and its status."""
    found: Heard = []
    plain, coroutine = gate.Gate.admit, gate.AsyncGate.admit

    def admit(self: Any, request: Request, *more: Any) -> Any:
        verdict = plain(self, request, *more)
        request.on_end = [hearing(found)] if verdict is not None and verdict.allowed else None
        return verdict

    async def aadmit(self: Any, request: Request, *more: Any) -> Any:
        verdict = await coroutine(self, request, *more)
        request.on_end = [hearing(found)] if verdict is not None and verdict.allowed else None
        return verdict

    monkeypatch.setattr(gate.Gate, "admit", admit)
    monkeypatch.setattr(gate.AsyncGate, "admit", aadmit)
    return found


@pytest.mark.parametrize("face", FACES)
def test_each_integration_reports_how_its_responses_end(face: str, heard: Heard) -> None:
    send = FACES[face]({**LIMITED, "limits": "3/minute", "store": RecordingStore(clock=Clock())})
    assert send(Step(path="/")).status == 200
    assert heard == [("ended", 200)]
    assert send(Step(path="/stream")).body == b"onetwo"
    assert heard == [("ended", 200)] * 2
    assert send(Step(path="/error", fails=True)).status == 500
    assert heard[2:] in ([("raised", 500)], [("ended", 500)])  # the latter if the framework handles the error inside
    assert send(Step(path="/")).status == 429
    assert len(heard) == 3  # refusals are not tracked


def run(app: Any, scope: Any, *given: Any) -> tuple[Heard, list[Any], BaseException | None]:
    """Run an app. Return what callbacks received, how many messages had been sent by then, and the error raised."""
    found: Heard = []
    server = Talk(*given)
    places: list[Any] = []
    track = ResponseTracker(None, RateLimitState(None), [hearing(found), lambda _: places.append(len(server.sent))])
    watch = TrackedApp(track, app, server.receive, server.send)
    error: BaseException | None = None
    try:
        asyncio.run(watch.call({**scope}, watch.receive, watch.send))
    except BaseException as raised:  # noqa: BLE001  # the test checks the error
        error = raised
    return found, places, error


def sending(*messages: Any, then: BaseException | None = None, receives: int = 0) -> Any:
    async def app(_: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        for _ in range(receives):
            await receive()
        if then is not None:
            raise then

    return app


TRAILED = {**START, "trailers": True}
TRAILER = {"type": "http.response.trailers", "headers": [], "more_trailers": True}
WS = {"type": "websocket.accept"}
GONE = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("app", "scope", "given", "heard_of", "after"),
    [
        pytest.param(sending(START, BODY), HTTP, (), ("ended", 200), 2, id="whole"),
        pytest.param(sending(START, PART, PART, BODY, receives=1), HTTP, (GONE,), ("ended", 200), 4, id="streamed"),
        pytest.param(sending(START, BODY, then=AppError()), HTTP, (), ("ended", 200), 2, id="raised behind"),
        pytest.param(sending(then=AppError()), HTTP, (), ("raised", 500), 0, id="raised before"),
        pytest.param(sending(START, PART, then=AppError()), HTTP, (), ("raised", 200), 2, id="raised midway"),
        pytest.param(sending(then=asyncio.CancelledError()), HTTP, (), ("cancelled", None), 0, id="cancelled"),
        pytest.param(sending(START, PART, receives=1), HTTP, (GONE,), ("disconnected", 200), 2, id="gone"),
        pytest.param(
            sending(TRAILED, BODY, TRAILER, {**TRAILER, "more_trailers": False}),
            HTTP,
            (),
            ("ended", 200),
            4,
            id="trailers",
        ),
        pytest.param(
            sending(START, {"type": "http.response.pathsend", "path": "/f"}), HTTP, (), ("ended", 200), 2, id="a path"
        ),
        pytest.param(
            sending(START, {"type": "http.response.zerocopysend", "more_body": True}, BODY),
            HTTP,
            (),
            ("ended", 200),
            3,
            id="zero copy",
        ),
        pytest.param(sending(), HTTP, (), ("ended", None), 0, id="nothing"),
        pytest.param(
            sending(WS, {"type": "websocket.send"}, {"type": "websocket.close"}),
            WEBSOCKET,
            (),
            ("ended", 101),
            3,
            id="websocket",
        ),
        pytest.param(sending({"type": "websocket.close"}), WEBSOCKET, (), ("ended", 403), 1, id="not accepted"),
        pytest.param(
            sending(WS, receives=1), WEBSOCKET, ({"type": "websocket.disconnect"},), ("disconnected", 101), 1, id="left"
        ),
        pytest.param(
            sending({**START, "type": "websocket.http.response.start", "status": 401}),
            WEBSOCKET,
            (),
            ("ended", 401),
            1,
            id="denied",
        ),
    ],
)
def test_asgi_callbacks_receive_the_ending_and_status_at_the_end(
    app: Any, scope: Any, given: tuple[Any, ...], heard_of: tuple[EndReason, int | None], after: int
) -> None:
    found, places, error = run(app, scope, *given)
    assert found == [heard_of]
    assert places == [after]
    if heard_of[0] in ("raised", "cancelled"):
        assert isinstance(error, (AppError, asyncio.CancelledError))


def test_malformed_and_unknown_asgi_messages_pass_through() -> None:
    """A start message without a status, and a message of an unknown type."""
    odd = ({"type": "http.response.start"}, {"type": "http.response.debug", "info": 1}, BODY)
    found, places, error = run(sending(*odd), HTTP)
    assert (found, places, error) == ([("ended", None)], [3], None)


def test_response_headers_are_text_with_repeated_fields_joined() -> None:
    one = begun([])
    one.response.started(200, STREAMED["headers"])
    assert one.response.headers == {"x-one": "1, 2", "set-cookie": "a=b"}
    one.response.started(201, [("X-Two", "\xe9")])
    assert (one.response.status, one.response.headers) == (201, {"x-two": "\xe9"})
    assert (one.response.headers["X-Two"], one.response.headers.get("X-One")) == ("\xe9", None)


def test_a_raising_callback_is_logged_and_the_others_run_once(caplog: pytest.LogCaptureFixture) -> None:
    found: Heard = []

    def raises(_: ResponseTracker) -> None:
        raise AppError(_SECRET)

    one = ResponseTracker(None, RateLimitState(None), [raises, hearing(found)])
    one.end("raised")
    one.end("ended")
    assert found == [("raised", 500)]
    assert "AppError" in caplog.text
    assert _SECRET not in caplog.text


def test_an_inner_middleware_adds_its_callbacks_to_the_outer_tracker() -> None:
    found: Heard = []
    first, second = hearing(found), hearing(found)
    state, request = RateLimitState(None), WsgiRequest({}, None)
    request.on_end = [first]
    outer = track_response(request, state)
    assert outer is not None
    request.on_end = [first, second]
    assert track_response(request, state) is None
    outer.end("ended")
    assert found == [("ended", None)] * 2
    assert state.tracker is None


def test_spawn_runs_coroutines_as_tasks_of_the_event_loop() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("here")

    async def fails() -> None:
        raise AppError

    async def main() -> None:
        one = ResponseTracker(None, RateLimitState(None), [], asyncio.get_running_loop())
        one.spawn(fails)
        one.spawn(work)
        assert done == []
        await asyncio.to_thread(one.spawn, work)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == ["here", "here"]

    asyncio.run(main())
    with pytest.raises(RuntimeError):
        spawn(work)


class Body:
    """An iterable of two parts that records when it is closed."""

    def __init__(self, notes: list[str], *, fails: bool = False) -> None:
        self.notes, self.fails = notes, fails

    def __iter__(self) -> Iterator[bytes]:
        yield b"one"
        if self.fails:
            raise AppError
        yield b"two"

    def close(self) -> None:
        self.notes.append("closed")


def wsgi_followed(body: Callable[[], Iterable[bytes]], *fields: tuple[str, str], notes: list[Any]) -> Any:
    server = Server()
    server.environ["wsgi.file_wrapper"] = FileWrapper
    one = ResponseTracker(
        None, RateLimitState(None), [lambda one: notes.append((one.response.ending, one.response.status))]
    )

    def app(_: Any, start_response: Any) -> Iterable[bytes]:
        start_response("201 Created", list(fields))
        return body()

    return call_tracked(app, server.environ, server.start_response, one)


def test_a_wsgi_response_ends_when_the_server_has_closed_it() -> None:
    notes: list[Any] = []
    parts = wsgi_followed(lambda: Body(notes), notes=notes)
    assert b"".join(parts) == b"onetwo"
    assert notes == []
    parts.close()
    parts.close()
    assert notes == ["closed", ("ended", 201), "closed"]


def test_a_wsgi_body_with_content_length_ends_without_close() -> None:
    notes: list[Any] = []
    parts = wsgi_followed(lambda: Body(notes), ("Content-Length", "6"), notes=notes)
    assert next(parts) + next(parts) == b"onetwo"
    assert notes == []
    assert list(parts) == []
    assert notes == [("ended", 201)]


def test_wsgi_disconnects_and_app_errors_are_reported() -> None:
    notes: list[Any] = []
    parts = wsgi_followed(lambda: Body(notes), notes=notes)
    next(parts)
    parts.close()
    assert notes == ["closed", ("disconnected", 201)]
    parts = wsgi_followed(lambda: Body(notes, fails=True), notes=notes)
    with pytest.raises(AppError):
        read(parts)
    assert notes[2:] == [("raised", 201), "closed"]

    def fails() -> Any:
        raise AppError

    with pytest.raises(AppError):
        wsgi_followed(fails, notes=notes)
    assert notes[4:] == [("raised", 500)]


def test_tracked_wsgi_lists_keep_their_length_and_files_their_class(tmp_path: Any) -> None:
    notes: list[Any] = []
    assert len(wsgi_followed(lambda: [b"one"], notes=notes)) == 1
    assert not hasattr(wsgi_followed(lambda: Body(notes), notes=notes), "__len__")
    (tmp_path / "file").write_bytes(b"onetwo")
    file = (tmp_path / "file").open("rb")
    wrapper = wsgi_followed(lambda: FileWrapper(file), notes=notes)
    assert type(wrapper) is FileWrapper
    assert read(wrapper) == b"onetwo"
    assert file.closed
    assert notes == [("ended", 201)]
