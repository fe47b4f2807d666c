"""`python -m ratelimit_mw demo`: a limited app on a real server, called more often than it allows."""

import argparse
import http.client
import socket
import threading
import time
from secrets import token_hex
from typing import Any, Final

from ratelimit_mw.errors import ConfigError, RateLimitError

_LIMITS: Final = "5 per 10 seconds"
_CALLS: Final = 8
_PATIENCE: Final = 1.0  # seconds; whoever watches can wait, and wants to see the store decide
_READY: Final = 10.0  # seconds the server has to start


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("demo", help="serve a limited app on loopback and call it too often")
    parser.add_argument("--store", default="memory://", help="memory:// or redis://HOST:PORT/DB (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--once", action="store_true", help="end after the table")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Serve, call, print a table; then serve on unless `--once`.

    Raises `ConfigError` when something to run it is missing.
    """
    server, listening = _server(given.store, given.port)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        _wait_until_started(server, thread)
        retry_after = _call_too_often(port)
        if given.once:
            return 0
        _say_what_next(port, retry_after)
        while thread.is_alive():
            thread.join(1.0)
    except KeyboardInterrupt:
        print()
    finally:
        server.should_exit = True
        thread.join()
    return 0


def _server(store: str, port: int) -> tuple[Any, socket.socket]:
    try:
        import uvicorn  # noqa: PLC0415  # an extra, which only this command needs
        from starlette.applications import Starlette  # noqa: PLC0415
        from starlette.middleware import Middleware  # noqa: PLC0415
        from starlette.responses import PlainTextResponse  # noqa: PLC0415
        from starlette.routing import Route  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"the demo needs its extra, python3 -m pip install 'ratelimit-mw[demo]' ({error})") from error
    from ratelimit_mw.asgi import RateLimitMiddleware  # noqa: PLC0415

    async def hello(request: Any) -> Any:
        return PlainTextResponse(f"counted by: {request.state.ratelimit.verdict.source}\n")

    own = token_hex(16)  # other keys each time: a run before this one must not have used up the quota in Redis
    limited = Middleware(RateLimitMiddleware, limits=_LIMITS, key_secret=own, store=store, store_timeout=_PATIENCE)
    app = Starlette(routes=[Route("/", hello)], middleware=[limited])
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port}: {error}") from error
    return uvicorn.Server(uvicorn.Config(app, log_level="error")), listening


def _wait_until_started(server: Any, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _READY
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RateLimitError("the demo's server did not start")
        time.sleep(0.01)


def _call_too_often(port: int) -> str:
    """Print a line per answer; returns the last Retry-After."""
    print(f"GET http://127.0.0.1:{port}/ under {_LIMITS!r}:\n")
    print(f"{'call':>4}  {'status':>6}  {'remaining':>9}  {'Retry-After':>11}")
    retry_after = ""
    bodies = []
    for call in range(1, _CALLS + 1):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        answer = connection.getresponse()
        bodies.append(answer.read())
        connection.close()
        retry_after = answer.getheader("Retry-After", "")
        remaining = answer.getheader("RateLimit", "").partition(";r=")[2].partition(";")[0]
        print(f"{call:>4}  {answer.status:>6}  {remaining:>9}  {retry_after or '-':>11}")
    if any(body.endswith(b": local\n") for body in bodies):
        print("\nThe store did not answer in time, so these were counted in this process (on_store_error).")
    return retry_after


def _say_what_next(port: int, retry_after: str) -> None:
    print(f"\nStill serving. In another terminal, now and again after {retry_after or 'a few'} seconds:\n")
    print(f"    curl -i http://127.0.0.1:{port}/\n")
    print("Ctrl+C ends it.")
