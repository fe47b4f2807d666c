"""A circuit breaker (M. Nygard, Release It!): it stops querying a store that fails.

After `FAILURES_TO_OPEN` consecutive failures the breaker opens for a pause, in which each take and each peek raises a
`StoreError` at once. Requests that fail at the same time count as one failure. After the pause one request probes the
store. If the store replies, the breaker closes; if not, the next pause is twice as long, up to `MAX_PAUSE`.
"""

from collections.abc import Callable, Sequence
from random import uniform
from typing import Final

from ratelimit_mw.core.errors import StoreError, StoreNotQueried
from ratelimit_mw.core.events import Kind, StoreEvent
from ratelimit_mw.core.limit import Decision
from ratelimit_mw.core.log import error_summary, warn
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.contract import SCRIPT_ERROR, Listener
from ratelimit_mw.stores.lifecycle import fork_safe_lock

FAILURES_TO_OPEN: Final = 3  # consecutive failures; `CircuitBreaker` describes which ones count
INITIAL_PAUSE: Final = 0.1  # seconds
MAX_PAUSE: Final = 0.5  # seconds; short enough that the breaker closes within a second after a recovery
_LOG_INTERVAL: Final = 10.0  # seconds between log lines about an outage, as a flapping store must not fill the disk


class CircuitBreaker:
    """Opens after consecutive failures and probes the store after a pause. Thread-safe; does no I/O.

    A failed request counts only if it started after the latest failure that counted. So requests that are in progress
    at the same time count as one failure, however many of them fail. A reply of the store sets the count to 0. A
    server's error about the arguments of a request is a reply, too. After the clock has stepped back, recorded times
    that are too far in the future are ignored. `jitter`: shortens a pause by up to half ("equal jitter"), so that
    processes do not probe at the same time.

    `failures`: the consecutive failures; without any, the breaker is closed, and neither `enter` nor `replied` need be
    called.
    """

    def __init__(self, jitter: Callable[[float, float], float] = uniform) -> None:
        self._jitter: Final = jitter
        self._lock = fork_safe_lock()
        self._listeners: tuple[Listener, ...] = ()
        self._last_logged: float | None = None  # when an outage was logged
        self.clear()

    def clear(self) -> None:
        """Close the breaker and forget all failures."""
        with self._lock:
            self.failures = 0  # consecutive
            self._pause = INITIAL_PAUSE
            self._pause_end: float | None = None  # the end of the pause; None while the breaker is closed
            # A call that started before this time is not the probe, and its failure does not count. Set when a failure
            # is counted, and when a probe starts.
            self._earliest_counted_start = 0.0
            self._since = 0.0  # when the first of the consecutive failures was recorded
            self._error = ""
            self._rejected = False  # the latest failure was a rejection
            self._outage_logged = False

    def subscribe(self, listener: Listener) -> bool:
        """Send events to `listener`. A second call has no effect."""
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)
        return True

    def enter(self, now: float) -> None:
        """Raise `StoreError` during a pause. The first request after a pause becomes the probe."""
        if self._pause_end is None:
            return
        with self._lock:
            self.check(now)
            if self._pause_end is None:
                return
            # Other requests skip the store until this probe has a result, or for MAX_PAUSE if it gets none.
            self._pause_end, self._earliest_counted_start = now + MAX_PAUSE, now
        self._notify("probe", now)

    def replied(self, decisions: Sequence[Decision], started_at: float, now: float) -> None:
        """Close the breaker if the store itself replied."""
        if isinstance(decisions, Answer):  # made without a call of the store
            self._end_probe_without_reply(started_at)
        else:
            self._record_reply(now)

    def failed(self, error: BaseException, started_at: float, now: float) -> None:
        """Count a failure of the store. Canceled requests and invalid charges do not count."""
        if not isinstance(error, StoreError) or isinstance(error, StoreNotQueried):
            self._end_probe_without_reply(started_at)
        elif SCRIPT_ERROR in str(error):
            self._record_reply(now)
        else:
            self._record_failure(error, started_at, now)

    def check(self, now: float) -> None:
        """Raise `StoreError` during a pause. A peek calls only this: it is never a probe."""
        # If the end is further away than a pause can last, the clock has stepped back.
        if (end := self._pause_end) is not None and end - now <= 2 * MAX_PAUSE and now < end:
            raise StoreNotQueried(f"not queried during a pause: {self._error}", rejected=self._rejected)

    def _end_probe_without_reply(self, started_at: float) -> None:
        """If this request was the probe, let the next request be the probe, as this one got no reply of the store."""
        with self._lock:
            if self._pause_end is not None and started_at >= self._earliest_counted_start:
                self._pause_end = started_at  # in the past, so the pause is over

    def _record_reply(self, now: float) -> None:
        with self._lock:
            was_open, was_logged, since = self._pause_end is not None, self._outage_logged, self._since
            self.failures, self._pause_end, self._pause, self._outage_logged = 0, None, INITIAL_PAUSE, False
        if was_open:
            self._notify("closed", now, since)
        if was_logged:
            warn("store: available again after %.1f seconds", max(0.0, now - since), code="RL-203")

    def _record_failure(self, error: StoreError, started_at: float, now: float) -> None:
        opens, log_outage, pause = False, False, 0.0
        with self._lock:
            self._error, self._rejected = error_summary(error), error.rejected
            if not self.failures:
                self._since = now
            clock_stepped_back = self._earliest_counted_start >= now + MAX_PAUSE
            if not self.failures or clock_stepped_back or started_at >= self._earliest_counted_start:
                self.failures += 1
                self._earliest_counted_start = now
                opens = self.failures >= FAILURES_TO_OPEN
            if opens:
                pause = self._jitter(self._pause / 2, self._pause)
                self._pause_end = now + pause
                self._pause = min(2 * self._pause, MAX_PAUSE)
                log_outage = not self._outage_logged and (
                    self._last_logged is None or not self._last_logged <= now < self._last_logged + _LOG_INTERVAL
                )
                if log_outage:
                    self._outage_logged, self._last_logged = True, now
        self._notify("failed", now)
        if opens:
            self._notify("open", now, pause=pause)
        if log_outage and not error.rejected:  # a rejection is logged with its fix where it is detected
            warn("store: unavailable, probing until it answers: %s", self._error, code="RL-202")

    def _notify(self, kind: Kind, now: float, since: float | None = None, pause: float = 0.0) -> None:
        if self._listeners:
            error = "" if kind == "closed" else self._error
            event = StoreEvent(kind, error, max(0.0, now - (self._since if since is None else since)), pause)
            for listener in self._listeners:
                listener(event)
