"""Reports the decisions of a gate as metrics, and as attributes of the current OpenTelemetry span."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.slot_wait import Event
from ratelimit_mw.metrics.recording import STORE_CALLS, OpenStores, count_decision, count_waiting
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.contract import BaseStore

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")  # a part of a callable's text that differs in each process
_NO_OPENTELEMETRY: Final = "span_attributes: needs OpenTelemetry, pip install 'ratelimit-mw[opentelemetry]'"

Observer = Callable[[Verdict], None]
Policy = tuple[str, str]  # the digest of settings; see POLICY_INFO


def observer(settings: Settings, *, opens_folder: bool = True) -> Observer | None:
    """Return the function that a gate calls with each verdict, or None. Starts counting, if the settings want that.

    `opens_folder`: whether to count in `metrics_folder`, which creates it. Raises `ConfigError` if the counts cannot be
    kept, or if OpenTelemetry is missing.
    """
    spans = _span_observer(settings)
    if not settings.metrics:
        return spans
    if opens_folder:
        COUNTS.open(settings.metrics_folder)
    STORE_CALLS.enabled = True
    if spans is None:
        return count_decision

    def both(verdict: Verdict) -> None:
        count_decision(verdict)
        spans(verdict)

    return both


def _span_observer(settings: Settings) -> Observer | None:
    if settings.span_attributes == "none":
        return None
    try:
        from ratelimit_mw.opentelemetry import describe_span  # noqa: PLC0415  # optional
    except ImportError as error:
        raise ConfigError(_NO_OPENTELEMETRY, code="RL-055") from error
    if settings.span_attributes == "all":
        return describe_span

    def describe_refused(verdict: Verdict) -> None:
        if not verdict.allowed:
            describe_span(verdict)

    return describe_refused


def record_policy(settings: Settings) -> None:
    """Show the digest of these settings among the metrics, unless they have no limits, like those of a nested gate."""
    if settings.metrics and (settings.limits or settings.rules or settings.app_limits):
        COUNTS.set_policy(policy_of(settings))


def policy_of(settings: Settings, *, failed: bool = False) -> Policy:
    """Return the labels by which the metrics show settings. `failed`: the last reload kept them, for a mistake."""
    return digest(settings), "failed" if failed else "ok" if settings.is_reloaded else "off"


def digest(settings: Settings) -> str:
    """Return a short text that differs if the settings differ. Secrets do not count."""
    text = _ADDRESS.sub("", repr(settings))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def watch_store(store: BaseStore, number: int, fallback: BaseStore) -> None:
    """Show among the metrics how many states stores in memory have, and whether the store's circuit breaker is open.

    `number`: identifies the store among others.
    """
    for one in (store, fallback):
        if one.count_states() is not None:
            COUNTS.count_states_of(one)
    store.subscribe(OpenStores(number))


@contextmanager
def counted_waiting(rule: str | None) -> Iterator[None]:
    """Count a request as waiting."""
    count_waiting(rule or "", 1)
    try:
        yield
    finally:
        count_waiting(rule or "", -1)


class CountedEvent:
    """An `Event` that counts the requests that wait for it."""

    def __init__(self, event: Event, rule: str) -> None:
        self._event: Final = event
        self._rule: Final = rule
        self.wake: Final = event.wake

    async def wait(self, seconds: float) -> None:
        """See `Event.wait`."""
        with counted_waiting(self._rule):
            await self._event.wait(seconds)
