"""The WSGI middleware changes nothing that the standard library's server writes; it only adds its headers."""

import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO, StringIO
from typing import Any
from wsgiref.handlers import SimpleHandler

import pytest

from web.wsgi_talk import OWN, PLAIN, Server, limited

pytestmark = pytest.mark.promise(11)

Noted = list[str]
AppOf = Callable[[Noted], Any]  # returns an app that records events in the list


class Handler(SimpleHandler):
    """Serves one request into memory, and records when it could let the kernel send a file."""

    origin_server = False  # such a server would write a Date header

    def __init__(self, noted: Noted) -> None:
        self.written = BytesIO()
        self.noted = noted
        super().__init__(BytesIO(), self.written, StringIO(), Server().environ)

    def sendfile(self) -> bool:
        self.noted.append("sendfile")
        return False  # the server then reads the file itself


def from_list(noted: Noted) -> Any:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [PLAIN])
        return [b"one", b"two"]

    return app


def late(noted: Noted) -> Any:
    """Return a generator app, which starts the response only when the server reads the first part."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        try:
            start_response("200 OK", [PLAIN])
            yield b"one"
            yield b"two"
        finally:
            noted.append("closed")

    return app


def writes(noted: Noted) -> Any:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [PLAIN])
        write(b"one")
        return [b"two"]

    return app


def sends_a_file(noted: Noted) -> Any:
    class File(BytesIO):
        def close(self) -> None:
            noted.extend([] if self.closed else ["closed"])
            super().close()

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [PLAIN])
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](File(b"onetwo"))
        return wrapped

    return app


def thinks_again(noted: Noted) -> Any:
    """Return an app whose error occurs before anything is sent, so that a second response replaces the first."""

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [PLAIN])
        try:
            int("mistake")
        except ValueError:
            start_response("503 Sorry", [PLAIN], sys.exc_info())
        return [b"onetwo"]

    return app


def too_late(noted: Noted) -> Any:
    """Return an app whose error occurs after its response has begun, so that the server raises it again in the app."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [PLAIN])
        yield b"onetwo"
        try:
            int("mistake")
        except ValueError as error:
            try:
                start_response("503 Sorry", [PLAIN], sys.exc_info())
            except ValueError as again:
                noted.append(f"the same: {again is error}")
                raise

    return app


def written(make: AppOf, around: Callable[[Any], Any]) -> tuple[bytes, Noted]:
    noted: Noted = []
    handler = Handler(noted)
    handler.run(around(make(noted)))
    return handler.written.getvalue(), noted


@pytest.mark.parametrize(
    ("make", "status", "notes"),
    [
        (from_list, b"200 OK", []),
        (late, b"200 OK", ["closed"]),
        (writes, b"200 OK", []),
        (sends_a_file, b"200 OK", ["sendfile", "closed"]),
        (thinks_again, b"503 Sorry", []),
        (too_late, b"200 OK", ["the same: True"]),
    ],
    ids=["list", "late", "write", "file", "again", "too-late"],
)
def test_the_server_behaves_the_same_but_for_added_headers(make: AppOf, status: bytes, notes: Noted) -> None:
    alone, behind_us = written(make, lambda app: app), written(make, limited)
    assert alone[1] == behind_us[1] == notes
    head, body = alone[0].split(b"\r\n\r\n")
    assert (head.partition(b"\r\n")[0], body) == (b"Status: " + status, b"onetwo")
    ours = "".join(f"\r\n{name}: {value}" for name, value in OWN).encode()
    plain = b"\r\nContent-Type: text/plain"
    assert behind_us[0] == alone[0].replace(plain, plain + ours)


def test_an_error_before_the_response_reaches_the_server() -> None:
    def fails(noted: Noted) -> Any:
        def app(environ: Any, start_response: Any) -> Iterable[bytes]:
            raise RuntimeError("the app's own")

        return app

    alone, behind_us = written(fails, lambda app: app), written(fails, limited)
    assert alone == behind_us
    assert alone[0].startswith(b"Status: 500 ")
