"""Takes over the settings of an integration while the app runs, when their file or callable has others.

A thread looks every `refresh` seconds. It reads the text, builds a gate of the new settings, and assigns it. So no
event loop waits for that, and a request has the settings before or after a change, never parts of both. A mistake
changes nothing.
"""

import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from weakref import ReferenceType, ref

from ratelimit_mw.checks.workers import thread_finding
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import Finding, info, logger, printable, warn, warn_or_fail, without_repeats
from ratelimit_mw.engine.observation import policy_of
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.lifecycle import after_fork_in_child, fork_safe_lock

T = TypeVar("T")

FIXED: Final = ("store", "store_timeout", "on_store_event", "key_secret", "plain_keys", "metrics", "metrics_folder")
_MAX_LENGTH: Final = 2000  # characters of a logged mistake
_NO_SOURCE: Final = Finding(
    "reload: true, but the settings come from no file, so nothing is reloaded; use Settings.load('limits.toml'), or "
    "settings='call:app.limits:current'",
    weakens_limits=False,
    code="RL-143",
)


class Reloader(Generic[T]):
    """Keeps the settings of an integration up to date.

    `build`: returns what decides under some settings, without any effect. Raises `ConfigError` for mistakes. `use`:
    makes it decide. Both are called in another thread, one at a time.
    """

    def __init__(self, settings: Settings, build: Callable[[Settings], T], use: Callable[[T], None]) -> None:
        if settings.origin is None:
            raise ValueError("settings without an origin cannot be reloaded")
        self._source: Final = settings.origin.source
        self._build: Final = build
        self._use: Final = use
        self._settings = settings
        self._digest = self._seen = settings.origin.digest  # of the text in force; of the text that was read last
        self._mark: object = None
        self._policy = policy_of(settings)
        self._lock: Final = fork_safe_lock()
        self._turn: Final = fork_safe_lock()  # held while a thread looks; the one before `start` may do so still
        self._stopped: threading.Event | None = None  # while the thread runs
        after_fork_in_child(self._start_in_child)

    def start(self) -> None:
        """Start the thread, unless it runs. Not earlier: gevent patches `threading` after the app is loaded."""
        with self._lock:
            if self._stopped is not None or not self._settings.is_reloaded:
                return
            warn_or_fail(thread_finding(), strict=False)
            stopped = threading.Event()
            thread = threading.Thread(target=_run, args=(ref(self), stopped), name="ratelimit_mw reload", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                warn("reload: no thread can be started, so nothing is reloaded: %s", error, code="RL-253")
            self._stopped = stopped

    def stop(self) -> None:
        """End the thread, after the look that is under way. `start` starts it again."""
        with self._lock:
            stopped, self._stopped = self._stopped, None
        if stopped is not None:
            stopped.set()

    @property
    def pause(self) -> float:
        """Seconds until the next look; 0 if there is none."""
        return self._settings.refresh if self._settings.is_reloaded else 0.0

    def look(self) -> None:
        """Look at the source, and take over what has changed. Does not raise. A mistake is logged once."""
        with self._turn:
            self._look()

    def _look(self) -> None:
        mark = self._source.mark()
        if mark is not None and mark == self._mark:
            return
        snapshot = self._source.snapshot(waits=True)
        self._mark = mark
        if snapshot.digest == self._seen:
            return
        self._seen = snapshot.digest
        if snapshot.digest == self._digest:  # a mistake was undone
            self._show(self._settings, failed=False)
            return
        try:
            with without_repeats():
                settings: Settings = snapshot.build()
                self._check_fixed(settings)
                built = self._build(settings)
        except Exception as error:  # noqa: BLE001  # a callable of the app may raise anything; the thread has to go on
            self._report(error)
            self._show(self._settings, failed=True)
            return
        self._use(built)
        self._settings, self._digest = settings, snapshot.digest
        self._show(settings, failed=False)
        info("%s: taken over", self._source.place, code="RL-254")

    def _check_fixed(self, settings: Settings) -> None:
        """Raise `ConfigError` for changes that need a restart. Values are not shown, as they may be secrets."""
        changed = [name for name in FIXED if getattr(settings, name) != getattr(self._settings, name)]
        if changed:
            problems = [f"{name}: changed, which a reload cannot take over; restart, or undo it" for name in changed]
            raise ConfigError(*map(self._source.locate, problems), code="RL-069")

    def _report(self, error: Exception) -> None:
        problems = error.problems if isinstance(error, ConfigError) else [type(error).__name__]
        text = printable("; ".join(problems), _MAX_LENGTH)
        warn("%s: not taken over, the settings in force stay: %s", self._source.place, text, code="RL-252")
        logger.debug("ratelimit_mw: %s", self._source.place, exc_info=error)

    def _show(self, settings: Settings, *, failed: bool) -> None:
        policy, before = policy_of(settings, failed=failed), self._policy
        self._policy = policy
        if settings.metrics and policy != before:
            COUNTS.set_policy(policy, before)

    def _start_in_child(self) -> None:
        """Start the thread in a forked child, too, if it ran."""
        if self._stopped is not None:
            self._stopped = None
            self.start()


def reloader(settings: Settings, build: Callable[[Settings], T], use: Callable[[T], None]) -> Reloader[T] | None:
    """Return the `Reloader` of some settings; None if they are not reloaded. Warns if `reload` has no effect."""
    if settings.reload and settings.origin is None:
        warn_or_fail([_NO_SOURCE], strict=settings.strict)
    return Reloader(settings, build, use) if settings.is_reloaded else None


def _run(reference: "ReferenceType[Reloader[Any]]", stopped: threading.Event) -> None:
    """Look until the integration is gone or stopped, or its settings switch reloads off."""
    while not stopped.is_set() and (found := reference()) is not None:
        found.look()
        pause = found.pause
        if not pause:
            found.stop()
            return
        del found  # the thread must not keep it
        stopped.wait(pause)
