"""uvicorn's protocol with bounds on the head of a request, which uvicorn itself does not have."""

import asyncio
from typing import Any, Final

from ratelimit_mw.core.errors import require

with require("uvicorn"):
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
    except ModuleNotFoundError as error:
        if error.name != "httptools":
            raise
        from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol  # type: ignore[assignment]

_MAX_HEAD: Final = 262_144  # bytes; 1,000 headers of 200 bytes fit


class BoundedProtocol(Protocol):
    """Closes a connection whose next request has not begun in time, or whose head is too long.

    `head_timeout`: seconds from the first byte to the end of the head, or from the connection to the first byte. A late
    connection is closed after one to two such times.
    """

    head_timeout = 10.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._seen: object = None  # the last request at the last look
        self._pending = 0  # bytes since the last request

    def connection_made(self, transport: Any) -> None:
        """Begin to look at the connection from time to time: a timer for each request would cost more."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_timeout, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head that is not complete."""
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._pending = 0
        else:
            self._pending += len(data)
            if self._pending > _MAX_HEAD:
                self.transport.close()

    def _look(self) -> None:
        cycle = self.cycle
        between = cycle is None or (cycle.response_complete and self.timeout_keep_alive_task is None)
        if between and cycle is self._seen:
            self.transport.close()
            return
        self._seen = cycle if between else None
        self._timer = self.loop.call_later(self.head_timeout, self._look)
