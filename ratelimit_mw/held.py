"""Who renews the slots that are held while somebody is at work, and gives them back after: threads, or event loops."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ratelimit_mw.background import finished, keep
from ratelimit_mw.holds import Hold, Holds, renewal
from ratelimit_mw.kept import made_once
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores.forks import start_over_in_child
from ratelimit_mw.stores.loops import OfLoop
from ratelimit_mw.stores.memory import MemoryStore

_SOONEST: Final = 0.005  # seconds: what is under way need not be looked at in each turn of a loop
_NO_THREAD: Final = "slots are renewed by the next requests for slots, as no thread can be started: %s"
_LOST: Final = "slots are not known to be %s, and are free when their lifetime is over: %s"


def _give_back(hold: Hold) -> None:
    try:
        hold.store.settle(hold.back())
    except Exception as error:  # noqa: BLE001  # nobody waits for it
        warn_rarely("slots", _LOST, "given back", error)
    if hold.then is not None:
        hold.then()


class Keeper:
    """Renews and gives back in threads. Its own one runs while something is held, and a little longer."""

    def __init__(self) -> None:
        self._start_over()
        start_over_in_child(self._start_over)

    def _start_over(self) -> None:
        self._holds = Holds()
        self.__dict__.pop("wake", None)
        self._running = False
        self._next = 0.0

    @property
    def _wake(self) -> threading.Condition:
        """Made when it is first needed: gevent's workers patch `threading` after an app was loaded and forked."""
        return made_once(self, "wake", threading.Condition)

    def hold(self, hold: Hold) -> None:
        """Renew it from now on."""
        hold.among = self._holds
        self._holds.add(hold)
        with self._wake:
            if not self._running:
                self._start()
            elif hold.renewed + hold.every < self._next:
                self._wake.notify()

    def release(self, hold: Hold) -> None:
        """Give it back."""
        if self._holds.end(hold):
            _give_back(hold)

    def tend(self) -> None:
        """Renew what is due where no thread could be started for that: called before slots are asked for."""
        if self._running or self._holds.wait(time.monotonic()) is None:
            return
        with self._wake:
            if not self._running:
                self._start()
        if not self._running:
            for call in self._holds.due(time.monotonic()):
                self._renew(call)

    def _start(self) -> None:
        """Start the thread. Where the system gives none just now, the next request tries again."""
        try:
            threading.Thread(target=self._run, name="ratelimit_mw slots", daemon=True).start()
        except RuntimeError as error:
            warn_rarely("slots thread", _NO_THREAD, error)
        else:
            self._running = True

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            for call in self._holds.due(now):
                self._renew(call)
            with self._wake:
                pause = self._holds.wait(time.monotonic())
                if pause is None:
                    self._running = False
                    return
                self._next = time.monotonic() + pause
                self._wake.wait(pause)

    def _renew(self, call: Sequence[Hold]) -> None:
        try:
            call[0].store.settle(renewal(call))
        except Exception as error:  # noqa: BLE001  # nobody waits for it
            warn_rarely("slots", _LOST, "renewed", error)
        for hold in self._holds.done(call, time.monotonic()):
            _give_back(hold)


class _Loop:
    """The holds of one event loop."""

    def __init__(self) -> None:
        self.holds = Holds()
        self._timer: asyncio.TimerHandle | None = None  # one while something is held, and a little longer
        self._next = 0.0  # when it fires, by the clock of the holds

    def hold(self, hold: Hold) -> None:
        self.holds.add(hold)
        if self._timer is None or hold.renewed + hold.every < self._next:
            self._tick_in(hold.every)

    def _tick(self) -> None:
        for call in self.holds.due(time.monotonic()):
            keep(self._renew(call))
        self._timer = None
        pause = self.holds.wait(time.monotonic())
        if pause is not None:
            self._tick_in(max(pause, _SOONEST))

    def _tick_in(self, pause: float) -> None:
        """So soon, and not at the time that was set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(pause, self._tick)
        self._next = time.monotonic() + pause

    async def _renew(self, call: Sequence[Hold]) -> None:
        try:
            await call[0].store.asettle(renewal(call))
        except Exception as error:  # noqa: BLE001  # nobody waits for it
            warn_rarely("slots", _LOST, "renewed", error)
        finally:
            for hold in self.holds.done(call, time.monotonic()):
                keep(_agive_back(hold))


class AsyncKeeper:
    """The same in event loops."""

    def __init__(self) -> None:
        self._loops = OfLoop(_Loop)

    def hold(self, hold: Hold) -> None:
        """Renew it from now on, in the running loop."""
        loop = self._loops.get()
        hold.among = loop.holds
        loop.hold(hold)

    def release(self, hold: Hold, soon: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]) -> None:
        """Give it back, in whatever thread. `soon`: has a coroutine awaited in its loop."""
        if hold.among.end(hold):
            if isinstance(hold.store, MemoryStore):
                _give_back(hold)  # which waits for nothing
            else:
                soon(lambda: _agive_back(hold))

    async def released(self, hold: Hold) -> None:
        """Give it back, and wait until it is; whoever is cancelled meanwhile, it goes on."""
        if hold.among.end(hold):
            await finished(_agive_back(hold))


KEEPER: Final = Keeper()
ASYNC_KEEPER: Final = AsyncKeeper()


def kept_by_thread(hold: Hold) -> Callable[[Any], None]:
    """Renew it until what is returned is called: a follower of the request that holds it."""
    KEEPER.hold(hold)
    return lambda _: KEEPER.release(hold)


def kept_by_loop(hold: Hold) -> Callable[[Any], None]:
    """The same in the running loop."""
    ASYNC_KEEPER.hold(hold)
    return lambda following: ASYNC_KEEPER.release(hold, following.soon)


async def _agive_back(hold: Hold) -> None:
    try:
        await hold.store.asettle(hold.back())
    except Exception as error:  # noqa: BLE001  # nobody waits for it
        warn_rarely("slots", _LOST, "given back", error)
    finally:
        if hold.then is not None:
            hold.then()
