"""`ratelimit-mw dashboard`: serves the live page of an app's settings."""

import argparse
import os
from typing import Any, Final

from ratelimit_mw.cli.serve import listen, make_secret, names_of, parse_address, say_secret
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.dashboard import dashboard
from ratelimit_mw.http.callables import import_from_working_folder
from ratelimit_mw.settings.loading import DASHBOARD_SECRET

_SOCKET_MODE: Final = 0o600  # only this user: without a secret, the page answers callers on a socket
_NO_UVICORN: Final = "dashboard needs the extra of `serve`, python3 -m pip install 'ratelimit-mw[serve]' ({})"


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    about = "serve a page that shows who is limited now, and why"
    parser = commands.add_parser("dashboard", help=about, description=f"{about}; the secret is in ${DASHBOARD_SECRET}")
    parser.add_argument("file", help="the settings of the app: a TOML file, or one that ends in .json")
    parser.add_argument(
        "--bind", default="127.0.0.1:8099", metavar="ADDRESS", help="HOST:PORT or unix:PATH (default: %(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="let operators change limits, reset and block")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Return 1 if the server does not start. Raises `ConfigError` for mistakes."""
    address = parse_address("--bind", args.bind, os.environ.get(DASHBOARD_SECRET, ""), f"set {DASHBOARD_SECRET}")
    try:
        import uvicorn  # noqa: PLC0415  # an extra that only this command needs
    except ImportError as error:
        raise ConfigError(_NO_UVICORN.format(error), code="RL-052") from error
    import_from_working_folder()
    made = make_secret() if args.write else ""
    app = dashboard(args.file, write=args.write)
    config = uvicorn.Config(
        app, ws="none", proxy_headers=False, server_header=False, log_level="warning", access_log=False
    )
    sockets = listen([address], _SOCKET_MODE)
    (name,) = names_of([address], sockets, [])
    print(f"ratelimit_mw: the dashboard of {args.file} is on {name}/", flush=True)
    say_secret(f"{name}/", made)
    server = uvicorn.Server(config)
    server.run(sockets)
    return int(not server.started)
