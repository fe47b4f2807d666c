"""Clients that disconnect before the app responds: no status was sent, so no status is counted."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi import Request as FastAPIRequest
from starlette.requests import ClientDisconnect

from ratelimit_mw import asgi
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import HTTP, START

PART = {"type": "http.request", "body": b"half of", "more_body": True}
GONE = {"type": "http.disconnect"}
REFUSED = {**START, "status": 401}


class BodyThatEnds(Exception):
    """Raised by an app that has received only half of a body."""


async def reads(_: Any, receive: Any, __: Any) -> None:
    while (message := await receive())["type"] != "http.disconnect":
        pass
    raise BodyThatEnds(message["type"])


async def answers_first(_: Any, receive: Any, send: Any) -> None:
    await send(REFUSED)
    while (await receive())["type"] != "http.disconnect":
        pass
    raise BodyThatEnds


async def fails(_: Any, receive: Any, __: Any) -> None:
    await receive()
    raise BodyThatEnds


async def returns(_: Any, receive: Any, __: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def seen(app: Any, **settings: Any) -> tuple[list[int], list[tuple[str | None, int | None]]]:
    """Return the settled units of a request whose client disconnects, and the ending and status passed to `settle`."""
    ends: list[tuple[str | None, int | None]] = []

    def settle(_: Any, response: Any) -> int:
        ends.append((response.ending, response.status))
        return 7

    store = RecordingStore(clock=Clock())
    words = {"limits": "9/hour", "store": store, "settle": settle, **settings}
    around: Any = asgi.RateLimitMiddleware(app, words) if not isinstance(app, FastAPI) else app
    if around is app:  # as users add middleware; FastAPI turns exceptions into a 500 outside of it
        app.add_middleware(asgi.RateLimitMiddleware, **words)

    async def main() -> None:
        waiting = [PART, GONE]

        async def receive() -> Any:
            return waiting.pop(0) if waiting else GONE

        async def send(_: Any) -> None: ...

        with suppress(BodyThatEnds, ClientDisconnect):
            await around({**HTTP, "method": "POST", "query_string": b""}, receive, send)

    asyncio.run(main())
    return [charge.cost for verb, charges in store.calls if verb == "settle" for charge in charges], ends


@pytest.mark.parametrize(
    ("app", "counts", "corrected", "ends"),
    [
        (reads, [401, "5xx"], [6], [("disconnected", None)]),
        (reads, ["2xx"], [6], [("disconnected", None)]),
        (reads, [], [6], [("disconnected", None)]),
        (returns, ["5xx"], [6], [("disconnected", None)]),
        (answers_first, [401], [6], [("disconnected", 401)]),
        (answers_first, ["5xx"], [-1], []),
        (fails, ["5xx"], [6], [("raised", 500)]),
        (fails, [401], [-1], []),
    ],
)
def test_disconnect_before_a_response_keeps_the_charge(app: Any, counts: Any, corrected: list[int], ends: Any) -> None:
    assert seen(app, count_status=counts) == (corrected, ends)


def test_disconnect_while_fastapi_reads_the_body_keeps_the_charge() -> None:
    app = FastAPI()

    @app.post("/")
    async def endpoint(request: FastAPIRequest) -> int:
        return len(await request.body())

    assert seen(app, count_status=["5xx"]) == ([6], [("disconnected", None)])


def test_cancellation_before_a_response_keeps_the_charge() -> None:
    """A server that stops, or a timeout around the app, cancels the request. Its status is unknown."""
    store = RecordingStore(clock=Clock())

    async def main() -> None:
        async def hangs(*_: Any) -> None:
            await asyncio.sleep(60)

        around = asgi.RateLimitMiddleware(hangs, limits="9/hour", store=store, count_status=[401])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await around(dict(HTTP), None, None)  # type: ignore[arg-type]  # nothing is received or sent

    asyncio.run(main())
    assert [verb for verb, _ in store.calls] == ["take"]
