"""Compiles rules, and finds the rules that apply to a request. Pure: no store, no clock, no I/O."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple

from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.http.callables import WHEN_FAILURE, evaluate_predicate, resolve_callable
from ratelimit_mw.http.hosts import Hosts
from ratelimit_mw.http.path_index import Leaf, PathTree
from ratelimit_mw.http.paths import Forms, Paths, is_normal
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.message_limits import MessageLimits
from ratelimit_mw.rules.overrides import NO_OVERRIDES
from ratelimit_mw.rules.plan import Match
from ratelimit_mw.rules.way import NOT_LIMITED, Way, way_of
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import LimitSet
from ratelimit_mw.settings.endpoint_limits import EndpointLimit
from ratelimit_mw.settings.features import SHARES, Priority, kept_percent
from ratelimit_mw.settings.limits import parse_limits
from ratelimit_mw.settings.rule import Rule, placed

_CACHE_SIZE: Final = 1024  # combinations of rules
_METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"))  # `OPTIONS` may be a preflight


class MatchedRules(NamedTuple):
    """The indices of the rules that one form of a path matches, in order. `final`: the last one, if it is final."""

    indices: tuple[int, ...] = ()
    final: int | None = None


NO_RULES: Final = MatchedRules()


class CompiledRule:
    """A compiled rule without its path.

    The arguments `name` and `bucket_name` are given for an endpoint limit only; otherwise, both come from the rule.
    `base_name`, `base_bucket`: its name and the name of its bucket before a suffix made them unique. `level`: 0 for a
    limit on the endpoint itself, 1 for one on its nearest group, and so on. `preflight`: the rule applies to CORS
    preflights only.
    """

    __slots__ = (
        "_limits",
        "_preflight_limits",
        "_rule",
        "_settings",
        "base_bucket",
        "base_name",
        "bucket_ids",
        "hosts",
        "is_exempt",
        "is_final",
        "keep",
        "level",
        "limit_set",
        "methods",
        "name",
        "preflight",
        "priority",
        "when",
    )

    def __init__(
        self,
        rule: Rule,
        settings: Settings,
        name: str | None = None,
        bucket_name: str | None = None,
        *,
        base_name: str = "",
        base_bucket: str = "",
        level: int = 0,
    ) -> None:
        self.name: Final = name or rule.full_name
        self.base_name: Final = base_name
        self.base_bucket: Final = base_bucket
        self.is_final: Final = rule.is_final
        self.is_exempt: Final = rule.exempt
        self.level: Final = level
        self._rule: Final = rule
        self._settings: Final = settings
        self._limits: Final = rule.resolve_limits(settings.tier, settings.default_tier)
        self._preflight_limits: LimitSet | None = None
        self.limit_set: Final = self._limit_set_in_bucket(bucket_name)
        self.preflight: Final = rule.preflight
        self.priority: Final = rule.priority
        self.keep: Final = rule.keep
        self.methods: Final = rule.all_methods
        self.hosts: Final = Hosts("host", rule.host) if rule.host else None
        self.when: Final = None if rule.when is None else resolve_callable(rule.when)
        self.bucket_ids: Final = frozenset(limit.policy.limit.bucket for limit in self.limit_set.known_limits)

    def limit_set_for(self, *, preflight: bool) -> LimitSet:
        """Return the rule's limits; CORS preflights have the same limits in separate buckets."""
        if not preflight or self.preflight:
            return self.limit_set
        if self._preflight_limits is None:
            # the slash keeps the bucket unique: names do not contain one
            self._preflight_limits = self._limit_set_in_bucket(f"{self.limit_set.bucket_name}/preflight")
        return self._preflight_limits

    def _limit_set_in_bucket(self, bucket_name: str | None) -> LimitSet:
        rule = self._rule
        return LimitSet(self._limits, self.name, self._settings, rule, bucket_name, rule.concurrent)

    def matches_method_and_host(self, method: str, request: Request | None) -> bool | None:
        """Return whether method and host match; None if the host cannot be read. Does not call `when`."""
        if self.methods and method not in self.methods:
            return False
        return True if self.hosts is None or request is None else self.hosts.match(request.header_lines("host"))


EndpointRules = tuple[CompiledRule, ...]
"""The compiled limits of one endpoint, each as a rule without a path."""

# the limits of an endpoint or of a group of endpoints, and two texts: for the names of buckets, and for names in
# headers
EndpointLevel = tuple[tuple[EndpointLimit, ...], str, str]
_FormMatch = tuple[MatchedRules, EndpointRules]  # the rules that one form of the path matches, the endpoint's rules


class RuleTable:
    """The rules in order, with the default limits for requests that match no final rule.

    `overrides`: those of the store; set before the first request.
    """

    def __init__(self, rules: Sequence[Rule], default: LimitSet, preflight: LimitSet, settings: Settings) -> None:
        self.overrides = NO_OVERRIDES
        self.rules: Final = [CompiledRule(rule, settings) for rule in rules]  # in the trees, `exempt` comes after them
        parsed = parse_limits("app_limits", settings.app_limits, settings.tier, settings.default_tier)
        # by the percent of their quotas that they leave to other requests
        self.app_limits: Final = cache(lambda keep: LimitSet(parsed, "app", settings, keep=keep))
        self._check_keep(rules, settings)
        self._default: Final = default
        self._preflight: Final = preflight
        self.messages: Final = MessageLimits(rules, settings)
        paths = [Paths("path", rule.path) for rule in rules]
        self._exempt: Final = Paths("exempt", settings.exempt) if settings.exempt else None
        if self._exempt is not None:
            paths.append(self._exempt)
        self._anywhere: Final = None if paths else Leaf()  # where all paths end, if no path matters
        self._has_two_forms: Final = any(path.has_two_forms for path in paths)
        case = self._ignores_case = settings.ignore_case
        self._finds_clients: Final = bool(settings.trusted_proxies)  # `ClientIPResolver` returns the shortest form
        self._received: Final = PathTree.from_rules([path.received_templates for path in paths], ignore_case=case)
        self._normal: Final = (
            PathTree.from_rules([path.normal_templates for path in paths], ignore_case=case)
            if self._has_two_forms
            else self._received
        )
        self.combined: Final = lru_cache(maxsize=_CACHE_SIZE)(self._combine)

    def _check_keep(self, rules: Sequence[Rule], settings: Settings) -> None:
        """Raise `ConfigError` for `keep` without limits that can keep units."""
        for place, rule in placed(rules):
            if rule.keep is not None:
                with error_location(place):
                    if not settings.app_limits:
                        raise ConfigError("keep: there are no app_limits to keep a part of", code="RL-081")
                    self.app_limits(kept_percent(rule.keep))

    def allow_empty_segments(self) -> None:
        """Let `{x}` match an empty segment too."""
        self._received.empty = self._normal.empty = True

    def way_for(self, method: str, path: str, endpoint_rules: EndpointRules = ()) -> Way | None:
        """Return the way of requests with this method, path and endpoint; None if `match` must decide.

        That is the case if a rule needs a header, if the path has several forms, or if only some of the supported
        routers would match it with the path of a rule.
        """
        leaf = self._anywhere
        if leaf is None:
            leaf = self._received.leaf(path) if is_normal(path) else None
            if leaf is None:
                return None
            if self._has_two_forms and ((normal := self._normal.leaf(path)) is None or normal.rules != leaf.rules):
                return None
        place = (method, endpoint_rules) if endpoint_rules else method  # making a tuple takes as long as the lookup
        try:
            return leaf.ways[place]  # type: ignore[no-any-return]  # set below
        except KeyError:
            if method not in _METHODS:  # a client could fill `ways` with methods
                return None
            if len(leaf.ways) >= _CACHE_SIZE:
                leaf.ways.clear()
            way = leaf.ways[place] = self._way(method, leaf.rules, endpoint_rules)
            return way

    def _way(self, method: str, indices: Sequence[int], endpoint_rules: EndpointRules) -> Way | None:
        if indices and indices[-1] == len(self.rules):
            return None if self._ignores_case else NOT_LIMITED  # an exempt path is matched with its case
        rules = [*(self.rules[index] for index in indices), *endpoint_rules]
        if any(rule.hosts is not None or rule.when is not None for rule in rules):
            return None
        applicable = applicable_rules(endpoint_rules, method, None) if endpoint_rules else ()
        match = self.combined(((self._first_matches(indices, method, None, {}), applicable),))
        return way_of(match, self.overrides, are_shortest=self._finds_clients)

    def client_matches(self, request: Request) -> list[Match]:
        """Return the limits of each rule that may apply to a client, whatever the path and method."""
        rules = [
            rule.limit_set
            for rule in self.rules
            if not rule.is_exempt
            and not rule.preflight
            and rule.matches_method_and_host(next(iter(rule.methods or ()), ""), request) is not False
            and (rule.when is None or evaluate_predicate(rule.when, request, *WHEN_FAILURE) is not False)
        ]
        limit_sets = (self.app_limits(0), *rules, self._default)
        return [Match([limits], limits.name, "unmatched", self._default) for limits in limit_sets]

    def is_exempt(self, forms: Forms) -> bool:
        """Return whether no limit applies to a path."""
        return self._exempt is not None and self._exempt.match_all(forms)

    def match(self, method: str, forms: Forms, request: Request, endpoint_rules: EndpointRules) -> Match:
        """Return the limits of a request. `endpoint_rules`: the endpoint's limits that apply to it."""
        when_results: dict[int, bool | None] = {}
        form_matches = [
            (self._first_matches(indices, method, request, when_results), endpoint_rules)
            for indices in self._matches_by_form(forms)
        ]
        return self.combined(tuple(dict.fromkeys(form_matches)) if len(form_matches) > 1 else (form_matches[0],))

    def _matches_by_form(self, forms: Forms) -> list[Sequence[int]]:
        """Return the rules whose path matches, for each form of the request's path."""
        matches_by_form = [self._received.matching_rules(path) for path in forms.received]
        if forms.normal is not forms.received or self._has_two_forms:
            matches_by_form += [self._normal.matching_rules(path) for path in forms.normal]
        return matches_by_form

    @property
    def preflight_limit_sets(self) -> list[LimitSet]:
        """The limits of CORS preflights, in buckets of their own."""
        return [*(rule.limit_set_for(preflight=True) for rule in self.rules if not rule.preflight), self._preflight]

    def match_preflight(self, announced: str, forms: Forms, request: Request, endpoint_rules: EndpointRules) -> Match:
        """Return the limits of a CORS preflight. `announced`: the method of the request that it announces.

        The rules for preflights come first. If none of these is final, two more groups of rules apply: those for an
        OPTIONS request, and those for the announced method. So the client can add limits by its choice of that method,
        but not remove any.
        """
        when_results: dict[int, bool | None] = {}
        rules_by_method = {
            method: applicable_rules(endpoint_rules, method, request) if endpoint_rules else ()
            for method in ("OPTIONS", announced)
        }
        form_matches: list[_FormMatch] = []
        for indices in self._matches_by_form(forms):
            matches = self._first_matches(indices, "OPTIONS", request, when_results, preflight=True)
            for method, applicable in rules_by_method.items():
                all_matches = matches
                if matches.final is None:
                    more = self._first_matches(indices, method, request, when_results)
                    all_matches = MatchedRules(matches.indices + more.indices, more.final)
                form_matches.append((all_matches, applicable))
        return self.combined(tuple(dict.fromkeys(form_matches)), preflight=True)

    def _first_matches(
        self,
        indices: Sequence[int],
        method: str,
        request: Request | None,
        when_results: dict[int, bool | None],
        *,
        preflight: bool = False,
    ) -> MatchedRules:
        """Return the rules that apply, up to and including the first final one.

        `indices`: the rules whose path matches; ~index for a loose match, that is, if only some of the supported
        routers would match the path. `preflight`: whether to consider only the rules for preflights, or only the
        others. `request`: None if no rule reads it. `when_results`: the results of `when` for this request, by rule;
        missing ones are added. If `when` failed, the host cannot be read, or the match is loose, the rule applies, but
        does not end the search.
        """
        matches: list[int] = []
        for number in indices:
            is_loose = number < 0
            index = ~number if is_loose else number
            if index == len(self.rules):  # an exempt path, see `is_exempt`
                break
            rule = self.rules[index]
            if rule.preflight is not preflight or (is_match := rule.matches_method_and_host(method, request)) is False:
                continue
            if rule.when is not None and request is not None and index not in when_results:
                when_results[index] = evaluate_predicate(rule.when, request, *WHEN_FAILURE)
            if (when_result := when_results.get(index, True)) is False:
                continue
            is_final = rule.is_final and is_match is True and when_result is True and not is_loose
            matches.append(index)
            if is_final:
                return MatchedRules(tuple(matches), index)
        return MatchedRules(tuple(matches)) if matches else NO_RULES

    def _combine(self, form_matches: tuple[_FormMatch, ...], *, preflight: bool = False) -> Match:
        """Merge the limits of all matched rules; add the default limits if any form matched without a final rule."""
        rule_indices = dict.fromkeys(index for matches, _ in form_matches for index in matches.indices)
        endpoint_rules = dict.fromkeys(rule for _, from_endpoint in form_matches for rule in from_endpoint)
        rules = [*(self.rules[index] for index in rule_indices), *endpoint_rules]
        keep = max((kept_percent(rule.keep) for rule in rules), default=0)
        limit_sets = [self.app_limits(keep), *(rule.limit_set_for(preflight=preflight) for rule in rules)]
        finals = [matches.final for matches, _ in form_matches]
        final_names = [self.rules[index].name for index in finals if index is not None]
        final_names += [rule.name for rule in endpoint_rules if rule.is_final]
        default = self._preflight if preflight else self._default
        if any(
            last is None and not any(rule.is_final for rule in form_match[1])
            for last, form_match in zip(finals, form_matches, strict=True)
        ):
            limit_sets.append(default)
        name, route = final_names[0] if final_names else default.name, rules[0].name if rules else "unmatched"
        # a client can choose among the forms of a path, so the lowest of their priorities counts
        priority = max((self._priority(matches.indices) for matches, _ in form_matches), key=[*SHARES].index)
        messages = None if preflight else self.messages.match_for(list(rule_indices), finals, name, route)
        return Match(limit_sets, name, route, default, messages=messages, priority=priority)

    def _priority(self, indices: Sequence[int]) -> Priority:
        """Return the priority of requests that these rules match."""
        given = (self.rules[index].priority for index in indices)
        return next((priority for priority in given if priority != "normal"), "normal")


def applicable_rules(endpoint_rules: EndpointRules, method: str, request: Request | None) -> EndpointRules:
    """Return the endpoint's rules that apply to a request, up to the level of the first final one.

    A rule whose `when` failed applies, but does not end the search. `request`: None if no rule reads it.
    """
    applicable: list[CompiledRule] = []
    last = endpoint_rules[-1].level
    for rule in endpoint_rules:
        if rule.level > last:
            break
        is_match = rule.matches_method_and_host(method, request)
        if is_match and rule.when is not None and request is not None:
            is_match = evaluate_predicate(rule.when, request, *WHEN_FAILURE)
        if is_match is not False:
            applicable.append(rule)
            if rule.is_final and is_match:
                last = rule.level
    return tuple(applicable)
