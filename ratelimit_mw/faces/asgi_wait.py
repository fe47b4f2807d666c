"""While a request is held back its client may go away: what the server says meanwhile is heard, and handed on."""

import asyncio
from collections import deque
from typing import Final

from ratelimit_mw.faces.asgi_send import Message, Receive, Scope, Send

_CLIENT_CLOSED_REQUEST: Final = 499  # as nginx has it: for logs, and for whoever stands further out


class ClientGone(Exception):
    """Nobody waits for an answer any more."""


class Waiting:
    """One HTTP request that may be held back. `receive` gives every message that the server gives, once and in order.

    Of a body one message is heard at most: with more, the whole of it would be kept here.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive: Final = receive
        self._heard: Final[deque[Message]] = deque()
        self._next: asyncio.Future[Message] | None = None  # asked for, and not given to the app
        # who is asked for the body tells such a client to send it, which is for the app to do
        self._listens: Final = not any(name.lower() == b"expect" for name, _ in scope["headers"])

    async def hold(self, delay: float) -> None:
        """Wait for so many seconds. Raises `ClientGone` when the client leaves before they are over."""
        loop = asyncio.get_running_loop()
        due, listens = loop.time() + delay, self._listens
        while listens and (left := due - loop.time()) > 0:
            asked = self._next = self._next or asyncio.ensure_future(self._receive())
            await asyncio.wait([asked], timeout=left)
            if not asked.done():
                return
            if asked.cancelled() or asked.exception() is not None:
                break  # the app hears of it when it asks
            self._next, message = None, asked.result()
            self._heard.append(message)
            if message["type"] == "http.disconnect":
                raise ClientGone
            listens = not message.get("more_body", False)
        if (left := due - loop.time()) > 0:
            await asyncio.sleep(left)

    async def receive(self) -> Message:
        """The next message."""
        if self._heard:
            return self._heard.popleft()
        asked, self._next = self._next, None  # an app may ask twice at one time: the second one gets the one behind
        if asked is None:
            return await self._receive()
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            self._next = asked  # which is for whoever asks next
            raise

    def end(self) -> None:
        """The request is answered: nobody asks any more."""
        if self._next is not None:
            self._next.cancel()


async def close(send: Send) -> None:
    """End a request of which the client has gone."""
    await send({"type": "http.response.start", "status": _CLIENT_CLOSED_REQUEST, "headers": []})
    await send({"type": "http.response.body", "body": b""})
