"""Counts decisions, waits and calls of a server."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Final, Literal
from zlib import crc32

from msgspec import Struct

from ratelimit_mw.core.errors import StoreError, StoreNotQueried
from ratelimit_mw.core.events import StoreEvent
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.metrics.families import (
    BOUND_LABELS,
    BOUNDS,
    DELAY_SECONDS,
    DELAYED,
    MICROSECONDS,
    REFUSALS,
    REQUESTS,
    STORE_ERRORS,
    STORE_SECONDS,
    WAITING,
)
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.metrics.sample import SAMPLE

StoreCall = Literal["take", "settle"]
Outcome = Literal["admitted", "refused", "shed"]
ErrorKind = Literal["timeout", "connection", "rejected", "reply"]


def count_decision(verdict: Verdict) -> None:
    """Count a verdict, and the limits that refused, including shadow limits."""
    rule, charges = verdict.rule or "", verdict.charges
    if charges and crc32(charges[-1].key.encode("utf-8", "surrogatepass")) < SAMPLE.below:
        SAMPLE.add(charges[-1].key, verdict)
    if len(verdict.decisions) == 1 and verdict.source == "store":
        (decision,) = verdict.decisions
        if decision.allowed and not decision.delay:  # most requests
            COUNTS.count_admitted(rule)
            return
    COUNTS.add(REQUESTS, (rule, outcome_of(verdict), verdict.source))
    if not all([decision.allowed for decision in verdict.decisions]):  # noqa: C419  # a list is faster
        pairs = list(zip(verdict.charges, verdict.decisions, strict=False))
        SAMPLE.add_shadowed(one.key for one, decision in pairs if one.role == "shadow" and not decision.allowed)
        for index, (charge, decision) in enumerate(pairs):
            if not decision.allowed:
                shadow = "true" if charge.role == "shadow" else "false"
                COUNTS.add(REFUSALS, (rule, limit_label(verdict, index), shadow))
    if verdict.delay:
        COUNTS.add(DELAYED, (rule,))
        COUNTS.add(DELAY_SECONDS, (rule,), round(verdict.delay * MICROSECONDS))
    COUNTS.update()


def outcome_of(verdict: Verdict) -> Outcome:
    """Return the outcome of a decision, as metrics show it."""
    if verdict.allowed:
        return "admitted"
    return "shed" if verdict.source == "latency_goal" else "refused"


def limit_label(verdict: Verdict, index: int) -> str:
    """Return the label of a charge's limit. It is not a name that a callable returned, which may identify a client."""
    label: str = verdict.policies[index].label if index < len(verdict.policies) else ""
    return label


def count_waiting(rule: str, change: int) -> None:
    """Count a request that begins (1) or ends (-1) to wait."""
    COUNTS.add(WAITING, (rule,), change)


class OpenStores(Struct, frozen=True):
    """Counts a store while its circuit breaker is open. Objects for one store are equal, so only one is subscribed."""

    store: int  # its id

    def __call__(self, event: StoreEvent) -> None:
        """Receive an event of the store."""
        if event.kind in ("open", "closed"):
            COUNTS.set_open(self.store, is_open=event.kind == "open")


class StoreCalls:
    """Counts the calls of servers, once a gate counts. `listeners`: also receive each call and its seconds."""

    def __init__(self) -> None:
        self.enabled = False
        self.listeners: list[Callable[[StoreCall, float], Any]] = []

    def record(self, call: StoreCall, seconds: float, error: Exception | None = None) -> None:
        """Count a call that was replied to, or failed with an error."""
        if error is not None:
            if not isinstance(error, StoreNotQueried):
                COUNTS.add(STORE_ERRORS, (call, error_kind(error)))
            return
        label = BOUND_LABELS[bisect_left(BOUNDS, seconds)]
        COUNTS.add(STORE_SECONDS, (call, label), part="bucket")
        COUNTS.add(STORE_SECONDS, (call,), round(seconds * MICROSECONDS), "sum")
        for listener in self.listeners:
            listener(call, seconds)


def error_kind(error: Exception) -> ErrorKind:
    """Return the kind of an error by which failed calls are counted."""
    text = str(error)
    if isinstance(error, StoreError) and error.rejected:
        return "rejected"
    if isinstance(error, TimeoutError) or text.startswith("no answer"):
        return "timeout"
    return "connection" if "connect" in text or isinstance(error, OSError) else "reply"


STORE_CALLS: Final = StoreCalls()
