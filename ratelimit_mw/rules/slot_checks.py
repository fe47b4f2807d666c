"""Checks at startup for options of slots and queues that have no effect."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import fields

from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.rules.compiled import LimitSet
from ratelimit_mw.settings import Settings

_SLOT_OPTIONS: Final = ("queue", "queue_timeout", "slot_lifetime", "slot_retry")


def warn_of_unused_slot_options(settings: Settings, limit_sets: Sequence[LimitSet]) -> None:
    """Report options of slots if none of these limits has slots, and endpoint limits cannot have them."""
    defaults = {field.name: field.default for field in fields(settings)}
    unused = [option for option in _SLOT_OPTIONS if getattr(settings, option) != defaults[option]]
    if unused and not any(limit_set.has_slots for limit_set in limit_sets):
        pronoun = "it" if len(unused) == 1 else "them"
        text = f"no limit here has concurrency slots; set concurrent, or remove {pronoun}"
        warn_or_fail([Finding(f"{', '.join(unused)}: {text}", code="RL-127")], strict=settings.strict)
    elif "queue_timeout" in unused and not any(queue_of(limit_set) for limit_set in limit_sets):
        text = "queue_timeout: no limit here has a queue; set queue, or remove it"
        warn_or_fail([Finding(text, weakens_limits=False, code="RL-127")], strict=settings.strict)


def queue_of(limit_set: LimitSet) -> int:
    """Return how many requests may wait for a slot of these limits."""
    own = None if limit_set.rule is None else limit_set.rule.queue
    return limit_set.settings.queue if own is None else own
