"""Startup checks for options that have no effect."""

from collections.abc import Iterable, Sequence

from ratelimit_mw.core.log import Finding
from ratelimit_mw.rules.compiled import CompiledLimit, LimitSet
from ratelimit_mw.settings.rule import Rule


def no_effect_findings(limit_set: LimitSet, compiled: Sequence[LimitSet]) -> Iterable[Finding]:
    """Yield a finding for each option of this rule that has no effect. `compiled`: all limits, `app_limits` first."""
    if limit_set.may_delay and limit_set.settings.max_waiting == 0 and limit_set.fixed_limits is not None:
        yield _finding(
            limit_set,
            "max_waiting = 0 allows no delay, so its max_delay has no effect; remove one of them",
            weakens_limits=False,
        )
    if limit_set.rule is not None:
        yield from (_finding(limit_set, text) for text in _rule_texts(limit_set, limit_set.rule))
    if ban := next((limit for limit in limit_set.known_limits if limit.is_penalty), None):
        yield from _penalty_findings(ban, limit_set, compiled)


def _rule_texts(limit_set: LimitSet, rule: Rule) -> Iterable[str]:
    if rule.penalty is not None and rule.shadow:
        yield "a shadow rule refuses no request, so its penalty has no effect; remove one of them"
    if (
        rule.settles
        and limit_set.fixed_limits is not None
        and not any(limit.policy.settles for limit in limit_set.fixed_limits)
    ):
        yield "settle and count_status have no effect: it has no limit that is settled; remove them"


def _finding(limit_set: LimitSet, text: str, *, weakens_limits: bool = True) -> Finding:
    return Finding(f"rule {limit_set.name}: {text}", weakens_limits)


def _penalty_findings(ban: CompiledLimit, limit_set: LimitSet, compiled: Sequence[LimitSet]) -> Iterable[Finding]:
    """Yield a finding if a penalty bans all clients together, or never bans any."""
    if ban.key.is_all:
        text = (
            "its penalty has the key all, so the refusals of one client ban all clients; give it a key for each client"
        )
        yield _finding(limit_set, text, weakens_limits=False)
        return
    is_final = limit_set.rule is not None and limit_set.rule.is_final
    others_of_request = [one for one in compiled if not is_final or one in (limit_set, compiled[0])]
    others = [
        limit for one in others_of_request for limit in one.known_limits if not limit.is_penalty and not limit.shadow
    ]
    are_all_known = all(one.fixed_limits is not None or one.tier is not None for one in others_of_request)
    if are_all_known and others and not any(limit.key.can_collide_with(ban.key) for limit in others):
        yield _finding(
            limit_set,
            f"its penalty never acts: it counts refusals by limits with the key {ban.key.text}, and no limit has it; "
            "give the penalty's rule the key of one of its limits",
        )
