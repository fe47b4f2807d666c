"""`concurrent`, `queue` and what goes with them, as settings and rules say it."""

from collections.abc import Sequence
from typing import Any, Final

from ratelimit_mw.algorithms.concurrency import MOST_SLOTS, Concurrency
from ratelimit_mw.choices import Choice, fixed_items
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.items import Item
from ratelimit_mw.limit import seconds, whole

_LONGEST_QUEUE: Final = 100_000  # requests that wait for a slot, in one process


def slots_item(concurrent: int, lifetime: float, retry: float) -> Item:
    """The limit that `concurrent` stands for: a request takes one slot, whatever else it costs."""
    return Item(limit=Concurrency(concurrent, lifetime, retry=retry), cost=1, settle=False)


def check_slots(concurrent: Any, queue: Any, queue_timeout: Any) -> None:
    """Raises `ConfigError` that names what is wrong. A queue of None is the top's."""
    if whole("concurrent", concurrent, 0) > MOST_SLOTS:
        raise ConfigError(f"concurrent: found {concurrent}, allowed are at most {MOST_SLOTS} slots")
    if queue is not None and whole("queue", queue, 0) > _LONGEST_QUEUE:
        raise ConfigError(f"queue: found {queue}, allowed are at most {_LONGEST_QUEUE} requests")
    if queue_timeout is not None and not seconds("queue_timeout", queue_timeout):
        raise ConfigError("queue_timeout: found 0, allowed is more than 0 seconds; queue = 0 lets nobody wait")


def check_times(lifetime: Any, retry: Any) -> None:
    """Raises `ConfigError` for a lifetime under a second, in which nobody could renew, and for no time to wait."""
    if seconds("slot_lifetime", lifetime) < 1:
        raise ConfigError(f"slot_lifetime: found {lifetime}, allowed is at least 1 second")
    if not seconds("slot_retry", retry):
        raise ConfigError("slot_retry: found 0, allowed is more than 0 seconds")


def check_one_of_them(found: Sequence[Item] | Choice, concurrent: Any) -> None:
    """Raises `ConfigError` where slots are limited twice: both would count in one bucket."""
    if concurrent and any(item.limit.held for items in fixed_items(found) for item in items):
        raise ConfigError("concurrent: limits hold a Concurrency already; allowed is one of both")


def check_line(found: Sequence[Item] | Choice, concurrent: Any, **said: Any) -> None:
    """Raises `ConfigError` where a rule says how to wait for slots that it does not have. `said`: such settings."""
    held = concurrent or any(item.limit.held for items in fixed_items(found) for item in items)
    for field, value in said.items():
        if value and not held:
            raise ConfigError(f"{field}: the rule has no slots to wait for; it needs `concurrent` beside it")


def check_none_held(field: str, found: Sequence[Item] | Choice) -> None:
    """Raises `ConfigError` where what is over at once would have to be held: a message is not at work."""
    if any(item.limit.held for items in fixed_items(found) for item in items):
        raise ConfigError(f"{field}: found a Concurrency, which counts requests at work; a message is over at once")
