"""The middleware passes on the messages of a Starlette app unchanged and at once; it only adds its headers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ratelimit_mw import MemoryStore
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.send import App, Message
from ratelimit_mw.testing import Clock
from web.asgi_talk import HTTP, LIFESPAN, SHUTDOWN, STARTUP, Talk, talk
from web.message_order import in_order

pytestmark = pytest.mark.promise(11)

OWN = [(b"ratelimit-policy", b'"default";q=1;w=60'), (b"ratelimit", b'"default";r=0;t=60')]
SERVER = {**HTTP, "asgi": {"version": "3.0", "spec_version": "2.4"}, "query_string": b""}
OLDER_SERVER = {**SERVER, "asgi": {"version": "3.0", "spec_version": "2.3"}}  # reports a disconnect by `receive` only
SENDS_FILES: Mapping[str, Any] = {"extensions": {"http.response.pathsend": {}}}
GZIPS = {"headers": [(b"accept-encoding", b"gzip")]}
DISCONNECT = {"type": "http.disconnect"}
EVENTS = [b"data: one\n\n", b"data: two\n\n"]


def limited(app: App) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, limits="1/minute", store=MemoryStore(clock=Clock()))


async def streams(*given: Any) -> None:
    """An app that creates a response for each request, because a stream can be read only once."""
    await StreamingResponse(parts())(*given)


async def parts() -> AsyncIterator[bytes]:
    for part in EVENTS:
        yield part


class Client(Talk):
    """A client that disconnects once `lost` is set. `arrived` is set once the client has a part of the body."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived, self.lost = asyncio.Event(), asyncio.Event()

    async def receive(self) -> Message:
        await self.lost.wait()
        return DISCONNECT

    async def send(self, message: Message) -> None:
        await super().send(message)
        if message.get("body"):
            self.arrived.set()


@pytest.mark.parametrize(
    ("answer", "more", "types"),
    [
        (Response(b"whole"), {}, "start body"),
        (Response(status_code=204), {}, "start body"),
        (JSONResponse([1, 2]), {"method": "HEAD"}, "start body"),
        (RedirectResponse("/b"), {}, "start body"),
        (streams, {}, "start body body body"),
        (GZipMiddleware(streams), GZIPS, "start body body body"),
        (FileResponse(__file__), {}, "start body"),
        (FileResponse(__file__), {"headers": [(b"range", b"bytes=0-9")]}, "start body"),
        (FileResponse(__file__), SENDS_FILES, "start pathsend"),
    ],
    ids=["whole", "empty", "head", "redirect", "stream", "gzip", "file", "range", "pathsend"],
)
def test_each_message_passes_unchanged_but_for_added_headers(
    answer: ASGIApp, more: Mapping[str, Any], types: str
) -> None:
    alone, behind_us = (talk(app, SERVER, **more) for app in (answer, limited(answer)))
    assert alone.types == [f"http.response.{kind}" for kind in types.split()]
    start, *rest = alone.sent
    assert behind_us.sent == [{**start, "headers": [*start["headers"], *OWN]}, *rest]


def test_an_event_reaches_the_client_while_the_app_is_still_producing() -> None:
    async def run() -> list[Message]:
        client = Client()

        async def events() -> AsyncIterator[bytes]:
            yield EVENTS[0]
            await asyncio.wait_for(client.arrived.wait(), 20)
            yield EVENTS[1]

        answer = StreamingResponse(events(), media_type="text/event-stream")
        await client.with_app(in_order(limited(answer)), SERVER)
        return client.sent

    start, *bodies = asyncio.run(run())
    assert dict(start["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert [body["body"] for body in bodies] == [*EVENTS, b""]


def test_a_background_task_runs_after_a_response_but_not_after_a_refusal() -> None:
    seen: list[list[str]] = []
    spoken = [Talk(), Talk()]
    answer = Response(b"now", background=BackgroundTask(lambda: seen.append(spoken[0].types)))
    middleware = in_order(limited(answer))
    for each in spoken:
        asyncio.run(each.with_app(middleware, SERVER))
    assert seen == [["http.response.start", "http.response.body"]]
    assert [each.sent[0]["status"] for each in spoken] == [200, 429]


def test_an_app_receives_the_disconnect_of_its_client() -> None:
    closed = []

    async def run() -> None:
        client = Client()

        async def forever() -> AsyncIterator[bytes]:
            try:
                yield EVENTS[0]
                client.lost.set()
                await asyncio.Event().wait()
            finally:
                closed.append(len(client.sent))

        await client.with_app(limited(StreamingResponse(forever())), OLDER_SERVER)

    asyncio.run(asyncio.wait_for(run(), 20))
    assert closed == [2], "the start and one part"


def test_an_app_gets_an_error_from_send_after_a_disconnect() -> None:
    async def gone(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError

    async def run() -> None:
        await limited(StreamingResponse(parts()))({**SERVER}, Talk().receive, gone)

    with pytest.raises(ClientDisconnect):
        asyncio.run(run())


def test_canceling_a_request_cancels_the_app() -> None:
    heard = []

    async def run() -> None:
        client = Client()

        async def waits(*_: Any) -> None:
            try:
                client.arrived.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard.append("cancelled")
                raise

        task = asyncio.create_task(client.with_app(limited(waits), SERVER))
        await client.arrived.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(run())
    assert heard == ["cancelled"]


def test_lifespan_state_reaches_the_server_and_its_requests() -> None:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, str]]:
        yield {"database": "open"}

    async def home(request: Request) -> Response:
        return Response(f"{request.state.database}, {request.state.ratelimit.verdict.remaining} left")

    app = Starlette(routes=[Route("/", home)], lifespan=lifespan)
    app.add_middleware(RateLimitMiddleware, limits="1/minute", store=MemoryStore(clock=Clock()))
    state: dict[str, Any] = {}
    talk(app, LIFESPAN, STARTUP, SHUTDOWN, app=app, state=state)
    assert state == {"database": "open"}
    assert talk(app, SERVER, state=dict(state)).sent[1]["body"] == b"open, 0 left"
    assert state == {"database": "open"}


def test_scope_and_receive_of_a_lifespan_pass_unchanged() -> None:
    scope, spoken = {**LIFESPAN, "state": {}}, Talk(STARTUP)
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.extend(given[:2])

    asyncio.run(limited(app)(scope, spoken.receive, spoken.send))
    assert seen[0] is scope
    assert scope == {**LIFESPAN, "state": {}}
    assert seen[1] == spoken.receive
