"""`ratelimit-mw demo`: exceeds a limit on a real server, waits for `Retry-After`, and is admitted again."""

import argparse
import http.client
import socket
import threading
import time
from secrets import token_hex
from typing import Any, Final, NamedTuple

from ratelimit_mw.core.errors import ConfigError, RateLimitError
from ratelimit_mw.core.progress import colored

_LIMITS: Final = "5 per 5 seconds"
_REFUSALS: Final = 3
_MAX_CALLS: Final = 100  # to get `_REFUSALS` refusals; on a slow machine, quota returns in between
_STORE_TIMEOUT: Final = 1.0  # seconds; longer than in production, so that the store decides even on a slow machine
_TOO_MANY_REQUESTS: Final = 429
_START_TIMEOUT: Final = 60.0  # seconds
_RESPONSE_TIMEOUT: Final = 60.0  # seconds


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("demo", help="serve a limited app on loopback and call it too often")
    parser.add_argument("--store", default="memory://", help="memory:// or redis://HOST:PORT/DB (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--serve", action="store_true", help="keep serving afterwards, until Ctrl+C")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve the app, call it until it refuses, wait, and call it again. With `--serve`, keep serving afterwards.

    Raises `ConfigError` if a required package is missing or the port is not available, and `RateLimitError` if the call
    after the wait is refused.
    """
    server, listening = _server(args.store, args.port)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        _wait_until_started(server, thread)
        _show(port)
        if args.serve:
            print(f"\nStill serving http://127.0.0.1:{port}/, until Ctrl+C.", flush=True)
        while args.serve and thread.is_alive():
            thread.join(1.0)
    except KeyboardInterrupt:
        print()
    finally:
        server.should_exit = True
        thread.join()
    return 0


def _server(store: str, port: int) -> tuple[Any, socket.socket]:
    try:
        import uvicorn  # noqa: PLC0415  # an extra that only this command needs
        from starlette.applications import Starlette  # noqa: PLC0415
        from starlette.middleware import Middleware  # noqa: PLC0415
        from starlette.responses import PlainTextResponse  # noqa: PLC0415
        from starlette.routing import Route  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"the demo needs its extra, python3 -m pip install 'ratelimit-mw[demo]' ({error})", code="RL-052"
        ) from error
    from ratelimit_mw.asgi import RateLimitMiddleware  # noqa: PLC0415

    async def hello(request: Any) -> Any:
        return PlainTextResponse(f"counted by: {request.state.ratelimit.verdict.source}\n")

    key_secret = token_hex(16)  # random, so that an earlier run cannot have used up the quota in Redis
    limited = Middleware(
        RateLimitMiddleware, limits=_LIMITS, key_secret=key_secret, store=store, store_timeout=_STORE_TIMEOUT
    )
    app = Starlette(routes=[Route("/", hello)], middleware=[limited])
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port}: {error}", code="RL-053") from error
    return uvicorn.Server(uvicorn.Config(app, log_level="error")), listening


def _wait_until_started(server: Any, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RateLimitError("the demo's server did not start")
        time.sleep(0.01)


def _show(port: int) -> None:
    """Call the app until some calls are refused, wait for the last `Retry-After`, and call again. Print each call."""
    print(f"GET http://127.0.0.1:{port}/ under {_LIMITS!r}:\n")
    print(f"{'call':>4}  {'status':>6}  {'remaining':>9}  {'Retry-After':>11}")
    responses: list[_Response] = []
    while sum(one.status == _TOO_MANY_REQUESTS for one in responses) < _REFUSALS:
        if len(responses) == _MAX_CALLS:
            raise RateLimitError(
                f"{_MAX_CALLS} calls took too long to exceed {_LIMITS!r}; try again on a quiet machine"
            )
        responses.append(_call(port))
        _print_row(len(responses), responses[-1])
    wait = int(responses[-1].retry_after)
    print(f"\nWaiting {wait} s (the last Retry-After) ...\n", flush=True)
    time.sleep(wait)
    responses.append(_call(port))
    _print_row(len(responses), responses[-1])
    if any(one.counted_locally for one in responses):
        print("\nThe store did not answer in time, so this process counted some of these calls (on_store_error).")
    if responses[-1].status == _TOO_MANY_REQUESTS:
        raise RateLimitError(f"the call after {wait} s was refused")
    print("\nThe client waited for the time in Retry-After, and was admitted.")


class _Response(NamedTuple):
    status: int
    remaining: str
    retry_after: str
    counted_locally: bool


def _call(port: int) -> _Response:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_RESPONSE_TIMEOUT)
    connection.request("GET", "/")
    response = connection.getresponse()
    body = response.read()
    connection.close()
    remaining = response.getheader("RateLimit", "").partition(";r=")[2].partition(";")[0]
    return _Response(response.status, remaining, response.getheader("Retry-After", ""), body.endswith(b": local\n"))


def _print_row(call: int, response: _Response) -> None:
    row = f"{call:>4}  {response.status:>6}  {response.remaining:>9}  {response.retry_after or '-':>11}"
    print(colored(row, "yellow" if response.status == _TOO_MANY_REQUESTS else "green"), flush=True)
