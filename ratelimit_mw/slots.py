"""`concurrent`, `queue` and what goes with them, as settings and rules say it."""

from collections.abc import Sequence
from typing import Any, Final

from ratelimit_mw.algorithms.concurrency import MAX_SLOTS, Concurrency
from ratelimit_mw.choices import LimitSelector, static_specs
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.items import LimitSpec
from ratelimit_mw.limit import check_int, check_seconds

_MAX_QUEUE: Final = 100_000  # requests that wait for a slot, in one process


def slot_limit_spec(concurrent: int, lifetime: float, retry: float) -> LimitSpec:
    """The limit that `concurrent` stands for: a request takes one slot, whatever else it costs."""
    return LimitSpec(limit=Concurrency(concurrent, lifetime, retry=retry), cost=1, settle=False)


def check_slots(concurrent: Any, queue: Any, queue_timeout: Any) -> None:
    """Raises `ConfigError` that names what is wrong. A queue of None is the top's."""
    if check_int("concurrent", concurrent, 0) > MAX_SLOTS:
        raise ConfigError(f"concurrent: found {concurrent}, allowed are at most {MAX_SLOTS} slots")
    if queue is not None and check_int("queue", queue, 0) > _MAX_QUEUE:
        raise ConfigError(f"queue: found {queue}, allowed are at most {_MAX_QUEUE} requests")
    if queue_timeout is not None and not check_seconds("queue_timeout", queue_timeout):
        raise ConfigError("queue_timeout: found 0, allowed is more than 0 seconds; queue = 0 lets nobody wait")


def check_slot_times(lifetime: Any, retry: Any) -> None:
    """Raises `ConfigError` for a lifetime under a second, in which nobody could renew, and for no time to wait."""
    if check_seconds("slot_lifetime", lifetime) < 1:
        raise ConfigError(f"slot_lifetime: found {lifetime}, allowed is at least 1 second")
    if not check_seconds("slot_retry", retry):
        raise ConfigError("slot_retry: found 0, allowed is more than 0 seconds")


def check_single_concurrency(limits: Sequence[LimitSpec] | LimitSelector, concurrent: Any) -> None:
    """Raises `ConfigError` where slots are limited twice: both would count in one bucket."""
    if concurrent and any(spec.limit.is_concurrency for specs in static_specs(limits) for spec in specs):
        raise ConfigError("concurrent: limits hold a Concurrency already; allowed is one of both")


def check_queue_has_slots(limits: Sequence[LimitSpec] | LimitSelector, concurrent: Any, **options: Any) -> None:
    """Raises `ConfigError` where a rule says how to wait for slots that it does not have. `options`: such settings."""
    has_slots = concurrent or any(spec.limit.is_concurrency for specs in static_specs(limits) for spec in specs)
    for field, value in options.items():
        if value and not has_slots:
            raise ConfigError(f"{field}: the rule has no slots to wait for; it needs `concurrent` beside it")


def check_no_concurrency(field: str, limits: Sequence[LimitSpec] | LimitSelector) -> None:
    """Raises `ConfigError` where what is over at once would have to be held: a message is not at work."""
    if any(spec.limit.is_concurrency for specs in static_specs(limits) for spec in specs):
        raise ConfigError(f"{field}: found a Concurrency, which counts requests at work; a message is over at once")
