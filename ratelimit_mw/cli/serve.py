"""`python -m ratelimit_mw serve`: serves the limits of a settings file to proxies and other programs."""

import argparse
import asyncio
import multiprocessing
import os
import re
import secrets
import signal
import socket
import stat
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from ratelimit_mw.asgi.send import Message, Receive, Scope, Send
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.dashboard.app import Page
from ratelimit_mw.dashboard.fronts import Dashboard
from ratelimit_mw.http.callables import import_from_working_folder
from ratelimit_mw.http.callers import checked_secret, is_loopback
from ratelimit_mw.service import service
from ratelimit_mw.service.access import socket_mode
from ratelimit_mw.service.app import Service
from ratelimit_mw.settings.loading import DASHBOARD_SECRET

_UNIX: Final = "unix:"
_BACKLOG: Final = 2048  # connections that wait to be accepted
# Seconds for which an idle connection stays open. The proxy has to close it first: a request that arrives while the
# service closes it gets no answer, and the proxy admits it. nginx closes one after a minute, Caddy after two, Envoy
# after an hour.
_KEEP_ALIVE: Final = 3_900
_START_TIME: Final = 60  # seconds for a new worker; until it serves, the one that it replaces does
_SOCKET_MODE: Final = "660"  # not for all users, because callers on a socket send no password, and may reset limits
_MAX_MODE: Final = 0o777
_MAX_PORT: Final = 65_535
_PORT: Final = re.compile("[0-9]{1,5}")
_MAX_WORKERS: Final = 512
_PAGE: Final = "/dashboard"  # the path of the dashboard
_NO_EXTRA: Final = "serve needs its extra, python3 -m pip install 'ratelimit-mw[{}]' ({})"
_NOT_LOOPBACK: Final = "is neither loopback nor a unix socket: {}, so that strangers get no answer"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    about = "serve the limits of a settings file to proxies and to programs in any language"
    parser = commands.add_parser("serve", help=about, description=about)
    parser.add_argument("file", help="a TOML file, or one that ends in .json")
    parser.add_argument(
        "--bind",
        action="append",
        metavar="ADDRESS",
        help="HOST:PORT or unix:PATH; may be repeated (default: 127.0.0.1:8900)",
    )
    parser.add_argument(
        "--grpc", action="append", default=[], metavar="ADDRESS", help="the same for Envoy's rate limit service by gRPC"
    )
    parser.add_argument(
        "--socket-mode",
        default=_SOCKET_MODE,
        metavar="MODE",
        help="permissions of the unix sockets, in octal (default: %(default)s: the user and the group)",
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument(
        "--secret-file", metavar="FILE", help="file with the secret that callers send in X-RateLimit-Secret"
    )
    parser.add_argument(
        "--dashboard", action="store_true", help=f"also serve the page of the command `dashboard`, below {_PAGE}"
    )
    parser.add_argument("--write", action="store_true", help="with --dashboard: let operators change limits")
    parser.set_defaults(run=run)


class Address(NamedTuple):
    """An address to listen on. `path`: of a unix socket, else None."""

    text: str
    path: str | None
    host: str = ""
    port: int = 0


class PageOptions(NamedTuple):
    """Whether to serve the dashboard, whether operators may change something there, and whether by one process."""

    is_served: bool
    writes: bool
    is_alone: bool = True


NO_PAGE: Final = PageOptions(is_served=False, writes=False)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Return 1 if the server does not start. Raises `ConfigError` for mistakes.

    Workers serve, also if there is only one, and this process keeps the sockets. So after SIGHUP, new workers with the
    present settings replace them, and the sockets never close.
    """
    if not 1 <= args.workers <= _MAX_WORKERS:
        raise ConfigError(f"--workers: got {args.workers}, expected 1 to {_MAX_WORKERS}", code="RL-051")
    mode = _read_mode(args.socket_mode)
    secret = _read_secret(args.secret_file)
    addresses = [parse_address("--bind", text, secret) for text in args.bind or ["127.0.0.1:8900"]]
    grpc = [parse_address("--grpc", text, secret) for text in args.grpc]
    texts = [address.text for address in grpc]
    if args.write and not args.dashboard:
        raise ConfigError("--write: present without --dashboard, expected both", code="RL-051")
    page = PageOptions(args.dashboard, args.write, args.workers == 1)
    made = make_secret() if args.write else ""
    try:
        import uvicorn  # noqa: PLC0415  # an extra that only this command needs
        from uvicorn.config import STARTUP_FAILURE  # noqa: PLC0415
        from uvicorn.supervisors import Multiprocess  # noqa: PLC0415

        from ratelimit_mw.service.protocol import BoundedProtocol  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(_NO_EXTRA.format("serve", error), code="RL-052") from error
    os.environ["WEB_CONCURRENCY"] = str(args.workers)  # for the check that processes do not have a store each
    make_app(args.file, secret, texts, mode, page)  # raises for mistakes before any process starts
    config = uvicorn.Config(
        partial(make_worker_app, args.file, secret, texts, mode, page),
        factory=True,
        workers=args.workers,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        proxy_headers=False,  # the service itself decides which callers' headers to trust
        server_header=False,
        log_level="warning",
        access_log=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_worker_healthcheck=_START_TIME,
    )
    sockets = listen(addresses, mode)
    names = names_of(addresses, sockets, texts)
    print(f"ratelimit_mw: serving {args.file} on {', '.join(names)}", flush=True)
    if args.dashboard and not made:
        print(f"ratelimit_mw: the dashboard is on {names[0]}{_PAGE}/", flush=True)
    say_secret(f"{names[0]}{_PAGE}/", made)
    try:
        supervisor = Multiprocess(config, sockets)
        supervisor.run()
        return int(any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes))
    finally:
        for address in (*addresses, *grpc):
            if address.path is not None:
                Path(address.path).unlink(missing_ok=True)


def make_app(file: str, secret: str, grpc: Sequence[str], mode: int, page: PageOptions = NO_PAGE) -> Any:
    """Return the ASGI app that one process serves."""
    import_from_working_folder()
    app = service(file, secret=secret)
    served: Any = _WithGrpc(app, grpc, mode) if grpc else app
    if not page.is_served:
        return served
    return _WithPage(served, Dashboard(Page(file, write=page.writes, is_alone=page.is_alone)))


def make_worker_app(file: str, secret: str, grpc: Sequence[str], mode: int, page: PageOptions = NO_PAGE) -> Any:
    """Return the app of a worker process, which calls this in its event loop.

    The worker ends if the settings have a mistake, which can happen after SIGHUP, and if its parent was killed.
    """
    try:
        app = make_app(file, secret, grpc, mode, page)
    except ConfigError as error:
        sys.exit(f"ratelimit_mw: {error}")
    parent = multiprocessing.parent_process()
    if parent is not None:
        _end_with(parent.sentinel)
    return _Retiring(app)


def _end_with(sentinel: int) -> None:
    """End this process when the one that has the other end of this pipe ends."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(sentinel)
        signal.raise_signal(signal.SIGTERM)

    loop.add_reader(sentinel, end)


class _Retiring:
    """The app of a worker. After SIGTERM, proxies shall send no other request on the same connection.

    The server has a handler for the signal already. It stops to accept connections a moment later.
    """

    def __init__(self, app: Any) -> None:
        self._app: Final = app
        self._retires = False
        inner: Any = signal.getsignal(signal.SIGTERM)

        def retire(*given: Any) -> None:
            self._retires = True
            inner(*given)

        signal.signal(signal.SIGTERM, retire)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a call; while this process ends, close the connection after its response."""
        await self._app(scope, receive, self._closing(send) if self._retires else send)

    @staticmethod
    def _closing(send: Send) -> Send:
        async def close_after(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        return close_after


class _WithPage:
    """The service, with the dashboard below a path."""

    def __init__(self, app: Any, page: Any) -> None:
        self._app: Final = app
        self._page: Final = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a call."""
        path = scope.get("path", "")
        if scope["type"] == "http" and (path == _PAGE or path.startswith(f"{_PAGE}/")):
            await self._page({**scope, "root_path": _PAGE}, receive, send)
        else:
            await self._app(scope, receive, send)


class _WithGrpc:
    """The service with its gRPC server, which starts and stops with the process."""

    def __init__(self, app: Service, addresses: Sequence[str], mode: int) -> None:
        try:
            from ratelimit_mw.service.grpc import GrpcServer  # noqa: PLC0415  # an extra that only --grpc needs
        except ImportError as error:
            raise ConfigError(_NO_EXTRA.format("grpc", error), code="RL-052") from error
        self._app: Final = app
        self._server: Final = GrpcServer(app, addresses, mode)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a call; start and stop the gRPC server in the lifespan."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def stop_before_shutdown() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._server.stop()
            return message

        async def start_first(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self._server.start()
                except ConfigError as error:
                    message = {"type": "lifespan.startup.failed", "message": f"ratelimit_mw: {error}"}
            await send(message)

        await self._app(scope, stop_before_shutdown, start_first)


def parse_address(option: str, text: str, secret: str, fix: str = "add --secret-file") -> Address:
    """Return the address in `HOST:PORT` or `unix:PATH`.

    Raises `ConfigError` for other text, and for an address that needs a secret if `secret` is empty. `fix`: how to set
    one.
    """
    if text.startswith(_UNIX):
        if not text[len(_UNIX) :]:
            raise ConfigError(f"{option}: got {text!r}, expected a path after unix:", code="RL-051")
        return Address(text, text[len(_UNIX) :])
    host, colon, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    if not colon or not host or not _PORT.fullmatch(port) or int(port) > _MAX_PORT:
        raise ConfigError(
            f"{option}: got {text!r}, expected HOST:PORT such as 127.0.0.1:8900, or unix:PATH", code="RL-051"
        )
    if not secret and not is_loopback(host):
        raise ConfigError(f"{option}: {text} {_NOT_LOOPBACK.format(fix)}", code="RL-058")
    return Address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", None, host, int(port))


def make_secret() -> str:
    """Make the secret of a dashboard, if the environment has none: this process and its workers find it there."""
    if DASHBOARD_SECRET in os.environ:
        return ""
    secret = os.environ[DASHBOARD_SECRET] = secrets.token_urlsafe(24)
    return secret


def say_secret(url: str, secret: str) -> None:
    """Print the secret that was made for this run, if one was."""
    if secret:
        print(f"ratelimit_mw: log in at {url} with {secret}, or set {DASHBOARD_SECRET}", flush=True)


def _read_mode(text: str) -> int:
    """Return the permissions of unix sockets. Raises `ConfigError` for invalid text."""
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= _MAX_MODE:
        raise ConfigError(f"--socket-mode: got {text!r}, expected octal digits such as 660", code="RL-051")
    return mode


def _read_secret(file: str | None) -> str:
    if file is None:
        return ""
    try:
        secret = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--secret-file {file}: {error}", code="RL-059") from None
    if not secret:
        raise ConfigError(f"--secret-file {file}: is empty, expected a secret", code="RL-059")
    return checked_secret(secret, f"--secret-file {file}")


def listen(addresses: Sequence[Address], mode: int) -> list[socket.socket]:
    """Return a bound socket for each address. Raises `ConfigError` if one is not available.

    `mode`: the permissions of unix sockets.
    """
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            try:
                sockets.append(_bound(address, mode))
            except OSError as error:
                raise ConfigError(f"--bind {address.text}: {error}", code="RL-053") from None
    except ConfigError:
        for one in sockets:
            one.close()
        raise
    return sockets


def _bound(address: Address, mode: int) -> socket.socket:
    if address.path is None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        # asyncio sets TCP_NODELAY only if the socket names its protocol; without it, bodies wait for delayed ACKs
        one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address.host, address.port))
        return one
    _remove_stale(address.path)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_mode(mode):
        one.bind(address.path)
    return one


def _remove_stale(path: str) -> None:
    """Remove a socket that a process left when it ended. Raises `OSError` if the path is in use."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
    raise FileExistsError(f"{path} is in use by a running server")


def names_of(addresses: Sequence[Address], sockets: Sequence[socket.socket], grpc: Sequence[str]) -> list[str]:
    """Return the addresses for the line that says where it serves."""
    names = []
    for address, one in zip(addresses, sockets, strict=True):
        if address.path is not None:
            names.append(address.text)
        else:
            host = f"[{address.host}]" if ":" in address.host else address.host
            names.append(f"http://{host}:{one.getsockname()[1]}")
    return [*names, *(f"grpc://{text}" for text in grpc)]
