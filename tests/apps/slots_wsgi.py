"""A WSGI app that allows one concurrent request per client, with an endless response, a file, and an error."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from wsgiref.util import FileWrapper

from limited import slots
from ratelimit_mw.wsgi import RateLimitMiddleware

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PLAIN = ("Content-Type", "text/plain; charset=utf-8")


def answers(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path == "/error":
        raise RuntimeError("the app's own error")
    start_response("200 OK", [PLAIN])
    if path == "/endless":
        return parts()
    if path == "/file":
        file = Path(__file__).open("rb")  # noqa: SIM115  # the server closes it
        wrapped: Iterable[bytes] = environ.get("wsgi.file_wrapper", FileWrapper)(file)  # granian has no file wrapper
        return wrapped
    return [b"hello"]


def parts() -> Iterator[bytes]:
    while True:
        yield b"more\n"
        time.sleep(0.02)


app = RateLimitMiddleware(answers, slots())
