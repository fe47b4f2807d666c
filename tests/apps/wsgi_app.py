"""A WSGI app behind the middleware, with responses of all kinds."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from wsgiref.util import FileWrapper

from limited import GATE, settings
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.wsgi import RateLimitMiddleware

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PLAIN = ("Content-Type", "text/plain; charset=utf-8")


def answers(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if path == "/error":
        raise RuntimeError("the app's own error")
    if path == "/stream":
        start_response("200 OK", [PLAIN])
        return parts()
    if path == "/file":
        start_response("200 OK", [PLAIN])
        file = Path(__file__).open("rb")  # noqa: SIM115  # the server closes it
        wrapped: Iterable[bytes] = environ.get("wsgi.file_wrapper", FileWrapper)(file)  # granian has no file wrapper
        return wrapped
    body = b"hello"
    if path == "/length":
        body = str(len(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))).encode()
    start_response("200 OK", [PLAIN, ("Content-Length", str(len(body)))])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def parts() -> Iterator[bytes]:
    yield b"one"
    Path(GATE).read_bytes()
    yield b"two"


app = RateLimitMiddleware(answers, settings(RedisStore))
