"""Looks for changed overrides in the store, while requests come.

A look is one small read of a version every `refresh` seconds, and one of the whole set when the version differs. Under
asyncio it is a task, in threads a part of one request; there is one at a time. Only the first requests of a process
wait for a look. If the store fails, the overrides stay as they are until they end.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from ratelimit_mw.core.log import error_summary, warn_throttled
from ratelimit_mw.core.runtime import run, spawn_task
from ratelimit_mw.metrics.families import OVERRIDES
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.rules.override_entries import ACTIONS, is_authentic
from ratelimit_mw.rules.overrides import ActiveOverrides, Index
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.contract import declared
from ratelimit_mw.stores.kept_overrides import AsyncOverrideKeeper, KeptOverrides, OverrideKeeper
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides, fork_safe_lock

_NO_ANSWER: Final = "the store did not answer (%s), so those of this process stay as they are until they end"
_FORGED: Final = (
    "those in the store have no right MAC and are ignored, so those of this process stay as they are until they end; "
    "a program without the key_secret of this app wrote them; clear all of them, and set them again"
)
_PLAYED_BACK: Final = (
    "those in the store are older than those of this process and are ignored; a program wrote old ones again; clear "
    "all of them, and set them again"
)


class Refresher:
    """Keeps the overrides of a store up to date in this process. Thread-safe.

    `overrides`: those in force. `due`: when the next look, or the end of an entry, is due. `clock`: monotonic seconds.
    """

    def __init__(self, store: object, settings: Settings) -> None:
        self.overrides: Final = ActiveOverrides(is_known=False)
        self.due = -inf
        self.clock: Callable[[], float] = time.monotonic
        self._wall: Callable[[], float] = time.time
        self._store: Final = store  # kept, so that no other store gets its id
        self._declared: Final = declared(store)
        self._interval: Final = settings.refresh
        self._secret: Final = settings.key_secret
        self._counts: Final = settings.metrics
        self._seen = ""  # the version that was read last, even if its set was ignored
        self._latest = ""  # the version of the latest set with a MAC
        self._next_look = -inf
        self._is_away = False
        self._task: asyncio.Task[None] | None = None
        self._lock: Lock = fork_safe_lock()
        REGISTRY.register(self)

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:  # noqa: ARG002  # read again in any case
        """Use the clocks of a test, whose store has overrides of its own."""
        self.clock, self._wall = overrides.monotonic or time.monotonic, overrides.wall or time.time
        self.overrides.take_over(Index(), self._wall())
        self.overrides.is_known = False
        self._seen = self._latest = ""
        self._next_look = self.due = -inf

    @property
    def is_needed(self) -> bool:
        """Whether to call `look_in_thread` or `look_in_loop` before a request is planned."""
        return self.clock() >= self.due or not self.overrides.is_known

    def look_in_thread(self) -> None:
        """Drop what has ended, and look if that is due. Waits for the look of another thread before the first one."""
        if self._lock.acquire(blocking=not self.overrides.is_known):
            try:
                keeper = self._declared.override_keeper
                if self._begin() and keeper is not None:
                    self._take_over(run(self._read(_InThread(keeper), _no_pause)))
            finally:
                self._lock.release()

    def look_in_loop(self) -> "asyncio.Task[None] | None":
        """Do the same in a task of the running loop. Return the task if it is the first look."""
        task = self._task
        if task is None or task.done() or not task.get_loop().is_running():
            with self._lock:
                is_due = self._begin()
            keeper = self._declared.async_override_keeper
            if is_due and keeper is not None:
                task = self._task = spawn_task(self._look(keeper))
        is_here = task is not None and task.get_loop() is asyncio.get_running_loop()
        return task if is_here and not self.overrides.is_known else None

    async def _look(self, keeper: AsyncOverrideKeeper) -> None:
        index = await self._read(keeper, partial(asyncio.sleep, 0))
        with self._lock:
            self._take_over(index)

    def _begin(self) -> bool:
        """Drop what has ended. Return whether to look now. Requires the lock."""
        now = self.clock()
        self.overrides.expire(self._wall())
        is_due = now >= self._next_look
        if is_due:
            self._next_look = now + self._interval
        self._update()
        return is_due

    async def _read(self, keeper: AsyncOverrideKeeper, pause: Callable[[], Awaitable[object]]) -> Index | None:
        """Return the set of the store; None if it has not changed, is ignored, or the store does not answer."""
        try:
            kept = await keeper.aread_overrides(self._seen)
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            # the store logs a rejection itself, with the fix
            if not (self._is_away or getattr(error, "rejected", False)):
                warn_throttled("overrides", _NO_ANSWER, error_summary(error), code="RL-249")
            self._is_away = True
            return None
        self._is_away = False
        if kept is None or self._is_ignored(kept):
            return None
        index = Index()
        for _ in index.fill(kept.text):
            await pause()
        return index

    def _is_ignored(self, kept: KeptOverrides) -> bool:
        self._seen = kept.version
        if not is_authentic(self._secret, *kept):
            warn_throttled("overrides", _FORGED, code="RL-251", value=kept.version)
            return True
        if self._secret and kept.version:
            if kept.version < self._latest:
                warn_throttled("overrides", _PLAYED_BACK, code="RL-251", value=kept.version)
                return True
            self._latest = kept.version
        return False

    def _take_over(self, index: Index | None) -> None:
        """Use a set. Requires the lock."""
        if index is not None:
            self.overrides.take_over(index, self._wall())
        self.overrides.give_up()
        self._update()

    def _update(self) -> None:
        self.due = min(self._next_look, self.clock() + max(0.0, self.overrides.next_end - self._wall()))
        if self._counts:
            counted = [one.overrides.counts for one in list(_refreshers.values())]
            for action in ACTIONS:
                COUNTS.set(OVERRIDES, (action,), sum(counts[action] for counts in counted))


class _InThread:
    """A keeper for threads, as one for asyncio that never suspends."""

    def __init__(self, keeper: OverrideKeeper) -> None:
        self._keeper: Final = keeper

    async def aread_overrides(self, known: str) -> KeptOverrides | None:
        return self._keeper.read_overrides(known)


async def _no_pause() -> None:
    """Do nothing: other threads run meanwhile."""


# by the id of the store, which the refresher keeps, and by the settings that it reads
_refreshers: Final[WeakValueDictionary[tuple[int, float, str, bool], Refresher]] = WeakValueDictionary()


def refresher_of(store: object, settings: Settings, *, is_async: bool) -> Refresher | None:
    """Return what keeps the overrides of a store up to date, which all gates of the store share.

    None if the store keeps no overrides, or the settings want no look at them.
    """
    described = declared(store)
    keeper = described.async_override_keeper if is_async else described.override_keeper
    if keeper is None or not settings.refresh or settings.enabled is False:
        return None
    key = id(store), settings.refresh, settings.key_secret, settings.metrics
    refresher = _refreshers.get(key)
    if refresher is None:
        refresher = _refreshers.setdefault(key, Refresher(store, settings))
    return refresher
