"""While a server does not return from `send`, only a disconnect of the client releases the slot."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ratelimit_mw import asgi
from ratelimit_mw.asgi import tracking
from ratelimit_mw.asgi.send import App, Message
from web.asgi_talk import BODY, HTTP, START

PART = {"type": "http.response.body", "body": b"part", "more_body": True}
GONE = {"type": "http.disconnect"}
WHOLE = {"type": "http.request", "body": b"", "more_body": False}
TURNS = 200  # turns of the event loop, enough to finish all work that is due


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_PATIENCE", 0)


def body(size: int) -> Message:
    return {"type": "http.request", "body": b"x" * size, "more_body": True}


class Stuck:
    """A server whose `send` of a body waits. `talk`: the task of the request that has the slot."""

    def __init__(self, app: App) -> None:
        self.limited = asgi.RateLimitMiddleware(app, limits=[], concurrent=1)
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.returns = asyncio.Event()
        self.talk = asyncio.create_task(self.limited({**HTTP}, self.messages.get, self.send))

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            await self.returns.wait()

    async def is_free(self) -> bool:
        """Run the event loop for a while, then return whether another request gets the slot."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        statuses: list[int] = []

        async def send(message: Message) -> None:
            statuses.append(message.get("status", 0))

        async def receive() -> Message:
            return WHOLE

        await self.limited({**HTTP, "path": "/other"}, receive, send)
        return statuses[0] == 200


def run(app: App, play: Callable[[Stuck], Awaitable[None]]) -> None:
    async def around(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/other":
            await send(START)
            await send(BODY)
        else:
            await app(scope, receive, send)

    async def main() -> None:
        stuck = Stuck(around)
        try:
            await play(stuck)
        finally:
            stuck.talk.cancel()
            await asyncio.wait([stuck.talk])

    asyncio.run(main())


async def answers(_: Any, __: Any, send: Any) -> None:
    await send(START)
    await send(BODY)


@pytest.mark.parametrize("before", [[], [WHOLE], [body(70_000), body(70_000)]], ids=["none", "whole", "long body"])
def test_a_disconnect_during_the_last_send_releases_the_slot(before: list[Message]) -> None:
    async def play(stuck: Stuck) -> None:
        for message in before:
            stuck.messages.put_nowait(message)
        assert not await stuck.is_free()
        stuck.messages.put_nowait(GONE)
        assert await stuck.is_free()

    run(answers, play)


def test_a_disconnect_while_a_body_part_is_sent_releases_the_slot() -> None:
    async def app(_: Any, __: Any, send: Any) -> None:
        await send(START)
        await send(PART)
        await send(BODY)

    async def play(stuck: Stuck) -> None:
        stuck.messages.put_nowait(WHOLE)
        assert not await stuck.is_free()
        stuck.messages.put_nowait(GONE)
        assert await stuck.is_free()

    run(app, play)


def test_an_app_that_continues_after_a_disconnect_keeps_its_slot() -> None:
    """uvicorn returns from `send` when the client has disconnected, and the app may go on."""
    works = asyncio.Event()

    async def app(_: Any, __: Any, send: Any) -> None:
        await send(START)
        await send(PART)
        await works.wait()

    async def play(stuck: Stuck) -> None:
        assert not await stuck.is_free()
        stuck.returns.set()
        stuck.messages.put_nowait(GONE)
        assert not await stuck.is_free()
        works.set()
        assert await stuck.is_free()

    run(app, play)


def test_an_app_that_receives_during_a_stuck_send_gets_the_disconnect() -> None:
    got: list[Message] = []

    async def app(_: Any, receive: Any, send: Any) -> None:
        async def listen() -> None:
            got.append(await receive())

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        await send(START)
        await send(BODY)
        await listening

    async def play(stuck: Stuck) -> None:
        assert not await stuck.is_free()
        stuck.messages.put_nowait(GONE)
        assert await stuck.is_free()
        assert got == [GONE]

    run(app, play)


@pytest.mark.promise(11)
def test_the_app_receives_messages_that_were_read_during_a_stuck_send() -> None:
    """The app receives each message once and in order, also while `send` still waits."""
    got: list[Message] = []
    sent = [body(1), body(2), body(3), WHOLE, GONE]

    async def app(_: Any, receive: Any, send: Any) -> None:
        await send(START)
        sending = asyncio.create_task(send(PART))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        got.append(await receive())
        await sending
        while got[-1] is not GONE:
            got.append(await receive())

    async def play(stuck: Stuck) -> None:
        for message in sent[:2]:
            stuck.messages.put_nowait(message)
        assert not await stuck.is_free()
        assert not await stuck.is_free()
        stuck.returns.set()
        for message in sent[2:]:
            stuck.messages.put_nowait(message)
        await stuck.talk
        assert got == sent

    run(app, play)


@pytest.mark.promise(11)
@pytest.mark.parametrize(("size", "read"), [(30_000, 3), (65_535, 2), (65_536, 1)])
def test_reading_ends_at_the_message_that_exceeds_64_kilobytes(size: int, read: int) -> None:
    """Each message counts as its body and one byte more."""

    async def app(_: Any, __: Any, send: Any) -> None:
        await send(START)
        await send(PART)

    async def play(stuck: Stuck) -> None:
        for _ in range(10):
            stuck.messages.put_nowait(body(size))
        assert not await stuck.is_free()
        assert stuck.messages.qsize() == 10 - read

    run(app, play)
