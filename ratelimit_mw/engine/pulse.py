"""Calls a function once a second, off the request path: in a thread, or in a task of an event loop.

The function returns whether to call it again.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.memo import get_or_create
from ratelimit_mw.core.runtime import spawn_task
from ratelimit_mw.stores.lifecycle import PerLoop, after_fork_in_child

Wait = Callable[[], float]
"""Returns the seconds until the next call."""

_NO_THREAD: Final = "no thread can be started to write to the store: %s"


class ThreadPulse:
    """Calls a function from a thread, which runs as long as there is something to do. `name`: of the thread."""

    def __init__(self, call: Callable[[], bool], wait: Wait, name: str) -> None:
        self._call: Final = call
        self._wait: Final = wait
        self._name: Final = name
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        self.__dict__.pop("starting", None)
        self.is_running = False

    @property
    def _starting(self) -> threading.Lock:
        """Created on first use: gevent workers patch `threading` after the app is loaded and forked."""
        return get_or_create(self, "starting", threading.Lock)

    def start(self) -> None:
        """Start the thread, unless it runs. Never raises."""
        with self._starting:
            if self.is_running:
                return
            try:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self.is_running = True
            except RuntimeError as error:
                warn_throttled(self._name, _NO_THREAD, error, code="RL-235")

    def _run(self) -> None:
        goes_on, pause = True, threading.Event()  # gevent patches it, as `_starting`
        while goes_on:
            pause.wait(self._wait())
            goes_on = self._call()
        self.is_running = False


class LoopPulse:
    """Calls a coroutine function from the event loop in which `start` is called."""

    def __init__(self, call: Callable[[], Awaitable[bool]], wait: Wait) -> None:
        self._call: Final = call
        self._wait: Final = wait
        self._timers: Final = PerLoop(_Timer)

    def start(self) -> None:
        """Set the timer, unless it is set. In a thread without a loop, does nothing: a later call in a loop does."""
        try:
            timer = self._timers.get()
        except RuntimeError:
            return
        if not timer.is_set:
            timer.is_set = True
            asyncio.get_running_loop().call_later(self._wait(), self._begin, timer)

    def _begin(self, timer: "_Timer") -> None:
        timer.is_set = False
        spawn_task(self._go_on())

    async def _go_on(self) -> None:
        if await self._call():
            self.start()


class _Timer:
    """Whether one event loop will make a call."""

    is_set = False


Pulse = ThreadPulse | LoopPulse
