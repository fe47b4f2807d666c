"""Finds the limits of a websocket's messages from the rules of its handshake. Pure: no store, no clock, no I/O."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.rules.plan import Match
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import LimitSet
from ratelimit_mw.settings.limits import parse_limits
from ratelimit_mw.settings.rule import OnStoreError, Rule

_NAME: Final = "messages"  # in bucket keys, after a slash; names of rules have no slash, so the bucket is unique
_STRICTEST_FIRST: Final[Sequence[OnStoreError]] = ("deny", "local", "allow")


class MessageLimits:
    """The option `messages` of the settings and of their rules, compiled."""

    def __init__(self, rules: Sequence[Rule], settings: Settings) -> None:
        self._rules: Final = rules
        self._settings: Final = settings
        tiers = settings.tier, settings.default_tier
        default = parse_limits(_NAME, settings.messages, *tiers)
        self._global: Final = {  # the rules here exist only to carry `on_store_error`
            mode: LimitSet(default, _NAME, settings, Rule(path="/", limits=[], on_store_error=mode), f"/{_NAME}")
            for mode in _STRICTEST_FIRST
        }
        self._has_no_global: Final = default == []
        self._by_rule: Final = [self._limit_set_of_rule(rule) for rule in rules]

    @property
    def limit_sets(self) -> Sequence[LimitSet]:
        """All limits of messages, the global ones first."""
        return [
            self._global[self._settings.on_store_error],
            *(limit_set for limit_set in self._by_rule if limit_set is not None),
        ]

    def match_for(self, matched: Sequence[int], finals: Sequence[int | None], name: str, route: str) -> Match | None:
        """Return the limits of messages after a handshake that matched the rules `matched`, or None.

        `finals`: for each form of the path, the final rule that it matched, or None. The `messages` of all matched
        rules apply. The global `messages` apply as well, if a form matched no final rule, or one without `messages`.
        `name`, `route`: those of the handshake.
        """
        by_rule = {
            index: limit_set
            for index in matched
            if (limit_set := self._by_rule[index]) is not None and limit_set.fixed_limits != []
        }
        # the final rules for which the global `messages` apply; None for a form without a final rule
        global_for = (
            [] if self._has_no_global else [index for index in finals if index is None or self._by_rule[index] is None]
        )
        modes = {self._for_rule(index, "on_store_error") for index in global_for} or {self._settings.on_store_error}
        default = self._global[next(mode for mode in _STRICTEST_FIRST if mode in modes)]
        limit_sets = [*by_rule.values(), *([default] if global_for else [])]
        if not limit_sets:
            return None
        refusing = [*global_for, *(index for index in by_rule if not self._rules[index].shadow)]
        closes = any(self._for_rule(index, "on_message_refused") == "close" for index in refusing)
        return Match(limit_sets, name, route, default, closes=closes)

    def _for_rule(self, index: int | None, option: str) -> Any:
        return self._settings.for_rule(None if index is None else self._rules[index], option)

    def _limit_set_of_rule(self, rule: Rule) -> LimitSet | None:
        limits = rule.resolve_messages(self._settings.tier, self._settings.default_tier)
        if limits is None:
            return None
        name = f"{rule.full_name}/{_NAME}"
        # cost and penalty apply to the handshake only
        return LimitSet(limits, name, self._settings, replace(rule, cost=None, penalty=None))
