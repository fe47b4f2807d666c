"""Handles the lifecycle of stores: locks and states after a fork, the end of event loops, and overrides by tests."""

import asyncio
import atexit
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from ratelimit_mw.core import forks

_numbers: Final = count()
_methods: Final[dict[int, Callable[[], Any]]] = {}  # weak references to methods, by number
# by lock: a weak reference to the method to call in the child if that lock was held at the fork
_locks: Final[WeakKeyDictionary[Any, Callable[[], Any] | None]] = WeakKeyDictionary()


def after_fork_in_child(method: Callable[[], None]) -> None:
    """Call this bound method in each forked child, if its object still exists.

    Before the call, all locks of `fork_safe_lock` are freed.
    """
    number, methods = next(_numbers), _methods  # a local variable, because at exit Python clears module globals first
    methods[number] = _weak(method, lambda _: methods.pop(number, None))


def fork_safe_lock(on_interrupted_write: Callable[[], None] | None = None) -> Lock:
    """Return a lock that is free in a child process even if a thread of the parent held it at the fork.

    `on_interrupted_write`: a bound method that the child calls in that case, because the thread may have been writing.
    """
    lock = Lock()
    _locks[lock] = None if on_interrupted_write is None else _weak(on_interrupted_write)
    return lock


def call_at_exit(method: Callable[[], None]) -> None:
    """Call this bound method when the program ends, if its object still exists."""
    reference = _weak(method)
    atexit.register(lambda: (bound := reference()) and bound())


def _weak(method: Callable[[], None], on_gone: Callable[[object], object] | None = None) -> Callable[[], Any]:
    """Return a weak reference to a bound method. `on_gone` is called when its object is deleted.

    A `WeakMethod` will not do: at the end of a program it is deleted together with the object, and then its callback
    fails with a message.
    """
    bound: Any = method
    owner_reference, function = weakref.ref(bound.__self__, on_gone), bound.__func__

    def resolve() -> Callable[[], None] | None:
        return None if (owner := owner_reference()) is None else partial(function, owner)

    return resolve


def _reset_after_fork() -> None:
    interrupted = []
    for lock, on_interrupted_write in _locks.items():
        if lock.locked():
            interrupted.append(on_interrupted_write)
        lock._at_fork_reinit()  # noqa: SLF001  # as the standard library does with its own locks
    # a list, because the garbage collector may remove entries of `_methods` meanwhile
    for reference in [*interrupted, *_methods.values()]:
        if reference is not None and (method := reference()) is not None:
            method()


forks.after_fork_in_child(_reset_after_fork)


M = TypeVar("M")


def on_loop_shutdown(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Make the running event loop await `close` when it shuts down, as `asyncio.run` does with open async generators.

    Keep a reference to the generator that is returned. Its `aclose` awaits `close` at once.
    """
    hook = _shutdown_hook(close)
    with suppress(StopIteration):  # run to its `yield`, which registers it with the loop
        hook.asend(None).send(None)
    return hook


async def _shutdown_hook(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await close()


class PerLoop(Generic[M]):
    """One instance for each event loop, created when it is first needed."""

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        self._instances: WeakKeyDictionary[asyncio.AbstractEventLoop, M] = WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop, M] | None = None

    def get(self) -> M:
        """Return the instance of the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last  # read once, because threads with other loops write it, too
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
        """The loop that called `get` last, in any thread."""
        last = self._last  # read once, as in `get`
        return None if last is None else last[0]

    def pop(self) -> M | None:
        """Remove and return the instance of the running loop, or None."""
        self._last = None
        return self._instances.pop(asyncio.get_running_loop(), None)

    def __len__(self) -> int:
        return len(self._instances)

    def _forget_closed_loops(self) -> None:
        """Drop the instances of closed loops. Connections reference their loop, so weak keys do not suffice."""
        for reference in self._instances.keyrefs():
            loop = reference()
            if loop is not None and loop.is_closed():
                self._instances.pop(loop, None)


class StoreOverrides(NamedTuple):
    """The clocks and the key prefix that tests impose on stores. The defaults change nothing."""

    monotonic: Callable[[], float] | None = None  # seconds, in place of time.monotonic
    wall: Callable[[], float] | None = None  # seconds, in place of a server's TIME
    key_prefix: str = ""  # precedes every key on a server


class RegisteredStore(Protocol):
    """A store that accepts overrides."""

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        """Use these overrides. A configured clock takes precedence. `empty`: also forget all states in this process."""


class StoreRegistry:
    """All existing stores, by weak reference, and the overrides that they use."""

    def __init__(self) -> None:
        self.overrides = StoreOverrides()
        # by id, because a store need not be hashable
        self._stores: WeakValueDictionary[int, RegisteredStore] = WeakValueDictionary()

    def register(self, store: RegisteredStore) -> None:
        """Add a new store and apply the present overrides to it."""
        self._stores[id(store)] = store  # before the check, so that a concurrent `apply` finds the store
        if self.overrides != StoreOverrides():
            store._apply(self.overrides, empty=False)  # noqa: SLF001  # not part of the public `Store`

    def apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        """Apply overrides to all existing stores and to those that are created later."""
        self.overrides = overrides
        for reference in self._stores.valuerefs():
            if (store := reference()) is not None:
                store._apply(overrides, empty=empty)  # noqa: SLF001  # as in register


REGISTRY: Final = StoreRegistry()
