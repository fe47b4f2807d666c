"""Reports an object that its own statement creates and throws away, because its class limits nothing then."""

import sys
from pathlib import PurePath
from types import CodeType
from typing import Any
from weakref import finalize

from ratelimit_mw.core.log import warn


def watch_for_discard(created: object, fix: str, caller_depth: int) -> Any:
    """Return a finalizer, to be detached once the object is used.

    It warns only in the statement that created the object. An object may also be unused for a good reason, such as an
    app of a test, but that one is assigned. `fix`: how to keep the object. `caller_depth`: frames up to that statement.
    """
    caller = sys._getframe(caller_depth)  # noqa: SLF001  # to compare it with that of the end
    found = finalize(created, _report, type(created).__name__, fix, caller.f_code, caller.f_lineno)
    found.atexit = False
    return found


def _report(name: str, fix: str, code: CodeType, line: int) -> None:
    frame = sys._getframe(2)  # noqa: SLF001  # around the method of `finalize`
    if frame.f_code is code and frame.f_lineno == line:
        place = f"{PurePath(code.co_filename).name}:{line}"
        warn(
            "%s at %s is thrown away before its first request, so it limits nothing; %s",
            name,
            place,
            fix,
            code="RL-108",
        )
