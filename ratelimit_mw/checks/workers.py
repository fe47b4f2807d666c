"""Finds how many processes the server runs, as each has a memory store of its own, and which clients uvicorn trusts."""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Final

from ratelimit_mw.core.log import Finding, warn_or_fail

_SERVERS: Final = ("uvicorn", "gunicorn", "hypercorn", "granian", "fastapi")
_VARIABLES: Final = {"uvicorn": "UVICORN_WORKERS", "granian": "GRANIAN_WORKERS"}
_RELOADING: Final = ("uvicorn", "fastapi")  # servers that run one process if they reload code
_COUNT: Final = re.compile("[0-9]{1,9}")
_WORKERS: Final = re.compile(r"(?:--workers|-w)(?:=?([0-9]+))?")
_TRUSTED: Final = re.compile(r"--forwarded-allow-ips(?:=(.*))?")
_EVERY_CLIENT: Final = {"*", "0.0.0.0/0", "::/0"}


def configured_workers() -> int:
    """Return the number of processes that the server is configured to start; 1 if it is unknown.

    Reads it from uWSGI, or else from the server's command line, `GUNICORN_CMD_ARGS`, `UVICORN_WORKERS`,
    `GRANIAN_WORKERS` or `WEB_CONCURRENCY`. A server's file of settings, and the arguments of a server that a program
    starts, are not read.
    """
    of_uwsgi = getattr(sys.modules.get("uwsgi"), "numproc", None)
    if isinstance(of_uwsgi, int):
        return of_uwsgi
    program = sys.argv[0] if sys.argv else ""
    server = next((name for name in _SERVERS if name in program), "")
    if server in _RELOADING and "--reload" in sys.argv:
        return 1
    count = os.environ.get(_VARIABLES.get(server, ""), "") or os.environ.get("WEB_CONCURRENCY", "")
    if server == "gunicorn":
        count = _option(_WORKERS, _gunicorn_arguments()) or count
    if server:
        count = _option(_WORKERS, sys.argv) or count
    return max(1, int(count)) if _COUNT.fullmatch(count) else 1


def forgeable_address_findings() -> Iterator[Finding]:
    """Yield a finding if the options of uvicorn make it take the address in `X-Forwarded-For` from every client.

    Reads its command line, `GUNICORN_CMD_ARGS`, `UVICORN_FORWARDED_ALLOW_IPS` and `FORWARDED_ALLOW_IPS`.
    """
    environ = os.environ
    trusted = (
        _option(_TRUSTED, [*_gunicorn_arguments(), *sys.argv])
        or environ.get("UVICORN_FORWARDED_ALLOW_IPS")
        or environ.get("FORWARDED_ALLOW_IPS", "")
    )
    if "uvicorn" in sys.modules and "--no-proxy-headers" not in sys.argv:
        for every in _EVERY_CLIENT.intersection(map(str.strip, trusted.split(","))):
            yield Finding(
                f"forwarded-allow-ips: with {every!r}, uvicorn takes the address in X-Forwarded-For from every client, "
                "so a client can claim any address, and a new one for each request; list the addresses of your proxies "
                "there, or leave it out, and set trusted_proxies",
                code="RL-142",
            )


def thread_finding() -> Iterator[Finding]:
    """Yield a finding if uWSGI runs no threads besides its own, so that settings are not reloaded."""
    if getattr(sys.modules.get("uwsgi"), "has_threads", True) == 0:
        yield Finding(
            "reload: uWSGI runs the thread that looks at the settings only with --enable-threads; add it",
            weakens_limits=False,
            code="RL-144",
        )


def _gunicorn_arguments() -> Sequence[str]:
    with suppress(ValueError):  # an unclosed quote: gunicorn reports it
        return shlex.split(os.environ.get("GUNICORN_CMD_ARGS", ""))
    return ()


def _option(option: re.Pattern[str], arguments: Sequence[str]) -> str:
    """Return the last value of an option on a command line, or empty text."""
    value = ""
    for argument, next_argument in zip(arguments, [*arguments, ""][1:], strict=True):
        if found := option.fullmatch(argument):
            value = found[1] or next_argument
    return value


def multiple_workers_finding(workers: int | None) -> Finding:
    """Return the finding on several processes with a memory store each. `workers`: None if the number is unknown."""
    return Finding(
        f"store: memory:// counts in one process, and there are {workers or 'several'}: clients get that many times "
        "the limits; set store to sqlite:///FOLDER/limits.db, a file that they share, or to a redis:// URL",
        code="RL-112",
    )


def warn_of_multiple_workers(store: str) -> None:
    """Warn once if the store of a `Limiter` is in memory and the server has several processes. `store`: its URL."""
    if store == "memory://" and (workers := configured_workers()) > 1:
        warn_once_of_workers(workers)


@cache
def warn_once_of_workers(workers: int) -> None:
    """Log the finding as a warning, because a `Limiter` has no setting `strict`."""
    warn_or_fail([multiple_workers_finding(workers)], strict=False)
