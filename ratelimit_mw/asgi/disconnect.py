"""Detects that a client disconnects while its request is delayed."""

import asyncio
from collections import deque
from typing import Any, Final

from ratelimit_mw.asgi.send import Message, Receive, Scope, Send
from ratelimit_mw.engine.runtime import async_sleep

_CLIENT_CLOSED_REQUEST: Final = 499  # nginx's status; only logs and outer middleware see it


class ClientDisconnected(Exception):
    """Raised when the client disconnects during a delay."""


class DisconnectWatcher:
    """Watches one HTTP request for a disconnect while it is delayed.

    To notice a disconnect, it reads messages before the app does. `receive` then passes these messages to the app, once
    and in order. It reads at most one message of the body, so a large body is not buffered.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive: Final = receive
        self._buffered: Final[deque[Message]] = deque()
        self._next: asyncio.Future[Message] | None = None  # a pending receive, not yet passed to the app
        # With `Expect: 100-continue`, receiving makes the server ask the client for the body. Only the app may decide
        # that, so such a request sleeps to the end of its delay, even if its client disconnects.
        self._may_receive = not any(name.lower() == b"expect" for name, _ in scope["headers"])

    async def sleep(self, seconds: float, woken: "asyncio.Future[None] | None" = None, /) -> None:
        """Sleep so many seconds, or until `woken` is done. Can be called repeatedly. Raises `ClientDisconnected`."""
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds
        while self._may_receive and (left := due - loop.time()) > 0:
            receiving = self._next = self._next or asyncio.ensure_future(self._receive())
            either: list[asyncio.Future[Any]] = [receiving] if woken is None else [receiving, woken]
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                return
            if receiving.cancelled() or receiving.exception() is not None:
                self._may_receive = False  # the app's next receive() raises it
                break
            self._next, message = None, receiving.result()
            self._buffered.append(message)
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            # the next message may be the rest of the body, which is not buffered, so watch no longer
            self._may_receive = not message.get("more_body", False)
        if (left := due - loop.time()) > 0:
            await async_sleep(left, woken)

    async def receive(self) -> Message:
        """Return the next message."""
        if self._buffered:
            return self._buffered.popleft()
        # taken over by this call, so that a concurrent receive() waits for the message after it
        receiving, self._next = self._next, None
        if receiving is None:
            return await self._receive()
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            self._next = receiving  # for the next receive()
            raise

    def end(self) -> None:
        """Cancel the pending receive once the request is answered."""
        if self._next is not None:
            self._next.cancel()


async def send_client_closed(send: Send) -> None:
    """Send an empty response with status 499 after the client has disconnected."""
    await send({"type": "http.response.start", "status": _CLIENT_CLOSED_REQUEST, "headers": []})
    await send({"type": "http.response.body", "body": b""})
