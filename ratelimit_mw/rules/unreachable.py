"""Startup checks for rules that never match: an earlier rule or `exempt` covers them, or their method is unknown."""

from collections.abc import Iterator, Sequence
from typing import Final

from ratelimit_mw.core.validation import closest_match
from ratelimit_mw.http.path_index import PARAMETER, fold
from ratelimit_mw.http.paths import Paths, covers
from ratelimit_mw.settings.rule import PathSpec, Rule

EVERY_PATH: Final = "/{rest:path}"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "QUERY")
METHOD_HINTS: Final = {  # words that frameworks use like methods
    "ANY": "leave out methods for all of them",
    "ALL": "leave out methods for all of them",
    "WEBSOCKET": "a websocket begins with a GET",
    "WS": "a websocket begins with a GET",
}
_RARE: Final = (  # methods of IANA's registry, of caches and of UPnP
    "ACL BAN BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE "
    "MOVE NOTIFY ORDERPATCH PRI PROPFIND PROPPATCH PURGE REBIND REFRESH REPORT SEARCH SUBSCRIBE UNBIND UNCHECKOUT "
    "UNLINK UNLOCK UNSUBSCRIBE UPDATE UPDATEREDIRECTREF"
)
RARE_METHODS: Final = frozenset(_RARE.split())


def unreachable_rules(rules: Sequence[Rule], *, ignore_case: bool) -> Iterator[tuple[int, int]]:
    """Yield the index of each rule that never matches, and of the earlier final rule that matches all its requests."""
    finals: dict[str, list[int]] = {}  # final rules by the fixed start of their paths, which covered paths share
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


def exempted_rules(rules: Sequence[Rule], exempt: PathSpec, *, ignore_case: bool) -> Iterator[int | None]:
    """Yield the index of each rule whose paths are all in `exempt`; only None if `exempt` has every path."""
    if not exempt:
        return
    paths = Paths("exempt", exempt)
    if _covers(paths, Paths("path", EVERY_PATH), ignore_case=False):
        yield None
        return
    for index, rule in enumerate(rules):
        rule_paths = Paths("path", rule.path)
        # with ignore_case a rule matches more spellings than `exempt`, which stays exact
        has_more_spellings = ignore_case and any(
            fold(one) != one or one.upper() != one for one in map(_fixed, rule_paths.normal_templates)
        )
        if not has_more_spellings and _covers(paths, rule_paths, ignore_case=False):
            yield index


def exempting_all(rules: Sequence[Rule]) -> int | None:
    """Return the index of the first rule that exempts every request that reaches it, or None."""
    every = Paths("path", EVERY_PATH)
    for index, rule in enumerate(rules):
        is_partial = rule.methods or rule.host or rule.preflight or rule.when is not None
        if (
            rule.exempt
            and rule.is_final
            and not is_partial
            and _covers(Paths("path", rule.path), every, ignore_case=False)
        ):
            return index
    return None


def unknown_methods(methods: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each method that no server knows, with a hint at the likely intention; None without a hint."""
    for method in methods:
        if method in METHOD_HINTS:
            yield method, METHOD_HINTS[method]
        elif method not in METHODS and method not in RARE_METHODS:
            guess = closest_match(method, METHODS)
            yield method, None if guess is None else f"did you mean {guess}?"


def _fixed(template: str) -> str:
    return PARAMETER.sub("", template)


def _beginnings(template: str, *, ignore_case: bool) -> list[str]:
    """Return each start of a template that ends with a whole segment before any parameter: ``, `/api`, `/api/v1`."""
    text = template.partition("{")[0]
    stem = text if text == template else text.rpartition("/")[0]
    segments = (fold(stem) if ignore_case else stem).split("/")
    return ["/".join(segments[:end]) for end in range(1, len(segments) + 1)]


def _has_wider_conditions(earlier: Rule, rule: Rule) -> bool:
    """Return whether `earlier` has the same `preflight`, and all methods and hosts of `rule`."""
    hosts, rule_hosts = ({one.host} if isinstance(one.host, str) else set(one.host) for one in (earlier, rule))
    return (
        earlier.preflight == rule.preflight
        and (not earlier.methods or (bool(rule.methods) and set(rule.methods) <= earlier.all_methods))
        and (not hosts or (bool(rule_hosts) and rule_hosts <= hosts))
    )


def _covers(earlier: Paths, narrower: Paths, *, ignore_case: bool) -> bool:
    """Return whether `earlier` covers all paths of `narrower`, as received and normalized: requests match by both."""
    return all(
        any(covers(wide, narrow, ignore_case=ignore_case) for wide in earlier_templates)
        for earlier_templates, narrower_templates in (
            (earlier.received_templates, narrower.received_templates),
            (earlier.normal_templates, narrower.normal_templates),
        )
        for narrow in narrower_templates
    )
