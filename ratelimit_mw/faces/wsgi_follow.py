"""Following the response of a WSGI app to its end."""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ratelimit_mw.following import Following

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_ERROR: Final = 500


def followed(
    app: "WSGIApplication", environ: "WSGIEnvironment", start_response: "StartResponse", following: Following
) -> Iterable[bytes]:
    """Call the app. What it returns, so that its end is known: when the server has closed it.

    Of a response whose length is known, the last byte is its end too, for callers that close nothing.
    """

    def start(status: str, fields: list[tuple[str, str]], *more: Any) -> Callable[[bytes], object]:
        following.response.started(int(status[:3]), fields)
        return start_response(status, fields, *more)

    try:
        body: Iterable[bytes] = app(environ, start)
    except BaseException:
        following.response.started(_ERROR, ())  # nothing was sent yet: so a server answers
        following.end("raised")
        raise
    if _is_file(body, environ) and _closes(body, following):
        return body  # of its class, so that the server may send the file by itself
    return _SizedBody(body, following) if isinstance(body, Sized) else _Body(body, following)


def _is_file(body: object, environ: "WSGIEnvironment") -> bool:
    kind = environ.get("wsgi.file_wrapper")
    return isinstance(kind, type) and isinstance(body, kind)


def _closes(body: Any, following: Following) -> bool:
    """Have the end told when a file is closed. Whether that could be done to this object."""
    own = getattr(body, "close", None)

    def close() -> None:
        try:
            if own is not None:
                own()
        finally:
            following.end("ended")

    with suppress(AttributeError, TypeError):
        body.close = close
        return True
    return False


class _Body:
    """An app's iterable."""

    __slots__ = ("_body", "_following", "_iterator", "_whole")

    def __init__(self, body: Iterable[bytes], following: Following) -> None:
        self._body, self._following = body, following
        self._iterator: Iterator[bytes] | None = None
        self._whole = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._iterator is None:
                self._iterator = iter(self._body)
            return next(self._iterator)
        except StopIteration:
            self._whole = True
            if "content-length" in self._following.response.headers:
                self._following.end("ended")
            raise
        except BaseException:
            self._following.end("raised")
            raise

    def close(self) -> None:
        """The server is done with it. What the app left open is closed first."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            # a body that was not begun was not asked for: HEAD, or a response without one
            self._following.end("disconnected" if self._iterator is not None and not self._whole else "ended")

    def __del__(self) -> None:
        """A server that forgets it has not closed it. Nothing is done here that locks or asks: it is done anywhere."""
        self._following.forget()


class _SizedBody(_Body):
    """One whose number of parts is known: of a single one, servers work out the Content-Length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._body)  # type: ignore[arg-type]  # it is Sized
