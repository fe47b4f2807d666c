"""A layer that leaves a store alone which failed: a circuit breaker (M. Nygard, Release It!).

After `FAILURES` failures in a row the store is not asked for a pause: whoever would ask has a `StoreError` at once.
After the pause one request asks. If it is answered, all ask again; if not, the next pause is twice as long.
"""

from collections.abc import Callable, Sequence
from random import uniform
from typing import Final

from ratelimit_mw.errors import NotAsked, StoreError
from ratelimit_mw.events import Kind, StoreEvent
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.notices import logger, one_line
from ratelimit_mw.stores.forks import lock
from ratelimit_mw.stores.layer import WRONG, Clock, Layer, Listener
from ratelimit_mw.verdict import Answer

FAILURES: Final = 3  # in a row: each of a request that was asked after the one before had failed
FIRST: Final = 0.1  # seconds: the first pause
LONGEST: Final = 0.5  # seconds: with that, and a probe that has to connect anew, it is back within a second
_QUIET: Final = 10.0  # seconds from one line that it is away to the next: a store that flaps fills no disk


class Breaker(Layer):
    """See `layer.Layer`.

    Many requests that one lost call fails are one failure: a failure counts if its request was asked after the one
    before was known. What a server says of a request's own arguments is an answer. Where the clock steps back by more
    than a pause, what was known by it is no matter. `spread`: makes a pause shorter, by
    half at most ("equal jitter"), so that many processes do not ask in step.
    """

    def __init__(self, spread: Callable[[float, float], float] = uniform) -> None:
        self._spread: Final = spread
        self._lock = lock()
        self._listeners: tuple[Listener, ...] = ()
        self._said: float | None = None  # when a line said that it is away
        self.clear()

    def clear(self) -> None:
        """Nothing is known of the store."""
        with self._lock:
            self._failures = 0  # in a row
            self._pause = FIRST
            self._until: float | None = None  # if it is there, the breaker is open: not asked until then
            self._known = 0.0  # when the latest failure was known, or a probe was sent
            self._since = 0.0  # when it failed first
            self._error = ""
            self._rejected = False  # by the latest failure
            self._told = False  # a line says that it is away

    def start_over(self) -> None:
        """See `Layer.start_over`."""
        self._lock = lock()
        self.clear()

    def listen(self, listener: Listener) -> bool:
        """See `Layer.listen`."""
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)
        return True

    def before(self, charges: Sequence[Charge], now: float) -> None:  # noqa: ARG002  # whoever asks
        """Raises `StoreError` during a pause."""
        if self._until is None:
            return
        with self._lock:
            self._check(now)
            if self._until is None:
                return
            # one that is never heard of does not keep the others from asking
            self._until, self._known = now + LONGEST, now
        self._tell("probe", now)

    def peeks(self, now: float) -> None:
        """The same, and it is no probe."""
        self._check(now)

    def after(self, charges: Sequence[Charge], decisions: Sequence[Decision], began: float, clock: Clock) -> None:  # noqa: ARG002
        """It answered."""
        if not self._failures:
            return
        if isinstance(decisions, Answer):  # from memory
            self._let_another_ask(began)
        else:
            self._answered(clock())

    def failed(self, charges: Sequence[Charge], error: BaseException, began: float, now: float) -> None:  # noqa: ARG002
        """It did not answer, or who asked was gone, or had asked what cannot be."""
        if not isinstance(error, StoreError) or isinstance(error, NotAsked):
            self._let_another_ask(began)
        elif WRONG in str(error):
            self._answered(now)
        else:
            self._count(error, began, now)

    def _check(self, now: float) -> None:
        if (until := self._until) is not None and until - now <= 2 * LONGEST and now < until:
            raise NotAsked(f"not asked for a moment: {self._error}", rejected=self._rejected)

    def _let_another_ask(self, began: float) -> None:
        """If that was the probe."""
        with self._lock:
            if self._until is not None and began >= self._known:
                self._until = began

    def _answered(self, now: float) -> None:
        with self._lock:
            was_open, told, since = self._until is not None, self._told, self._since
            self._failures, self._until, self._pause, self._told = 0, None, FIRST, False
        if was_open:
            self._tell("closed", now, since)
        if told:
            logger.warning("ratelimit_mw: store: it answers again, after %.1f seconds", max(0.0, now - since))

    def _count(self, error: StoreError, began: float, now: float) -> None:
        opens, away, pause = False, False, 0.0
        with self._lock:
            self._error, self._rejected = one_line(error), error.rejected
            if not self._failures:
                self._since = now
            if not self._failures or not began < self._known < now + LONGEST:
                self._failures += 1
                self._known = now
                opens = self._failures >= FAILURES
            if opens:
                pause = self._spread(self._pause / 2, self._pause)
                self._until = now + pause
                self._pause = min(2 * self._pause, LONGEST)
                away = not self._told and (self._said is None or not self._said <= now < self._said + _QUIET)
                if away:
                    self._told, self._said = True, now
        self._tell("failed", now)
        if opens:
            self._tell("open", now, pause=pause)
        if away and not error.rejected:  # a rejection is logged where it is found, with its fix
            logger.warning(
                "ratelimit_mw: store: it failed, and is asked now and then until it answers: %s", self._error
            )

    def _tell(self, kind: Kind, now: float, since: float | None = None, pause: float = 0.0) -> None:
        if self._listeners:
            error = "" if kind == "closed" else self._error
            event = StoreEvent(kind, error, max(0.0, now - (self._since if since is None else since)), pause)
            for listener in self._listeners:
                listener(event)
