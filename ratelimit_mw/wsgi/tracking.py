"""Tracks the response of a WSGI app to its end."""

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
    """Call the app. Return its body, wrapped so that its end is reported when the server calls `close()`.

    A body with a Content-Length also ends with its last part, because some callers never close it.
    """

    def start(status: str, fields: list[tuple[str, str]], *more: Any) -> Callable[[bytes], object]:
        tracker.response.started(int(status[:3]), fields)
        return start_response(status, fields, *more)

    try:
        body: Iterable[bytes] = app(environ, start)
    except BaseException:
        tracker.response.started(_ERROR, ())  # nothing was sent yet: servers respond with 500
        tracker.end("raised")
        raise
    if _is_file(body, environ) and end_on_close(body, tracker):
        return body  # unwrapped: the server recognizes the class and may use sendfile
    return _SizedBody(body, tracker) if isinstance(body, Sized) else _TrackedBody(body, tracker)


def _is_file(body: object, environ: "WSGIEnvironment") -> bool:
    kind = environ.get("wsgi.file_wrapper")
    return isinstance(kind, type) and isinstance(body, kind)


def end_on_close(body: Any, tracker: ResponseTracker) -> bool:
    """Report the end when a file is closed. Return False if its `close` cannot be replaced."""
    close_body = getattr(body, "close", None)

    def close() -> None:
        try:
            if close_body is not None:
                close_body()
        finally:
            tracker.end("ended")

    with suppress(AttributeError, TypeError):
        body.close = close
        return True
    return False


class _TrackedBody:
    """An app's iterable that reports its end."""

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
        """Close the app's iterable, then report the end."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            # servers do not iterate over a body that they do not send, e.g. after a HEAD request
            self._tracker.end("disconnected" if self._iterator is not None and not self._is_complete else "ended")

    def __del__(self) -> None:
        """Drop the callbacks of a body that was never closed. Runs at any point, so it must not lock or do I/O."""
        self._tracker.abandon()


class _SizedBody(_TrackedBody):
    """A body of known length, because servers set the Content-Length if `len(body)` is 1."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._body)  # type: ignore[arg-type]  # it is Sized
