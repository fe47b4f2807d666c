"""Tests that message limits never lose, change or repeat a message, also on a close, a cancellation or a send."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import Charge, Decision, Limiter, MemoryStore
from ratelimit_mw.asgi.send import Message
from ratelimit_mw.testing import Clock
from web.asgi_talk import WEBSOCKET, Talk
from web.websocket_talk import ACCEPT, CLOSED, CONNECT, ENDED, GONE, Echo, Wire, limited, says, spoken

pytestmark = pytest.mark.promise(11)

ONE, TWO, THREE = (says(text) for text in ("one", "two", "three"))
Body = Callable[[Any, Any], Awaitable[None]]


class Waits(MemoryStore):
    """A store that decides once `may` is set, and counts its takes in `asked`."""

    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.may = asyncio.Event()
        self.asked = 0

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        self.asked += 1
        await self.may.wait()
        return self.take(charges)


def playing(body: Body, wire: Talk, **settings: Any) -> None:
    """Run an app that accepts a websocket and then runs `body`."""

    async def app(_: Any, receive: Any, send: Any) -> None:
        assert await receive() is CONNECT
        await send(ACCEPT)
        await body(receive, send)

    if "store" not in settings:
        settings["store"] = MemoryStore(clock=Clock())
    asyncio.run(wire.with_app(limited(app, store_timeout=60.0, **settings), WEBSOCKET))


async def started(awaitable: Awaitable[Message]) -> "asyncio.Task[Message]":
    """Return a task that has started and now waits."""
    task = asyncio.ensure_future(awaitable)
    for _ in range(5):
        await asyncio.sleep(0)
    assert isinstance(task, asyncio.Task)
    assert not task.done()
    return task


async def cancelled(task: "asyncio.Task[Message]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# closing


def test_after_the_close_receives_return_disconnect_and_sends_do_nothing() -> None:
    async def body(receive: Any, send: Any) -> None:
        assert await receive() is ONE
        assert [await receive() for _ in range(4)] == [ENDED] * 4
        for kind in ("websocket.send", "websocket.close", "websocket.accept", "of.another.century"):
            await send({"type": kind})
        assert await receive() == ENDED

    wire = Wire(ONE, TWO, THREE)
    playing(body, wire, messages="1/second")
    assert wire.sent == [ACCEPT, CLOSED]
    assert wire.receives == 3


def test_a_send_in_progress_during_the_close_raises_no_error() -> None:
    class Late(Wire):
        """A server that waits before it sends, as with a full buffer, and raises if the connection was closed."""

        async def send(self, message: Message) -> None:
            while message["type"] == "websocket.send":
                await asyncio.sleep(0)
                if CLOSED in self.sent:
                    raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")
            await super().send(message)

    async def body(receive: Any, send: Any) -> None:
        assert await receive() is ONE
        sending = asyncio.create_task(send({"type": "websocket.send", "text": "late"}))
        await started(sending)
        assert await receive() == ENDED
        await sending

    wire = Late(ONE, TWO)
    playing(body, wire, messages="1/second")
    assert wire.sent == [ACCEPT, CLOSED]


def test_closing_to_a_disconnected_client_raises_no_error() -> None:
    class Broken(Wire):
        async def send(self, message: Message) -> None:
            if message["type"] == "websocket.close":
                raise OSError("the client has gone")
            await super().send(message)

    async def body(receive: Any, _: Any) -> None:
        assert [await receive() for _ in range(2)] == [ONE, ENDED]

    playing(body, Broken(ONE, TWO), messages="1/second")


def test_server_errors_before_a_close_reach_the_app() -> None:
    class Broken(Wire):
        async def send(self, message: Message) -> None:
            if message["type"] == "websocket.send":
                raise OSError("the client has gone")

    async def body(receive: Any, send: Any) -> None:
        await receive()
        with pytest.raises(OSError, match="the client has gone"):
            await send({"type": "websocket.send", "text": "one"})

    playing(body, Broken(ONE), messages="1/second")


def test_a_websocket_that_the_app_closed_is_not_closed_again() -> None:
    own = {"type": "websocket.close", "code": 1000}

    async def body(receive: Any, send: Any) -> None:
        assert await receive() is ONE
        await send(own)
        assert await receive() is GONE

    wire = Wire(ONE, TWO, THREE)
    playing(body, wire, messages="1/second")
    assert wire.sent == [ACCEPT, own]


def test_messages_before_the_accept_are_limited_too() -> None:
    """Real servers send no such message."""

    async def app(_: Any, receive: Any, __: Any) -> None:
        assert [await receive() for _ in range(3)] == [CONNECT, ONE, ENDED]

    wire = asyncio.run(spoken(limited(app, messages="1/second", store=MemoryStore(clock=Clock())), ONE, TWO))
    assert wire.sent == [CLOSED]


def test_without_message_limits_the_app_gets_the_servers_receive_and_send() -> None:
    got: list[Any] = []

    async def app(_: Any, receive: Any, send: Any) -> None:
        got.append((receive, send))

    cases: list[dict[str, Any]] = [{}, {"messages": []}, {"messages": lambda _: []}, {"messages": "9/second"}]
    cases[-1]["exempt"] = ["/"]
    for settings in cases:
        wire = Wire()
        asyncio.run(wire.with_app(limited(app, **settings), WEBSOCKET))
        assert got == [(wire.receive, wire.send)]
        got.clear()


# canceling


@pytest.mark.promise(2)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("answered", ["before the next receive", "in the next receive"])
def test_a_receive_canceled_during_a_store_call_loses_no_message(answered: str, times: int) -> None:
    async def body(receive: Any, _: Any) -> None:
        for _ in range(times):
            await cancelled(await started(receive()))
        if answered == "before the next receive":
            store.may.set()
            for _ in range(5):
                await asyncio.sleep(0)
            assert await receive() is ONE
        else:
            waiting = await started(receive())
            store.may.set()
            assert await waiting is ONE
        assert (store.asked, wire.receives) == (1, 2)
        assert await receive() is TWO
        assert await receive() == ENDED

    wire, store = Wire(ONE, TWO, THREE), Waits()
    playing(body, wire, messages="2/second", store=store)
    assert (store.asked, wire.sent) == (3, [ACCEPT, CLOSED])


@pytest.mark.parametrize("mode", ["close", "drop"])
def test_a_message_refused_after_its_receive_was_canceled_stays_refused(mode: Any) -> None:
    async def body(receive: Any, _: Any) -> None:
        store.may.set()
        assert await receive() is ONE
        store.may.clear()
        await cancelled(await started(receive()))
        store.may.set()
        assert await receive() == (ENDED if mode == "close" else GONE)

    wire, store = Wire(ONE, TWO), Waits()
    playing(body, wire, messages="1/second", store=store, on_message_refused=mode)
    assert store.asked == 2


def test_a_receive_canceled_during_the_close_still_closes_the_websocket_once() -> None:
    class Slow(Wire):
        def __init__(self, *given: Message) -> None:
            super().__init__(*given)
            self.may = asyncio.Event()

        async def send(self, message: Message) -> None:
            if message["type"] == "websocket.close":
                await self.may.wait()
            await super().send(message)

    async def body(receive: Any, send: Any) -> None:
        assert await receive() is ONE
        await cancelled(await started(receive()))
        assert await receive() == ENDED
        await send({"type": "websocket.close", "code": 1000})
        wire.may.set()
        for _ in range(5):
            await asyncio.sleep(0)

    wire = Slow(ONE, TWO)
    playing(body, wire, messages="1/second")
    assert wire.sent == [ACCEPT, CLOSED]


def test_a_receive_canceled_before_a_message_arrives_loses_no_message() -> None:
    class Silent(Wire):
        def __init__(self) -> None:
            super().__init__()
            self.queue = asyncio.Queue[Message]()
            self.queue.put_nowait(CONNECT)

        async def receive(self) -> Message:
            return await self.queue.get()

    async def body(receive: Any, _: Any) -> None:
        await cancelled(await started(receive()))
        wire.queue.put_nowait(ONE)
        assert await receive() is ONE

    wire = Silent()
    playing(body, wire, messages="1/second")


def test_an_app_that_ends_during_a_store_call_causes_no_more_calls_or_sends() -> None:
    async def body(receive: Any, _: Any) -> None:
        await cancelled(await started(receive()))
        store.may.set()

    wire, store = Wire(ONE), Waits()
    playing(body, wire, messages="1/second", store=store)
    assert (store.asked, wire.sent) == (1, [ACCEPT])


# arbitrary messages of a client

MESSAGES = st.one_of(
    st.text(max_size=5).map(lambda text: {"type": "websocket.receive", "text": text}),
    st.binary(max_size=5).map(lambda data: {"type": "websocket.receive", "bytes": data, "text": None}),
    st.sampled_from([{"type": "websocket.of.another.century"}, {"type": "lifespan.startup"}]),
)
LIMITS = st.sampled_from(["2/second", "3/second using gcra", "1/second using fixed_window", "2/second; 5/3 seconds"])


@pytest.mark.promise(3)
@given(st.lists(st.one_of(MESSAGES, st.floats(0, 2)), max_size=30), LIMITS, st.sampled_from(["close", "drop"]))
def test_messages_that_the_model_admits_reach_the_app_unchanged_and_in_order(
    steps: list[Any], limits: Any, mode: Any
) -> None:
    clock, model_clock = Clock(), Clock()
    model, expected, end = Limiter(MemoryStore(clock=model_clock)), [CONNECT], GONE
    for step in steps:
        if isinstance(step, float):
            model_clock.advance(step)
        elif step["type"] != "websocket.receive" or model.hit(limits, "client").allowed:
            expected.append(step)
        elif mode == "close":
            end = ENDED
            break
    moves = [step if isinstance(step, dict) else lambda by=step: clock.advance(by) for step in steps]
    app = Echo()
    one = limited(app, messages=limits, on_message_refused=mode, store=MemoryStore(clock=clock))
    asyncio.run(spoken(one, *moves))
    assert [id(message) for message in app.got[:-1]] == [id(message) for message in expected]
    assert app.got[-1] == end
