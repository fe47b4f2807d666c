"""OpenTelemetry: the counts of the setting `metrics` as metrics, and verdicts as attributes of the current span."""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from ratelimit_mw.core.errors import require
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.metrics.families import REFUSALS, REQUESTS, Family
from ratelimit_mw.metrics.recording import STORE_CALLS, StoreCall, limit_label, outcome_of
from ratelimit_mw.metrics.registry import COUNTS

with require("opentelemetry", "'ratelimit-mw[opentelemetry]'"):
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
    from opentelemetry.trace import get_current_span
    from opentelemetry.util.types import AttributeValue

__all__ = ["instrument"]

_NAME: Final = "ratelimit_mw"


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Make the instruments `ratelimit.requests`, `ratelimit.refusals` and `ratelimit.store.duration`.

    The first two are observed at each export, so they take no time in a request. They count in this process only,
    because each process exports its own counts. Call this once in each process, after it has forked. `meter_provider`:
    the default is the global one.
    """
    meter = get_meter(_NAME, meter_provider=meter_provider)
    for name, family, description in (
        ("ratelimit.requests", REQUESTS, "Requests and websocket messages that met a rule."),
        ("ratelimit.refusals", REFUSALS, "Refusals by each limit."),
    ):
        meter.create_observable_counter(name, [_callback(family)], "{request}", description)
    duration = meter.create_histogram("ratelimit.store.duration", "s", "Time until a server replied to a call.")

    def record(call: StoreCall, seconds: float) -> None:
        duration.record(seconds, {"ratelimit.store.call": call})

    STORE_CALLS.listeners.append(record)


def _callback(family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
    names = [f"ratelimit.{label}" for label in family.labels]

    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for (name, labels), count in COUNTS.own_counts().items():
            if name == family.name:
                yield Observation(count, dict(zip(names, labels, strict=True)))

    return observe


def describe_span(verdict: Verdict) -> None:
    """Describe a verdict in attributes of the current span, if that is recorded."""
    span = get_current_span()
    if not span.is_recording():
        return
    attributes: dict[str, AttributeValue] = {
        "ratelimit.rule": verdict.rule or "",
        "ratelimit.outcome": outcome_of(verdict),
        "ratelimit.source": verdict.source,
        "ratelimit.remaining": verdict.remaining,
    }
    if (wait := verdict.retry_after) != inf:  # the wait of a request that never passes, which JSON lacks
        attributes["ratelimit.retry_after"] = wait
    binding = verdict.binding
    if binding is not None:
        attributes["ratelimit.limit"] = limit_label(verdict, binding)
    span.set_attributes(attributes)
