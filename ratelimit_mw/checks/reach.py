"""Startup checks for rules that no request reaches, because an earlier rule or `exempt` has all of their requests."""

from collections.abc import Iterator, Sequence
from typing import Final

from ratelimit_mw.core.log import Finding
from ratelimit_mw.http.path_index import PARAMETER, fold
from ratelimit_mw.http.paths import Paths, covers
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.rule import Rule, placed, texts_of

_EVERY_PATH: Final = "/{rest:path}"


def reach_findings(rules: Sequence[Rule], settings: Settings, *, has_default: bool) -> Iterator[Finding]:
    """Yield a finding for each rule, and for the default limits, if no request reaches them.

    `rules`: of `settings`, parsed. `has_default`: whether there are default limits.
    """
    places = placed(rules)
    for index, first in _unreachable_rules(rules, ignore_case=settings.ignore_case):
        yield Finding(
            f"{places[index][0]} can never match: {places[first][0]} is final and matches all of its requests; put it "
            "before that one, or set final = false there",
            code="RL-116",
        )
    yield from _exempt_findings(settings, places)
    if has_default and (wide := _exempting_all(rules)) is not None:
        yield Finding(
            f"limits: {places[wide][0]} exempts every path, so the default limits never apply; "
            "give that rule only the exempt paths, or set limits = []",
            code="RL-117",
        )


def _exempt_findings(settings: Settings, rules: Sequence[tuple[str, Rule]]) -> Iterator[Finding]:
    """Yield a finding for each rule whose paths are all in `exempt`. If `exempt` covers every path, yield only one."""
    if not settings.exempt:
        return
    exempt = Paths("exempt", settings.exempt)
    if _covers(exempt, Paths("path", _EVERY_PATH), ignore_case=False):
        yield Finding("exempt: it has every path, so nothing is limited; list only the exempt paths", code="RL-117")
        return
    for place, rule in rules:
        paths = Paths("path", rule.path)
        # with ignore_case a rule matches more spellings than `exempt`, which stays exact
        has_more_spellings = settings.ignore_case and any(
            fold(one) != one or one.upper() != one for one in map(_fixed, paths.normal_templates)
        )
        if not has_more_spellings and _covers(exempt, paths, ignore_case=False):
            yield Finding(
                f"{place} can never match: exempt has all of its paths; remove the rule, or take them out of exempt",
                code="RL-116",
            )


def _unreachable_rules(rules: Sequence[Rule], *, ignore_case: bool) -> Iterator[tuple[int, int]]:
    """Yield pairs of indices: a rule that never matches, and the earlier final rule that matches all its requests."""
    finals: dict[str, list[int]] = {}  # final rules by the fixed start of their paths
    paths = [Paths("path", rule.path) for rule in rules]
    for index, rule in enumerate(rules):
        beginnings = _beginnings(paths[index].normal_templates[0], ignore_case=ignore_case)
        for first in sorted({final for beginning in beginnings for final in finals.get(beginning, ())}):
            if _has_wider_conditions(rules[first], rule) and _covers(
                paths[first], paths[index], ignore_case=ignore_case
            ):
                yield index, first
                break
        if rule.is_final and rule.when is None:
            for template in paths[index].normal_templates:
                finals.setdefault(_beginnings(template, ignore_case=ignore_case)[-1], []).append(index)


def _exempting_all(rules: Sequence[Rule]) -> int | None:
    """Return the index of the first rule that exempts every request that reaches it, or None."""
    every = Paths("path", _EVERY_PATH)
    for index, rule in enumerate(rules):
        is_partial = rule.methods or rule.host or rule.preflight or rule.when is not None
        if (
            not (rule.limits or rule.concurrent)  # `exempt`, or `limits = []`
            and rule.is_final
            and not is_partial
            and _covers(Paths("path", rule.path), every, ignore_case=False)
        ):
            return index
    return None


def _fixed(template: str) -> str:
    return PARAMETER.sub("", template)


def _beginnings(template: str, *, ignore_case: bool) -> list[str]:
    """Return each start of a template that consists of whole segments without parameters: ``, `/api`, `/api/v1`."""
    text = template.partition("{")[0]
    stem = text if text == template else text.rpartition("/")[0]
    segments = (fold(stem) if ignore_case else stem).split("/")
    return ["/".join(segments[:end]) for end in range(1, len(segments) + 1)]


def _has_wider_conditions(earlier: Rule, rule: Rule) -> bool:
    """Return whether `earlier` has the same `preflight`, and all methods and hosts of `rule`."""
    hosts, rule_hosts = (set(texts_of(one.host)) for one in (earlier, rule))
    return (
        earlier.preflight == rule.preflight
        and (not earlier.methods or (bool(rule.methods) and set(rule.methods) <= earlier.all_methods))
        and (not hosts or (bool(rule_hosts) and rule_hosts <= hosts))
    )


def _covers(earlier: Paths, narrower: Paths, *, ignore_case: bool) -> bool:
    """Return whether `earlier` covers all paths of `narrower`, both as received and normalized."""
    return all(
        any(covers(wide, narrow, ignore_case=ignore_case) for wide in earlier_templates)
        for earlier_templates, narrower_templates in (
            (earlier.received_templates, narrower.received_templates),
            (earlier.normal_templates, narrower.normal_templates),
        )
        for narrow in narrower_templates
    )
