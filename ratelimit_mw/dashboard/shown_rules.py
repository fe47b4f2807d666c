"""Describes the rules of the settings for the page: limits, what they match, and the text to paste into a file."""

from collections.abc import Mapping, Sequence
from json import dumps
from typing import Final

from msgspec import Struct

from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import LimitSet
from ratelimit_mw.settings.rule import Rule, texts_of

_GLOBAL: Final = {"app": ("app_limits", "every request"), "default": ("limits", "requests without a rule")}


class ShownRule(Struct, frozen=True):
    """A rule. `limits`: notation; None if it is not plain text. `where`: its place in the settings.

    `head`: its lines of TOML before the limits.
    """

    rule: str
    limits: str | None
    match: str
    key: str
    where: str
    mode: str
    head: Sequence[str] = ()


def shown_rules(settings: Settings, rules: RuleSet, file: str) -> Mapping[str, ShownRule]:
    """Return the rules of the settings by name. `file`: the name of the settings' file, or an empty text."""
    parsed = {rule.full_name: (index, rule) for index, rule in enumerate(settings.parsed_rules())}
    found = {}
    for limit_set in rules.limit_sets:
        index, rule = parsed.get(limit_set.name, (None, None))
        if rule is None and limit_set.name not in _GLOBAL:
            continue
        place, match = _GLOBAL.get(limit_set.name, ("", "")) if rule is None else (f"rules[{index}]", _match(rule))
        if rule is None and not limit_set.known_limits and limit_set.fixed_limits is not None:
            continue
        where = f"{place} of {file}" if file else place
        is_shadow = settings.shadow or (rule is not None and bool(rule.shadow))
        mode = "exempt" if rule is not None and rule.exempt else "shadow" if is_shadow else "on"
        keys = dict.fromkeys(key.text for key in limit_set.keys)
        written = getattr(settings, place) if rule is None else rule.limits
        is_text = isinstance(written, str) and limit_set.fixed_limits is not None  # not the name of a callable
        limits = written if is_text else _limits(limit_set)
        head = [] if rule is None else _head(rule)
        found[limit_set.name] = ShownRule(limit_set.name, limits, match, ", ".join(keys), where, mode, head)
    return found


def toml_of(rule: ShownRule, state: str, limits: str | None) -> str:
    """Return a rule with these limits as one pastes it into a settings file. `state`: on, shadow or off."""
    named = rule.head
    setting = "app_limits" if rule.rule == "app" else "limits"
    if state == "off":
        return "\n".join([*named, "exempt = true" if named else f"{setting} = []"])
    lines = [*named, f"{setting} = {dumps(limits or rule.limits or '')}"]
    return "\n".join([*lines, "shadow = true"] if state == "shadow" else lines)


def _limits(limit_set: LimitSet) -> str | None:
    if limit_set.fixed_limits is None:
        return None
    return "; ".join(limit.policy.limit.notation for limit in limit_set.fixed_limits if not limit.is_penalty)


def _match(rule: Rule) -> str:
    methods, paths = "|".join(rule.all_methods or ()), _joined(texts_of(rule.path))
    host = f" at {_joined(texts_of(rule.host))}" if rule.host else ""
    return f"{methods} {paths}{host}".strip()


def _head(rule: Rule) -> list[str]:
    given = {"name": rule.full_name, "path": rule.path, "methods": rule.methods, "host": rule.host}
    values = {name: value if isinstance(value, str) else list(value) for name, value in given.items() if value}
    return ["[[rules]]", *(f"{name} = {dumps(value, ensure_ascii=False)}" for name, value in values.items())]


def _joined(texts: Sequence[str]) -> str:
    return ", ".join(texts)
