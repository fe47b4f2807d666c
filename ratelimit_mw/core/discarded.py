"""Reports an object that its own statement creates and throws away, because its class limits nothing then."""

import sys
from pathlib import PurePath
from types import CodeType
from typing import Any
from weakref import finalize

from ratelimit_mw.core.log import warn


def watch_for_discard(created: object, fix: str) -> "finalize[..., Any]":
    """Return a finalizer, to be detached once the object is used. For an `__init__` with `check_arguments`.

    It warns only in the statement that created the object. An object may also be unused for a good reason, such as an
    app of a test, but that one is assigned. `fix`: how to keep the object.
    """
    statement = sys._getframe(2).f_back  # noqa: SLF001  # around `__init__` and its wrapper
    place = (None, 0) if statement is None else (statement.f_code, statement.f_lineno)
    found = finalize(created, _report, type(created).__name__, fix, *place)
    found.atexit = False
    return found


def _report(name: str, fix: str, code: CodeType | None, line: int) -> None:
    statement = sys._getframe(1).f_back  # noqa: SLF001  # around the method of `finalize`; None if C code dropped it
    if code is not None and statement is not None and (statement.f_code, statement.f_lineno) == (code, line):
        place = f"{PurePath(code.co_filename).name}:{line}"
        warn(
            "%s at %s is thrown away before its first request, so it limits nothing; %s",
            name,
            place,
            fix,
            code="RL-108",
        )
