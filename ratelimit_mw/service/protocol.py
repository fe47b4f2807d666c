"""Adds bounds on the head of a request to uvicorn's protocol, which has none."""

import asyncio
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from ratelimit_mw.core.errors import require
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.service.answers import Rejected
from ratelimit_mw.service.forwarded import MAX_TARGET, NGINX, nginx_fields, too_long

with require("uvicorn"):
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
    except ModuleNotFoundError as error:
        if error.name != "httptools":
            raise
        from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol  # type: ignore[assignment]

_MAX_HEAD: Final = 65_536  # bytes, enough for 1,000 headers of 60 bytes; parsing takes up to 10 ms
_MAX_URL: Final = MAX_TARGET + 64  # bytes of the target in the request line; in Envoy's calls it begins with a prefix
_PART: Final = 16_384  # bytes that are parsed before the length of a head is checked again
_MAX_DRAINED: Final = 8_388_608  # bytes that are read after a refused head; by default, proxies accept 1 MB at most
_DRAIN_TIME: Final = 5.0  # seconds for these bytes
_LAST_TIME: Final = 1.0  # seconds for a request that is under way when the server stops

_LOGGER: Final = logging.getLogger("ratelimit_mw.service")
_LOGGER.setLevel(logging.ERROR)  # not uvicorn's warnings: each request can cause one

_TOO_LONG: Final = f"headers: expected at most {_MAX_HEAD} bytes with the request line"
_INVALID: Final = "request: its bytes are no valid HTTP, such as a control character in a header"


class BoundedProtocol(Protocol):
    """Closes a connection whose next request has not begun in time, and refuses a head that is long or invalid.

    `head_timeout`: seconds from the first byte to the end of the head, or from the connection to the first byte. A late
    connection is closed after one to two times `head_timeout`.
    """

    head_timeout = 10.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _LOGGER
        self._timer: asyncio.TimerHandle | None = None
        self._seen: object = None  # the latest request at the last check
        self._pending = 0  # bytes since the last request
        self._refused = False

    def connection_made(self, transport: Any) -> None:
        """Start to check the connection from time to time. A timer for each request would take more time."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_timeout, self._check_progress)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head that is not complete."""
        if len(data) > _PART:
            for start in range(0, len(data), _PART):
                if not self._refused:
                    self.data_received(data[start : start + _PART])
            return
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._pending = 0
        else:
            self._pending += len(data)
            if self._pending > _MAX_HEAD and not self._refused:
                self._end_head()

    def on_response_complete(self) -> None:
        """Wait for the next request: for `timeout_keep_alive`, or for `head_timeout` if its head has begun."""
        super().on_response_complete()
        if self._has_begun():
            self._unset_keepalive_if_required()

    def _has_begun(self) -> bool:
        """Return whether there are bytes of the next head, or some of the answered request's body are missing."""
        cycle = self.cycle
        if cycle is None or cycle.more_body:
            return True
        return bool(self.conn.trailing_data[0]) if hasattr(self, "conn") else self.scope is not cycle.scope

    def on_url(self, url: bytes) -> None:
        """Stop at a long target, because uvicorn itself would take long to decode it, and at one with `#`.

        uvicorn cuts it there, but an app behind Envoy may read all of it.
        """
        self.url += url
        if len(self.url) > _MAX_URL:
            raise too_long()
        if b"#" in url:
            raise Rejected(400, _INVALID)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # uvicorn's text, which gives no reason
        """Refuse a head that cannot be parsed. uvicorn would close the connection while the proxy is still writing."""
        is_long = len(getattr(self, "url", b"")) > _MAX_URL
        self._refuse(too_long() if is_long else Rejected(400, _INVALID))

    def shutdown(self) -> None:
        """Leave an idle connection open a little longer.

        The proxy may be sending a request, and admits it if this connection is reset.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            super().shutdown()
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(_LAST_TIME, self.timeout_keep_alive_handler)

    def _end_head(self) -> None:
        """End a connection after too many bytes of a head, or of a body that the app does not read."""
        cycle = self.cycle
        if cycle is not None and self.scope is cycle.scope:  # its request is answered, and no other one has begun
            self._drain()
        else:
            self._refuse(Rejected(431, _TOO_LONG))

    def _refuse(self, rejected: Rejected) -> None:
        """Answer, and read on: a proxy that cannot write its whole request may admit it without reading the answer."""
        host = self.client[0] if self.client else "a unix socket"
        status, headers, body = rejected.response
        warn_throttled(f"status {status}", "refused a call of %s: %s", host, rejected, code="RL-242")
        fields = [(name.lower().encode(), value.encode()) for name, value in (*headers, ("Connection", "close"))]
        if getattr(self, "url", b"").startswith(NGINX):
            fields += nginx_fields(status, body)
            status = HTTPStatus.FORBIDDEN
        self._drain(_raw(status, [*self.server_state.default_headers, *fields], body))

    def _drain(self, last: bytes = b"") -> None:
        """Write the last bytes of this connection, and continue to read for a while."""
        self._refused = True
        transport: Any = self.transport
        self.connection_lost(ConnectionAbortedError())
        transport.set_protocol(_Drain(transport, self.loop))
        transport.write(last)
        if transport.can_write_eof():
            transport.write_eof()

    def _check_progress(self) -> None:
        cycle = self.cycle
        between = cycle is None or (cycle.response_complete and self.timeout_keep_alive_task is None)
        if between and cycle is self._seen:
            self.transport.close()
            return
        self._seen = cycle if between else None
        self._timer = self.loop.call_later(self.head_timeout, self._check_progress)


class _Drain(asyncio.Protocol):
    """Reads what arrives after a refused head, up to a number of bytes and a time, and then closes the connection."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._left = _MAX_DRAINED
        self._timer = loop.call_later(_DRAIN_TIME, transport.close)

    def data_received(self, data: bytes) -> None:
        """Count the bytes."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # of the protocol
        """Stop waiting."""
        self._timer.cancel()


def _raw(status: int, fields: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Return a response as a server writes it."""
    head = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, HTTPStatus(status).phrase.encode(), head, body)
