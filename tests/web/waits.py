"""An HTTP request that may have to wait, and the messages that it receives meanwhile."""

import asyncio
from typing import Any

from web.asgi_talk import HTTP, Talk

WHOLE = {"type": "http.request", "body": b"", "more_body": False}
PART = {"type": "http.request", "body": b"part", "more_body": True}
REST = {"type": "http.request", "body": b"rest", "more_body": False}
GONE = {"type": "http.disconnect"}


class Waits:
    """A request. It receives the messages in `given` at once. A test puts later messages into `queue`."""

    def __init__(self, app: Any, *given: Any, **scope: Any) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        for message in given:
            self.queue.put_nowait(message)
        self.talk = Talk()
        self.receives = 0
        self.task = asyncio.ensure_future(app({**HTTP, **scope}, self.receive, self.talk.send))

    async def receive(self) -> Any:
        self.receives += 1
        return await self.queue.get()

    async def goes_on(self) -> "Waits":
        """Let the request run until it waits for something, and return it."""
        for _ in range(20):
            await asyncio.sleep(0)
        return self

    @property
    def status(self) -> int | None:
        return self.talk.sent[0]["status"] if self.talk.sent else None
