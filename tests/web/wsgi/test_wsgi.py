"""The WSGI middleware is transparent to the app and the server (PEP 3333), as checked by wsgiref's validator."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest
from hypercorn.app_wrappers import WSGIWrapper

from ratelimit_mw import MemoryStore
from ratelimit_mw.testing import Clock
from web.wsgi_talk import ANSWER, OWN, PLAIN, Server, limited, read


@pytest.mark.promise(11)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_the_middleware_passes_the_validator_of_wsgiref(method: str) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [PLAIN])
        return [] if method == "HEAD" else [b"hello"]

    def checked(environ: Any, start_response: Any) -> Iterable[bytes]:
        del environ["ratelimit_mw"]  # a documented name; the validator requires a dot in names of non-text values
        return validator(app)(environ, start_response)

    middleware = validator(limited(checked))
    got = []
    for _ in range(2):
        server = Server(REQUEST_METHOD=method)
        body = read(server.ask(middleware))
        got.append((server.started[0][0], body != b""))
    assert got == [("200 OK", method != "HEAD"), ("429 Too Many Requests", method != "HEAD")]


def test_hypercorn_sends_the_refusal_of_a_head_request() -> None:
    """Hypercorn sends no response if the iterable yields nothing, and then responds with 500."""
    sent: list[Any] = []
    hypercorn = WSGIWrapper(limited(), 0)
    for _ in range(2):
        hypercorn.run_app({**Server(REQUEST_METHOD="HEAD").environ}, sent.append)
    assert [message.get("status") for message in sent] == [200, None, 429, None]
    assert sent[-1]["body"] == b""


@pytest.mark.promise(11)
def test_the_apps_iterable_is_returned_unchanged() -> None:
    server = Server()
    assert server.ask(limited()) is ANSWER
    assert server.started == [("200 OK", [PLAIN, *OWN])]


@pytest.mark.promise(11)
def test_a_file_wrapper_is_returned_unchanged() -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [PLAIN])
        opened.append(environ["wsgi.file_wrapper"](environ["wsgi.input"]))
        return opened[0]

    opened: list[FileWrapper] = []
    assert Server(**{"wsgi.file_wrapper": FileWrapper}).ask(limited(app)) is opened[0]


@pytest.mark.promise(11)
def test_a_generator_may_start_late_and_is_closed() -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        try:
            start_response("200 OK", [PLAIN])
            yield b"one"
            yield b"two"
        finally:
            closed.append(True)

    closed: list[bool] = []
    server = Server()
    parts = server.ask(limited(app))
    assert server.started == []
    assert next(parts) == b"one"
    assert server.started == [("200 OK", [PLAIN, *OWN])]
    parts.close()
    assert closed == [True]


@pytest.mark.promise(11)
def test_start_response_returns_the_servers_write() -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        got.append(start_response("200 OK", [PLAIN]))
        return []

    got: list[Any] = []
    server = Server()
    server.ask(limited(app))
    assert got == [server.write]


@pytest.mark.promise(11)
def test_exc_info_is_passed_on_and_the_headers_are_added_once() -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [PLAIN])
        try:
            int("the app's mistake")
        except ValueError:
            errors.append(sys.exc_info())
            start_response("500 Oops", [PLAIN], errors[0])
            start_response("501 Oops", [PLAIN], exc_info=errors[0])
        return [b"sorry"]

    errors: list[Any] = []
    server = Server()
    server.ask(limited(app))
    assert server.started == [
        ("200 OK", [PLAIN, *OWN]),
        ("500 Oops", [PLAIN, *OWN], errors[0]),
        ("501 Oops", [PLAIN, *OWN], errors[0]),
    ]
    errors.clear()  # tracebacks keep their frames alive


@pytest.mark.promise(11)
def test_the_apps_exception_passes_unchanged() -> None:
    error = RuntimeError("the app's")

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise error

    with pytest.raises(RuntimeError) as caught:
        Server().ask(limited(app))
    assert caught.value is error


@pytest.mark.promise(11)
def test_the_servers_start_response_is_passed_if_the_middleware_is_off() -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        assert start_response == server.start_response
        return ANSWER

    server = Server(PATH_INFO="/")
    assert server.ask(limited(app, enabled=False)) is ANSWER


def test_a_refusal_does_not_call_the_app_nor_read_the_body() -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise AssertionError("called")

    store = MemoryStore(clock=Clock())
    Server().ask(limited(store=store))
    server = Server(REQUEST_METHOD="POST", **{"wsgi.input": None})
    (body,) = server.ask(limited(app, store=store))
    (status, headers), *rest = server.started
    assert (status, rest) == ("429 Too Many Requests", [])
    assert dict(headers)["Content-Length"] == str(len(body))


def test_the_app_finds_the_verdict_in_its_environ() -> None:
    server = Server()
    server.ask(limited())
    verdict = server.environ["ratelimit_mw"].verdict
    assert (verdict.allowed, verdict.limit, verdict.remaining, verdict.rule) == (True, 1, 0, "default")
