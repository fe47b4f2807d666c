"""Finds how many processes the server runs, as each has a memory store of its own, and which clients uvicorn trusts."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import Any, Final

from ratelimit_mw.core.log import Finding, warn_or_fail

_SERVERS: Final = ("uvicorn", "gunicorn", "hypercorn", "granian", "fastapi")
_COUNT: Final = re.compile("[0-9]{1,9}")
_WORKERS: Final = re.compile(r"(?:--workers|-w)(?:=?([0-9]+))?")
_TRUSTED: Final = re.compile(r"--forwarded-allow-ips(?:=(.*))?")
_EVERY_CLIENT: Final = {"*", "0.0.0.0/0", "::/0"}


def configured_workers() -> int:
    """Return the number of processes that the server is configured to start; 1 if it is unknown.

    Reads it from the running server (uWSGI, gunicorn, uvicorn, hypercorn, granian), or else from the server's command
    line, `GUNICORN_CMD_ARGS`, `GRANIAN_WORKERS` or `WEB_CONCURRENCY`.
    """
    running_workers = _running_workers()
    if running_workers is not None:
        return running_workers
    program = sys.argv[0] if sys.argv else ""
    count = os.environ.get("WEB_CONCURRENCY", "")
    if any(name in program for name in _SERVERS):
        if "gunicorn" in program:
            count = _option(_WORKERS, _gunicorn_arguments()) or count
        if "granian" in program:
            count = os.environ.get("GRANIAN_WORKERS", "") or count
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
                code="RL-150",
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


def _uvicorn_workers(names: Mapping[str, Any]) -> object:
    """Return the `workers` of uvicorn, which ignores this setting when it reloads code."""
    config = names.get("config")
    return 1 if getattr(config, "should_reload", False) else getattr(config, "workers", None)


_WORKERS_BY_CALL: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "gunicorn.arbiter": lambda names: getattr(getattr(names.get("self"), "cfg", None), "workers", None),
    "uvicorn._subprocess": _uvicorn_workers,
    "hypercorn.asyncio.run": lambda names: getattr(names.get("config"), "workers", None),
    "hypercorn.trio.run": lambda names: getattr(names.get("config"), "workers", None),
    "granian.server.common": lambda names: getattr(names.get("self"), "workers", None),  # the parent, where it forks
}
"""Modules of servers with a call that knows the number of workers, and how to find it in the call's local variables."""


def _running_workers() -> int | None:
    """Return the number of workers, if a function of a server is on the stack of this thread; None otherwise.

    A spawned worker of granian knows only its own index, so the result is then a lower bound.

    The servers load the app, and run its event loop, inside such a function. This also finds a number that no command
    line shows: in `gunicorn.conf.py`, in hypercorn's file of settings, in `uvicorn.run(workers=...)` and in
    `Granian(workers=...)`. Imports no server.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # finds the server's call
    at_least: int | None = getattr(sys.modules.get("uwsgi"), "numproc", None)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module == "granian.server.mp":
            number = frame.f_locals.get("worker_id")
            at_least = number if isinstance(number, int) else at_least  # a spawned worker knows only its own number
        elif module in _WORKERS_BY_CALL:  # before Python 3.13, a frame whose locals were read keeps them alive
            workers = _WORKERS_BY_CALL[module](frame.f_locals)
            if isinstance(workers, int):
                return max(workers, 1)
        frame = frame.f_back
    return at_least


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
