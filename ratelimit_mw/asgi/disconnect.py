"""While a request waits its client may go away: what the server says meanwhile is heard, and handed on."""

import asyncio
from collections import deque
from typing import Any, Final

from ratelimit_mw.asgi.send import Message, Receive, Scope, Send
from ratelimit_mw.engine.acquire import async_sleep

_CLIENT_CLOSED_REQUEST: Final = 499  # as nginx has it: for logs, and for whoever stands further out


class ClientDisconnected(Exception):
    """Nobody waits for an answer any more."""


class DisconnectWatcher:
    """One HTTP request that may have to wait. `receive` gives every message that the server gives, once and in order.

    Of a body one message is heard at most: with more, the whole of it would be kept here.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive: Final = receive
        self._buffered: Final[deque[Message]] = deque()
        self._next: asyncio.Future[Message] | None = None  # asked for, and not given to the app
        # who is asked for the body tells such a client to send it, which is for the app to do
        self._may_receive = not any(name.lower() == b"expect" for name, _ in scope["headers"])

    async def sleep(self, seconds: float, woken: "asyncio.Future[None] | None" = None, /) -> None:
        """A `Hold`, of the same request perhaps several times. Raises `ClientDisconnected` when it leaves."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        while self._may_receive and (left := due - loop.time()) > 0:
            receiving = self._next = self._next or asyncio.ensure_future(self._receive())
            either: list[asyncio.Future[Any]] = [receiving] if woken is None else [receiving, woken]
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                return
            if receiving.cancelled() or receiving.exception() is not None:
                self._may_receive = False  # the app hears of it when it asks
                break
            self._next, message = None, receiving.result()
            self._buffered.append(message)
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            self._may_receive = not message.get("more_body", False)
        if (left := due - loop.time()) > 0:
            await async_sleep(left, woken)

    async def receive(self) -> Message:
        """The next message."""
        if self._buffered:
            return self._buffered.popleft()
        receiving, self._next = self._next, None  # an app may ask twice at one time: the second one gets the one behind
        if receiving is None:
            return await self._receive()
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            self._next = receiving  # which is for whoever asks next
            raise

    def end(self) -> None:
        """The request is answered: nobody asks any more."""
        if self._next is not None:
            self._next.cancel()


async def close(send: Send) -> None:
    """End a request of which the client has gone."""
    await send({"type": "http.response.start", "status": _CLIENT_CLOSED_REQUEST, "headers": []})
    await send({"type": "http.response.body", "body": b""})
