"""What a gate has besides the walk: settings, rules, a local store for when its own fails, hooks, and refusals."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from time import perf_counter
from typing import Any, Final, Self

from msgspec.structs import replace

from ratelimit_mw.advice import known_workers, warn_of_no_slots, warn_of_workers
from ratelimit_mw.calls import is_async, name_of, sync_call_from
from ratelimit_mw.errors import ConfigError, located
from ratelimit_mw.events import DecisionEvent, Hook, StoreEvent
from ratelimit_mw.following import Follower
from ratelimit_mw.held import kept_by_thread
from ratelimit_mw.holding import Room
from ratelimit_mw.holds import Hold, slots_of
from ratelimit_mw.limit import Decision
from ratelimit_mw.matching import Rules
from ratelimit_mw.notices import logger, one_line, warn_rarely
from ratelimit_mw.on_refused import Answerer, answerer
from ratelimit_mw.policy import Match, Plan, conclude, without_store
from ratelimit_mw.queues import Queues
from ratelimit_mw.request import Request
from ratelimit_mw.response import Response, refusal
from ratelimit_mw.settings import Settings
from ratelimit_mw.settling import settle_after
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.local import LocalStore, can_fail
from ratelimit_mw.verdict import Source, Verdict

_ENDPOINTS: Final = 4096  # whose limits are remembered
_SLOTS: Final = (
    "ratelimit_mw: store: in a cluster without key_secret, whoever can choose an identity can choose its slot, and so "
    "put all load on one node; set key_secret"
)


class BaseGate:
    """What `Gate` and `AsyncGate` share. `room`: where requests wait for their turn, one of the process."""

    _places: int  # unless `max_waiting` says how many
    _answerers: tuple[str, ...]  # the kinds of `on_refused` that can answer
    _allowed: str
    _store: Store | AsyncStore
    keeps: Callable[[Hold], Follower] = staticmethod(kept_by_thread)

    def __init__(self, settings: Settings, rules: Rules | None = None, local: LocalStore | None = None) -> None:
        self.settings: Final = settings
        self._rules: Final = rules or Rules(settings)
        self.compiled: Final = lru_cache(_ENDPOINTS)(self._rules.compiled)
        self.keys: Final = self._rules.keys
        if settings.store == "memory://" and (workers := known_workers()) > 1:
            warn_of_workers(workers)
        self._local: Final = LocalStore(settings.local_share) if local is None else local  # decides while it cannot
        self._tell: Final = _hook("on_decision", settings.on_decision)
        self._tell_of_store = _hook("on_store_event", settings.on_store_event)  # where the store does not tell itself
        self._owns_store: Final = isinstance(settings.store, str)
        self.answerer: Final = self._answerer(settings)
        self.room = Room(self._places if settings.max_waiting is None else settings.max_waiting)
        self._queues: Final = Queues()

    def warn_of_no_slots(self) -> None:
        """Warn of settings on slots that do nothing, where all limits stand in the settings."""
        warn_of_no_slots(self.settings, self._rules.lines)

    def refusal(self, request: Request, verdict: Verdict) -> Response:
        """What we answer to a refused request. How it stands is left to the one further out, if there is one."""
        told = request.outcome is not None and request.outcome.shown
        return refusal(verdict, "none" if told else self.settings.headers, self.settings.jitter)

    def holds(self, source: Source) -> Store | AsyncStore:
        """Where that is which a verdict of this source says was taken."""
        return self._local if source == "local" else self._store

    @cached_property
    def inner(self) -> Self:
        """The gate of limits that stand on endpoints, inside of a middleware: the same store and settings.

        What the middleware itself limits is not asked again.
        """
        return self.inner_with(self._store)

    def inner_with(self, store: Any) -> Self:
        """The same, with another store."""
        none: dict[str, Any] = {
            "limits": [],
            "concurrent": 0,
            "app_limits": (),
            "messages": (),
            "rules": (),
            "blocklist": (),
        }
        inner = type(self)(replace(self.settings, **none, store=store))
        inner.room = self.room
        return inner

    def _follow(self, request: Request) -> None:
        """Have an admitted request followed, some of whose limits are settled after the response."""
        request.followers = [*(request.followers or ()), settle_after]

    def _answerer(self, settings: Settings) -> Answerer | None:
        if settings.on_refused is None:
            return None
        with located("on_refused"):
            found = answerer(settings.on_refused)
            if found.kind not in self._answerers:
                raise ConfigError(f"found {name_of(found.call)}, which cannot answer here: allowed is {self._allowed}")
            if "wsgi" in self._answerers and is_async(found.call):
                raise ConfigError(f"found {name_of(found.call)}, which is async; under WSGI nothing is awaited")
        return found

    def _take_over(self, store: Store | AsyncStore) -> None:
        """Make this the gate's store."""
        self._store = store
        self._learns = can_fail(store)
        listen = getattr(store, "listen", None)
        if self._tell_of_store is not None and callable(listen) and listen(self._tell_of_store):
            self._tell_of_store = None
        if getattr(store, "slots", False) and not self.settings.key_secret:
            logger.warning(_SLOTS)

    def _learn(self, asked: Plan, decisions: Sequence[Decision], verdict: Verdict) -> None:
        """What the store said of a request, for the time when it cannot."""
        if (not verdict.allowed or self._local.refuses) and verdict.source == "store":
            self._local.hear(asked.charges, decisions)

    def _hold(self, match: Match, verdict: Verdict | None, request: Request) -> None:
        """Have the slots that a request took given back when its response has ended."""
        if verdict is None or not verdict.allowed or not (slots := slots_of(verdict.charges, verdict.decisions)):
            return
        wake = None
        if match.queues:
            wake = partial(self._queues.wake, [(charge.key, charge.limit.bucket) for charge in slots])
        follower = self.keeps(Hold(self.holds(verdict.source), slots, wake))
        request.followers = [*(request.followers or ()), follower]

    def _tell_decision(self, verdict: Verdict | None, request: Request | None, began: float) -> None:
        if self._tell is not None and verdict is not None:
            self._tell(DecisionEvent(verdict, request, perf_counter() - began))

    def _without_store(self, match: Match, asked: Plan, error: Exception) -> Verdict:
        warn_rarely("store", "failed, on_store_error decides: %s", one_line(error))
        if self._tell_of_store is not None:
            self._tell_of_store(StoreEvent("failed", one_line(error)))
        source, kept = without_store(asked)
        return conclude(match, kept, self._local.take(kept.charges) if kept.charges else (), source)


def _hook(setting: str, value: object) -> Hook | None:
    if value is None:
        return None
    with located(setting):
        return Hook(setting, sync_call_from(value))
