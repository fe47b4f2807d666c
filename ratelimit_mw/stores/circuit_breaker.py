"""A layer that leaves a store alone which failed: a circuit breaker (M. Nygard, Release It!).

After `FAILURES` failures in a row the store is not asked for a pause: whoever would ask has a `StoreError` at once.
After the pause one request asks. If it is answered, all ask again; if not, the next pause is twice as long.
"""

from collections.abc import Callable, Sequence
from random import uniform
from typing import Final

from ratelimit_mw.core.errors import StoreError, StoreNotAsked
from ratelimit_mw.core.events import Kind, StoreEvent
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import error_summary, logger
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.layer import SCRIPT_ERROR, Clock, Layer, Listener
from ratelimit_mw.stores.lifecycle import fork_safe_lock

FAILURES: Final = 3  # in a row: each of a request that was asked after the one before had failed
INITIAL_PAUSE: Final = 0.1  # seconds: the first pause
MAX_PAUSE: Final = 0.5  # seconds: with that, and a probe that has to connect anew, it is back within a second
_LOG_INTERVAL: Final = 10.0  # seconds from one line that it is away to the next: a store that flaps fills no disk


class CircuitBreaker(Layer):
    """See `layer.Layer`.

    Many requests that one lost call fails are one failure: a failure counts if its request was asked after the one
    before was known. What a server says of a request's own arguments is an answer. Where the clock steps back by more
    than a pause, what was known by it is no matter. `jitter`: makes a pause shorter, by
    half at most ("equal jitter"), so that many processes do not ask in step.
    """

    def __init__(self, jitter: Callable[[float, float], float] = uniform) -> None:
        self._jitter: Final = jitter
        self._lock = fork_safe_lock()
        self._listeners: tuple[Listener, ...] = ()
        self._last_logged: float | None = None  # when a line said that it is away
        self.clear()

    def clear(self) -> None:
        """Nothing is known of the store."""
        with self._lock:
            self._failures = 0  # in a row
            self._pause = INITIAL_PAUSE
            self._until: float | None = None  # if it is there, the breaker is open: not asked until then
            self._last_change = 0.0  # when the latest failure was known, or a probe was sent
            self._since = 0.0  # when it failed first
            self._error = ""
            self._rejected = False  # by the latest failure
            self._outage_logged = False  # a line says that it is away

    def reset_after_fork(self) -> None:
        """See `Layer.reset_after_fork`."""
        self._lock = fork_safe_lock()
        self.clear()

    def subscribe(self, listener: Listener) -> bool:
        """See `Layer.subscribe`."""
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)
        return True

    def before_take(self, charges: Sequence[Charge], now: float) -> None:  # noqa: ARG002  # whoever asks
        """Raises `StoreError` during a pause."""
        if self._until is None:
            return
        with self._lock:
            self._check(now)
            if self._until is None:
                return
            # one that is never heard of does not keep the others from asking
            self._until, self._last_change = now + MAX_PAUSE, now
        self._notify("probe", now)

    def before_peek(self, now: float) -> None:
        """The same, and it is no probe."""
        self._check(now)

    def after_take(
        self,
        charges: Sequence[Charge],  # noqa: ARG002  # whoever asks
        decisions: Sequence[Decision],
        started_at: float,
        clock: Clock,
    ) -> None:
        """It answered."""
        if not self._failures:
            return
        if isinstance(decisions, Answer):  # from memory
            self._allow_next_probe(started_at)
        else:
            self._record_answer(clock())

    def on_failure(self, charges: Sequence[Charge], error: BaseException, started_at: float, now: float) -> None:  # noqa: ARG002
        """It did not answer, or who asked was gone, or had asked what cannot be."""
        if not isinstance(error, StoreError) or isinstance(error, StoreNotAsked):
            self._allow_next_probe(started_at)
        elif SCRIPT_ERROR in str(error):
            self._record_answer(now)
        else:
            self._record_failure(error, started_at, now)

    def _check(self, now: float) -> None:
        if (until := self._until) is not None and until - now <= 2 * MAX_PAUSE and now < until:
            raise StoreNotAsked(f"not asked for a moment: {self._error}", rejected=self._rejected)

    def _allow_next_probe(self, started_at: float) -> None:
        """If that was the probe."""
        with self._lock:
            if self._until is not None and started_at >= self._last_change:
                self._until = started_at

    def _record_answer(self, now: float) -> None:
        with self._lock:
            was_open, was_logged, since = self._until is not None, self._outage_logged, self._since
            self._failures, self._until, self._pause, self._outage_logged = 0, None, INITIAL_PAUSE, False
        if was_open:
            self._notify("closed", now, since)
        if was_logged:
            logger.warning("ratelimit_mw: store: it answers again, after %.1f seconds", max(0.0, now - since))

    def _record_failure(self, error: StoreError, started_at: float, now: float) -> None:
        opens, log_outage, pause = False, False, 0.0
        with self._lock:
            self._error, self._rejected = error_summary(error), error.rejected
            if not self._failures:
                self._since = now
            if not self._failures or not started_at < self._last_change < now + MAX_PAUSE:
                self._failures += 1
                self._last_change = now
                opens = self._failures >= FAILURES
            if opens:
                pause = self._jitter(self._pause / 2, self._pause)
                self._until = now + pause
                self._pause = min(2 * self._pause, MAX_PAUSE)
                log_outage = not self._outage_logged and (
                    self._last_logged is None or not self._last_logged <= now < self._last_logged + _LOG_INTERVAL
                )
                if log_outage:
                    self._outage_logged, self._last_logged = True, now
        self._notify("failed", now)
        if opens:
            self._notify("open", now, pause=pause)
        if log_outage and not error.rejected:  # a rejection is logged where it is found, with its fix
            logger.warning(
                "ratelimit_mw: store: it failed, and is asked now and then until it answers: %s", self._error
            )

    def _notify(self, kind: Kind, now: float, since: float | None = None, pause: float = 0.0) -> None:
        if self._listeners:
            error = "" if kind == "closed" else self._error
            event = StoreEvent(kind, error, max(0.0, now - (self._since if since is None else since)), pause)
            for listener in self._listeners:
                listener(event)
