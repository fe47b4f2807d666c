"""What starts over in a child process, which has none of its parent's threads: locks, and what they guard."""

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

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


M = TypeVar("M")


def on_loop_shutdown(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Have the running loop await this before it ends, as `asyncio.run` and its like end what was left open.

    Keep what is returned; its `aclose` does so at once.
    """
    hook = _shutdown_hook(close)
    with suppress(StopIteration):  # up to where it waits; from here on the loop knows it
        hook.asend(None).send(None)
    return hook


async def _shutdown_hook(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await close()


class PerLoop(Generic[M]):
    """One of a kind for each event loop, made when it is first asked for."""

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        self._instances: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, M] = weakref.WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop, M] | None = None

    def get(self) -> M:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last  # once: other threads have loops of their own
        if last is not None and last[0] is loop:
            return last[1]
        instance = self._instances.get(loop)
        if instance is None:
            self._forget_closed_loops()
            instance = self._instances[loop] = self._make()
        self._last = (loop, instance)
        return instance

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that asked last, in whichever thread."""
        return None if self._last is None else self._last[0]

    def pop(self) -> M | None:
        """That of the running loop, if there is one; it is not kept any longer."""
        self._last = None
        return self._instances.pop(asyncio.get_running_loop(), None)

    def __len__(self) -> int:
        return len(self._instances)

    def _forget_closed_loops(self) -> None:
        """A connection holds on to its loop, so what is of a loop that ended without close does not go by itself."""
        for reference in self._instances.keyrefs():
            loop = reference()
            if loop is not None and loop.is_closed():
                self._instances.pop(loop, None)


class StoreOverrides(NamedTuple):
    """What stores go by. As it is by itself: time runs, and keys are where they always are."""

    monotonic: Callable[[], float] | None = None  # seconds, in place of time.monotonic
    wall: Callable[[], float] | None = None  # seconds, in place of a server's TIME
    key_prefix: str = ""  # stands in front of every key on a server


class RegisteredStore(Protocol):
    """A store that is one of them."""

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        """Go by this from now on, a clock of one's own excepted. `empty`: states in this process are forgotten."""


class StoreRegistry:
    """All stores that still live. None is kept alive by it."""

    def __init__(self) -> None:
        self.overrides = StoreOverrides()
        # by id: a store need not have a hash
        self._stores: WeakValueDictionary[int, RegisteredStore] = WeakValueDictionary()

    def register(self, store: RegisteredStore) -> None:
        """A store was made."""
        self._stores[id(store)] = store  # before it looks: a stage that is set meanwhile is told to all who are here
        if self.overrides != StoreOverrides():
            store._apply(self.overrides, empty=False)  # noqa: SLF001  # the stores' own, and no verb of the public ones

    def apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        """All go by this from now on, and so do those that are made later."""
        self.overrides = overrides
        for reference in self._stores.valuerefs():
            if (store := reference()) is not None:
                store._apply(overrides, empty=empty)  # noqa: SLF001  # see enrol


REGISTRY: Final = StoreRegistry()
