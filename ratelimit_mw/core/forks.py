"""Calls functions in each forked child, also under uWSGI, which forks without the hooks of Python."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

_functions: Final[list[Callable[[], None]]] = []
_processes: Final = [os.getpid()]  # the process in which the functions were called last, or this module was loaded


def after_fork_in_child(function: Callable[[], None]) -> None:
    """Call `function` once in each forked child, before other code of this package."""
    _functions.append(function)


def around_fork(before: Callable[[], None], after_in_parent: Callable[[], None]) -> None:
    """Call these functions in the process that forks. uWSGI does not call them."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(before=before, after_in_parent=after_in_parent)


def _start_child() -> None:
    """Call the functions, unless another hook has called them in this process."""
    process = os.getpid()
    if _processes[-1] != process:
        _processes[:] = [process]
        for function in _functions:
            function()


def _use_hook_of_uwsgi(uwsgi: Any) -> None:
    """Let uWSGI call the functions in each worker, spooler and mule that it forks.

    Its module of decorators replaces the hook when it is imported, so it is imported here, first.
    """
    missing = object()
    spooler = getattr(uwsgi, "spooler", missing)  # the import replaces this one, too
    with suppress(Exception):  # it may be missing, and raises one without uWSGI's master process
        import_module("uwsgidecorators")
    if spooler is not missing:
        uwsgi.spooler = spooler
    inner = getattr(uwsgi, "post_fork_hook", None)

    def post_fork_hook() -> None:
        _start_child()
        if inner is not None:
            inner()

    uwsgi.post_fork_hook = post_fork_hook


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_child)
if "uwsgi" in sys.modules:  # uWSGI itself made this module, before it loaded the app
    _use_hook_of_uwsgi(sys.modules["uwsgi"])
