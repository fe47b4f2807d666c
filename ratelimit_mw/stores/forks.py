"""What starts over in a child process, which has none of its parent's threads: locks, and what they guard."""

import os
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Final

_numbers: Final = count()
_locks: Final[dict[int, Callable[[], Any]]] = {}  # weak references to locks, by number
_interrupted_writes: Final[dict[int, Callable[[], Any]]] = {}  # and to what is called if another thread held that lock
_methods: Final[dict[int, Callable[[], Any]]] = {}


def after_fork_in_child(method: Callable[[], None]) -> None:
    """Have a child process call this method of an object, if the object still lives. Its locks are free by then."""
    number, methods = next(_numbers), _methods  # at the end of a program, a module's own names go first
    methods[number] = _weak(method, lambda _: methods.pop(number, None))


def fork_safe_lock(on_interrupted_write: Callable[[], None] | None = None) -> Lock:
    """A lock that is free in a child process, though a thread of the parent held it at the fork.

    `on_interrupted_write`: a method that the child calls then, because that thread may have been writing.
    """
    created = Lock()
    number, locks, writers = next(_numbers), _locks, _interrupted_writes

    def drop_references(_: object) -> None:
        locks.pop(number, None)
        writers.pop(number, None)

    locks[number] = weakref.ref(created, drop_references)
    if on_interrupted_write is not None:
        writers[number] = _weak(on_interrupted_write)
    return created


def _weak(method: Callable[[], None], on_gone: Callable[[object], object] | None = None) -> Callable[[], Any]:
    """A call for the method, or None where its object is gone; then `on_gone` is called.

    Not a `WeakMethod`, whose own callback fails, and says so, where both go at once as at the end of a program.
    """
    bound: Any = method
    own, function = weakref.ref(bound.__self__, on_gone), bound.__func__

    def found() -> Callable[[], None] | None:
        return None if (owner := own()) is None else partial(function, owner)

    return found


def _reset_after_fork() -> None:
    # Lists of numbers, not of items: making items may start the garbage collector, which drops entries meanwhile.
    found = [created for number in list(_locks) if (created := _resolve(_locks, number)) is not None]
    interrupted = [
        number
        for number in list(_interrupted_writes)
        if (created := _resolve(_locks, number)) is not None and created.locked()
    ]
    for created in found:
        created._at_fork_reinit()  # noqa: SLF001  # as the standard library does with its own locks
    for methods, numbers in ((_interrupted_writes, interrupted), (_methods, list(_methods))):
        for number in numbers:
            if (method := _resolve(methods, number)) is not None:
                method()


def _resolve(references: Mapping[int, Callable[[], Any]], number: int) -> Any:
    """What a reference leads to, or None where its object is gone."""
    reference = references.get(number)
    return None if reference is None else reference()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_reset_after_fork)
