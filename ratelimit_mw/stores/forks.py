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
_half_written: Final[dict[int, Callable[[], Any]]] = {}  # and to what is called if another thread held that lock
_methods: Final[dict[int, Callable[[], Any]]] = {}


def start_over_in_child(method: Callable[[], None]) -> None:
    """Have a child process call this method of an object, if the object still lives. Its locks are free by then."""
    number, methods = next(_numbers), _methods  # at the end of a program, a module's own names go first
    methods[number] = _weak(method, lambda _: methods.pop(number, None))


def lock(half_written: Callable[[], None] | None = None) -> Lock:
    """A lock that is free in a child process, though a thread of the parent held it at the fork.

    `half_written`: a method that the child calls then, because that thread may have been writing.
    """
    made = Lock()
    number, locks, writers = next(_numbers), _locks, _half_written

    def forget(_: object) -> None:
        locks.pop(number, None)
        writers.pop(number, None)

    locks[number] = weakref.ref(made, forget)
    if half_written is not None:
        writers[number] = _weak(half_written)
    return made


def _weak(method: Callable[[], None], gone: Callable[[object], object] | None = None) -> Callable[[], Any]:
    """A call for the method, or None where its object is gone; then `gone` is called.

    Not a `WeakMethod`, whose own callback fails, and says so, where both go at once as at the end of a program.
    """
    bound: Any = method
    own, function = weakref.ref(bound.__self__, gone), bound.__func__

    def found() -> Callable[[], None] | None:
        return None if (owner := own()) is None else partial(function, owner)

    return found


def _start_over() -> None:
    # Lists of numbers, not of items: making items may start the garbage collector, which drops entries meanwhile.
    found = [made for number in list(_locks) if (made := _called(_locks, number)) is not None]
    torn = [number for number in list(_half_written) if (made := _called(_locks, number)) is not None and made.locked()]
    for made in found:
        made._at_fork_reinit()  # noqa: SLF001  # as the standard library does with its own locks
    for methods, numbers in ((_half_written, torn), (_methods, list(_methods))):
        for number in numbers:
            if (method := _called(methods, number)) is not None:
                method()


def _called(references: Mapping[int, Callable[[], Any]], number: int) -> Any:
    """What a reference leads to, or None where its object is gone."""
    reference = references.get(number)
    return None if reference is None else reference()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_start_over)
