"""Following the response of a WSGI app to its end."""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ratelimit_mw.engine.response_tracking import ResponseTracker

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_ERROR: Final = 500


def call_tracked(
    app: "WSGIApplication", environ: "WSGIEnvironment", start_response: "StartResponse", tracker: ResponseTracker
) -> Iterable[bytes]:
    """Call the app. What it returns, so that its end is known: when the server has closed it.

    Of a response whose length is known, the last byte is its end too, for callers that close nothing.
    """

    def start(status: str, fields: list[tuple[str, str]], *more: Any) -> Callable[[bytes], object]:
        tracker.response.started(int(status[:3]), fields)
        return start_response(status, fields, *more)

    try:
        body: Iterable[bytes] = app(environ, start)
    except BaseException:
        tracker.response.started(_ERROR, ())  # nothing was sent yet: so a server answers
        tracker.end("raised")
        raise
    if _is_file(body, environ) and _end_on_close(body, tracker):
        return body  # of its class, so that the server may send the file by itself
    return _SizedBody(body, tracker) if isinstance(body, Sized) else _TrackedBody(body, tracker)


def _is_file(body: object, environ: "WSGIEnvironment") -> bool:
    kind = environ.get("wsgi.file_wrapper")
    return isinstance(kind, type) and isinstance(body, kind)


def _end_on_close(body: Any, tracker: ResponseTracker) -> bool:
    """Have the end told when a file is closed. Whether that could be done to this object."""
    own = getattr(body, "close", None)

    def close() -> None:
        try:
            if own is not None:
                own()
        finally:
            tracker.end("ended")

    with suppress(AttributeError, TypeError):
        body.close = close
        return True
    return False


class _TrackedBody:
    """An app's iterable."""

    __slots__ = ("_body", "_is_complete", "_iterator", "_tracker")

    def __init__(self, body: Iterable[bytes], tracker: ResponseTracker) -> None:
        self._body, self._tracker = body, tracker
        self._iterator: Iterator[bytes] | None = None
        self._is_complete = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._iterator is None:
                self._iterator = iter(self._body)
            return next(self._iterator)
        except StopIteration:
            self._is_complete = True
            if "content-length" in self._tracker.response.headers:
                self._tracker.end("ended")
            raise
        except BaseException:
            self._tracker.end("raised")
            raise

    def close(self) -> None:
        """The server is done with it. What the app left open is closed first."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            # a body that was not begun was not asked for: HEAD, or a response without one
            self._tracker.end("disconnected" if self._iterator is not None and not self._is_complete else "ended")

    def __del__(self) -> None:
        """A server that forgets it has not closed it. Nothing is done here that locks or asks: it is done anywhere."""
        self._tracker.abandon()


class _SizedBody(_TrackedBody):
    """One whose number of parts is known: of a single one, servers work out the Content-Length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._body)  # type: ignore[arg-type]  # it is Sized
