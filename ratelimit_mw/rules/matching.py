"""Match: which rules apply to a request. Pure: no store, no clock, no I/O."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.http.callables import (
    ENABLED_FAILURE,
    WHEN_FAILURE,
    RequestCallable,
    evaluate_predicate,
    resolve_callable,
)
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.client_lists import ClientList
from ratelimit_mw.http.hosts import Hosts
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.path_index import PathTree
from ratelimit_mw.http.paths import Forms, Paths
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.routers import is_falcon
from ratelimit_mw.http.underscore_headers import UNDERSCORE_FINDING, unambiguous_values
from ratelimit_mw.rules.compiled import LimitSet
from ratelimit_mw.rules.endpoint_limits import EndpointLimit, bucket_for, name_for
from ratelimit_mw.rules.messages import MessageLimits
from ratelimit_mw.rules.plan import Match, PlanCache
from ratelimit_mw.rules.startup_checks import EndpointLimitChecks, ProxyHeaderCheck, startup_findings
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import compile_limits
from ratelimit_mw.settings.rule import Rule

_CACHE_SIZE: Final = 1024  # combinations of rules

MatchedRules = tuple[
    int, ...
]  # rules that one form of a path meets, in order; ~index of one that does not end the search


class CompiledRule:
    """A rule, compiled, but for its path.

    `name`, `bucket`: of one that stands on an endpoint; `base` and `place`: the same before numbers were added to tell
    several apart. `level`: how far out, 0 for the endpoint itself. `preflight`: only for CORS preflights.
    """

    __slots__ = (
        *(
            "_limit_set_in_bucket",
            "_preflight_limits",
            "is_unconditional",
            "base",
            "is_final",
            "is_exempt",
            "hosts",
            "level",
            "limits",
            "limit_set",
        ),
        *("methods", "name", "place", "preflight", "definition", "when"),
    )

    def __init__(
        self,
        rule: Rule,
        settings: Settings,
        name: str | None = None,
        bucket: str | None = None,
        *,
        base: str = "",
        place: str = "",
        level: int = 0,
    ) -> None:
        self.name: Final = name or rule.full_name
        self.base: Final = base
        self.place: Final = place
        self.is_final: Final = rule.is_final
        self.is_exempt: Final = rule.exempt
        self.level: Final = level
        limits = rule.resolve_limits(settings.tier, settings.default_tier)
        self._limit_set_in_bucket: Final = partial(
            LimitSet, limits, self.name, settings, rule, concurrent=rule.concurrent
        )
        self._preflight_limits: LimitSet | None = None
        self.limit_set: Final = self._limit_set_in_bucket(bucket=bucket)
        self.preflight: Final = rule.preflight
        self.methods: Final = rule.all_methods
        self.hosts: Final = Hosts("host", rule.host) if rule.host else None
        self.when: Final = None if rule.when is None else resolve_callable(rule.when)
        self.is_unconditional: Final = not self.methods and self.hosts is None and self.when is None
        self.limits: Final = frozenset(limit.policy.limit.bucket for limit in self.limit_set.all_static)
        self.definition: Final = (
            rule.limits,
            rule.methods,
            rule.key,
            rule.cost,
            rule.tier,
            rule.settle,
            rule.count_status,
            rule.penalty,
            rule.shadow,
            rule.final,
            rule.when,
        )

    def limit_set_for(self, *, preflight: bool) -> LimitSet:
        """Its limits; for a CORS preflight the same limits in buckets of their own."""
        if not preflight or self.preflight:
            return self.limit_set
        if self._preflight_limits is None:
            self._preflight_limits = self._limit_set_in_bucket(
                bucket=f"{self.limit_set.bucket}/preflight"
            )  # no name has a slash
        return self._preflight_limits

    def is_same_limit(self, other: "CompiledRule") -> bool:
        """Whether it is the same limit, of the same requests."""
        return self.definition == other.definition

    def applies(self, method: str, request: Request) -> bool | None:
        """Whether it applies, as far as nobody has to be asked; None when that cannot be read."""
        if self.methods and method not in self.methods:
            return False
        return True if self.hosts is None else self.hosts.match(request.header_lines("host"))


EndpointRules = tuple[CompiledRule, ...]  # what stands on one endpoint, compiled
EndpointLevel = tuple[
    tuple[EndpointLimit, ...], str, str
]  # marks; without a name, what their bucket and their limits are called after
_FormMatch = tuple[
    MatchedRules, EndpointRules
]  # what one form of the path meets, and the limits on the endpoint that apply


class RuleTable:
    """Rules in order, and what applies to requests that meet no final one."""

    def __init__(
        self, rules: Sequence[Rule], app: LimitSet, default: LimitSet, preflight: LimitSet, settings: Settings
    ) -> None:
        self.rules: Final = [CompiledRule(rule, settings) for rule in rules]
        self._app: Final = app
        self._default: Final = default
        self._preflight: Final = preflight
        self.messages: Final = MessageLimits(rules, settings)
        paths = [Paths("path", rule.path) for rule in rules]
        self._two_forms: Final = any(path.has_two_forms for path in paths)
        case = settings.ignore_case
        self._received: Final = PathTree.from_rules([path.received_templates for path in paths], ignore_case=case)
        self._normal: Final = PathTree.from_rules([path.normal_templates for path in paths], ignore_case=case)
        self.combined: Final = lru_cache(maxsize=_CACHE_SIZE)(self._combine)

    def allow_empty_segments(self) -> None:
        """Let `{x}` take an empty segment too."""
        self._received.empty = self._normal.empty = True

    def match(self, method: str, forms: Forms, request: Request, endpoint_rules: EndpointRules) -> Match:
        """What applies to a request. `endpoint_rules`: what stands on its endpoint."""
        when_results: dict[int, bool | None] = {}
        form_matches = [
            (self._first_matches(place, method, request, when_results), endpoint_rules) for place in self._places(forms)
        ]
        return self.combined(tuple(dict.fromkeys(form_matches)) if len(form_matches) > 1 else (form_matches[0],))

    def _places(self, forms: Forms) -> list[list[int]]:
        """The rules whose paths match, for each form of the path."""
        places = [self._received.matching_rules(path) for path in forms.received]
        if forms.normal is not forms.received or self._two_forms:
            places += [self._normal.matching_rules(path) for path in forms.normal]
        return places

    def match_preflight(self, announced: str, forms: Forms, request: Request, endpoint_rules: EndpointRules) -> Match:
        """What applies to a CORS preflight that announces this method: the first rule for preflights that is final.

        Without one, all that applies to an OPTIONS request and all that applies to the method it announces. So what a
        client announces can add limits, and removes none.
        """
        when_results: dict[int, bool | None] = {}
        rules_by_method = {
            method: _applicable(endpoint_rules, method, request) if endpoint_rules else ()
            for method in ("OPTIONS", announced)
        }
        form_matches: list[_FormMatch] = []
        for place in self._places(forms):
            own = self._first_matches(place, "OPTIONS", request, when_results, preflight=True)
            for method, applying in rules_by_method.items():
                is_final = own and own[-1] >= 0
                form_matches.append(
                    (own if is_final else own + self._first_matches(place, method, request, when_results), applying)
                )
        return self.combined(tuple(dict.fromkeys(form_matches)), preflight=True)

    def _first_matches(
        self,
        indices: Sequence[int],
        method: str,
        request: Request,
        when_results: dict[int, bool | None],
        *,
        preflight: bool = False,
    ) -> MatchedRules:
        """Of rules whose path matches, those that apply, up to the first that ends the search.

        `preflight`: looks at the rules for preflights, and else at all others. `when_results`: what each rule's `when`
        said of this request. Where it failed, or the host cannot be read, or the path matches loosely (~index),
        the rule applies and the search goes on.
        """
        matches: list[int] = []
        for number in indices:
            index = max(number, ~number)
            rule = self.rules[index]
            if rule.preflight is not preflight or (applies := rule.applies(method, request)) is False:
                continue
            if rule.when is not None and index not in when_results:
                when_results[index] = evaluate_predicate(rule.when, request, *WHEN_FAILURE)
            if (agrees := when_results.get(index, True)) is False:
                continue
            is_final = rule.is_final and applies is True and agrees is True and number >= 0
            matches.append(index if is_final else ~index)
            if is_final:
                break
        return tuple(matches)

    def _combine(self, form_matches: tuple[_FormMatch, ...], *, preflight: bool = False) -> Match:
        """The lines of all rules found; the default too if one of the looks met no final rule, nor the endpoint."""
        rule_indices = dict.fromkeys(index if index >= 0 else ~index for form, _ in form_matches for index in form)
        endpoint_rules = dict.fromkeys(rule for _, of_endpoint in form_matches for rule in of_endpoint)
        rules = [*(self.rules[index] for index in rule_indices), *endpoint_rules]
        groups = [self._app, *(rule.limit_set_for(preflight=preflight) for rule in rules)]
        finals = [form[-1] if form and form[-1] >= 0 else None for form, _ in form_matches]
        final = [self.rules[index].name for index in finals if index is not None]
        final += [rule.name for rule in endpoint_rules if rule.is_final]
        default = self._preflight if preflight else self._default
        if any(
            end is None and not any(rule.is_final for rule in form_match[1])
            for end, form_match in zip(finals, form_matches, strict=True)
        ):
            groups.append(default)
        name, route = final[0] if final else default.rule, rules[0].name if rules else "unmatched"
        messages = None if preflight else self.messages.match_for(list(rule_indices), finals, name, route)
        return Match(groups, name, route, default, messages=messages)


class RuleSet:
    """The settings, compiled for matching. `findings`: what is to be reported at start."""

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._enabled: Final = (
            settings.enabled if isinstance(settings.enabled, bool) else resolve_callable(settings.enabled)
        )
        finder = ClientIPResolver(settings.trusted_proxies, settings.proxy_header)
        self._finder: Final = finder if settings.trusted_proxies else None
        refuses_blocked = settings.blocklist and not settings.shadow  # a shadow refuses nobody
        self._blocked_clients: Final = ClientList("blocklist", settings.blocklist) if refuses_blocked else None
        self._safe_clients: Final = ClientList("safelist", settings.safelist) if settings.safelist else None
        self._exempt: Final = Paths("exempt", settings.exempt) if settings.exempt else None
        rules, tiers = settings.compiled_rules(), (settings.tier, settings.default_tier)
        app, default, preflight = (
            LimitSet(compile_limits(field, getattr(settings, field), *tiers), name, settings, concurrent=concurrent)
            for field, name, concurrent in (
                ("app_limits", "app", 0),
                ("limits", "default", settings.concurrent),
                ("limits", "preflight", settings.concurrent),
            )
        )
        self._table: Final = RuleTable(rules, app, default, preflight, settings)
        self._blocklist: Final = Match((), "blocklist", "unmatched", denied=True)
        self.names: Counter[str] = Counter()  # of limits in rules: limits on endpoints get other names
        for rule in self._table.rules:
            self.names[rule.name] += len(rule.limit_set.static_limits or (rule,))
        self.limit_sets: Final = [app, *(rule.limit_set for rule in self._table.rules), default]
        self._warned = False  # of a server that keeps underscores
        self._proxy_check: ProxyHeaderCheck | None = ProxyHeaderCheck(finder)
        self._refresh_single_match()
        self._endpoint_checks: Final = EndpointLimitChecks(app)
        self._matches_by_endpoint: Final = lru_cache(maxsize=_CACHE_SIZE)(self._endpoint_match)
        findings = startup_findings(
            rules, self.limit_sets, self._table.messages.limit_sets, ignore_case=settings.ignore_case
        )
        self.findings: Final[Sequence[Finding]] = list(findings)

    @property
    def keys(self) -> list[Key]:
        """All keys that are known before a request comes."""
        return [key for limit_set in self.limit_sets for key in (*limit_set.keys, limit_set.tier) if key is not None]

    @property
    def callables(self) -> set[RequestCallable]:
        """All callables that keys, costs, tiers and limits name."""
        return {call for limit_set in self.limit_sets for call in limit_set.callables}

    @property
    def algorithms(self) -> set[str]:
        """The algorithms of all limits that are known before a request comes."""
        every = [*self.limit_sets, *self._table.messages.limit_sets]
        return {limit.policy.limit.algorithm for limit_set in every for limit in limit_set.all_static}

    @property
    def may_delay(self) -> bool:
        """Whether a request may be held back."""
        return any(limit_set.may_delay for limit_set in self.limit_sets)

    @property
    def has_queue(self) -> bool:
        """Whether a request may have to wait for a slot."""
        return any(limit_set.has_queue for limit_set in self.limit_sets)

    def share_with_outer(self, outer: "RuleSet") -> None:
        """Share with the rules of an outer gate what one app needs once: names of limits, and the look for a proxy."""
        self.names, self._proxy_check = outer.names, outer._proxy_check  # noqa: SLF001  # one of us
        self._refresh_single_match()

    def adapt_to_router(self, app: object) -> None:
        """Read paths as `app` does, where that cannot be done for all apps alike."""
        if is_falcon(app):
            self._table.allow_empty_segments()

    def compile_endpoint_limits(
        self,
        endpoint_limits: tuple[EndpointLimit, ...],
        endpoint: str,
        shown: str = "",
        *outer: EndpointLevel,
        beside: EndpointRules = (),
    ) -> EndpointRules:
        """Compile the marks of an endpoint.

        `endpoint`: identifies the bucket of marks without a name. `shown`: the route, which clients see as the name of
        these limits; the same as `endpoint` if it is empty. `outer`: the same of what the endpoint belongs to, the
        nearest first; it applies unless a mark further in ends the search. `beside`: other marks that apply to the same
        request, whose names are taken.
        """
        rules: list[CompiledRule] = []
        for level, (level_limits, of_bucket, of_limits) in enumerate(((endpoint_limits, endpoint, shown), *outer)):
            for endpoint_limit in level_limits:
                base = endpoint_limit.rule.name or name_for(of_limits or of_bucket)
                namesakes = [one for one in (*beside, *rules) if one.base == base and not one.is_exempt]
                number = 1 + sum(len(one.limit_set.static_limits or (one,)) for one in namesakes)
                number += 0 if endpoint_limit.rule.name else self.names[base]
                name = base if number == 1 else f"{base}-{number}"
                # no rule of the settings has an @ in its name, and no name has brackets
                place = f"@{endpoint_limit.rule.name}" if endpoint_limit.rule.name else f"@{bucket_for(of_bucket)}()"
                rule = partial(
                    CompiledRule, endpoint_limit.rule, self._settings, name, base=base, place=place, level=level
                )
                one = rule(place)
                in_same_bucket = [other for other in rules if other.place == place and not other.is_exempt]
                overlapping = [
                    other for other in in_same_bucket if not endpoint_limit.rule.name or one.limits & other.limits
                ]
                same = next(
                    (other for other in overlapping if endpoint_limit.rule.name and other.is_same_limit(one)), None
                )
                # the same limit once more is that limit; others that would count in one bucket are two
                rules.append(same or (rule(place + "+" * len(overlapping)) if overlapping else one))
        self._endpoint_checks.examine(one.limit_set for one in (*beside, *rules))
        return tuple(rules)

    def match(self, request: Request, endpoint_rules: EndpointRules = ()) -> Match | None:
        """What applies to a request, or None: safe, exempt, or all is switched off.

        `endpoint_rules`: what stands on its endpoint, where the face knows it. From here on the request's `client` is
        the one that trusted proxies name.
        """
        if self.single_match is not None and request.method != "OPTIONS":
            if not endpoint_rules:
                return self.single_match
            if (match := self._matches_by_endpoint(endpoint_rules)) is not None:
                return match
        on = self._enabled
        enabled = on is True or (callable(on) and evaluate_predicate(on, request, *ENABLED_FAILURE) is not False)
        return self._match_rules(request, endpoint_rules) if enabled else None

    def _match_rules(self, request: Request, endpoint_rules: EndpointRules) -> Match | None:
        if (unproxied := self._proxy_check) is not None:  # another thread may be done with it meanwhile
            unproxied.examine(request)
            if unproxied.done:
                self._proxy_check = None
                self._refresh_single_match()
        if self._finder is not None:
            request.client = self._client(self._finder, request)
        if self._blocked_clients is not None and self._blocked_clients.matches(request, once=False):
            return self._blocklist
        if self._safe_clients is not None and self._safe_clients.matches(request, once=True):
            return None
        method, forms = request.method, Forms.of(request.paths)
        if self._exempt and self._exempt.match_all(forms):
            return None
        if method == "OPTIONS" and (announced := _announced_method(request)) is not None:
            return self._table.match_preflight(announced, forms, request, endpoint_rules)
        return self._table.match(
            method, forms, request, _applicable(endpoint_rules, method, request) if endpoint_rules else ()
        )

    def _client(self, finder: ClientIPResolver, request: Request) -> str | None:
        """The address of the client. Raises `ConfigError` with `strict` where the server lets clients forge it."""
        if not request.keeps_underscores:
            return finder.resolve(request.client, request.header_lines)
        if not self._warned or self._settings.strict:
            self._warned = True
            warn_or_fail([UNDERSCORE_FINDING], strict=self._settings.strict)
        return finder.resolve(request.client, lambda name: unambiguous_values(name, request.header_lines(name)))

    def plans_by_address_at(self, endpoint_rules: EndpointRules) -> PlanCache | None:
        """`plans_by_address` where this stands on the endpoint."""
        match = None if self.single_match is None else self._matches_by_endpoint(endpoint_rules)
        return None if match is None else match.plans_by_address

    def _endpoint_match(self, endpoint_rules: EndpointRules) -> Match | None:
        """What applies besides no other rule, if all of them do, whatever is asked for."""
        return self._table.combined((((), endpoint_rules),)) if _apply_always(endpoint_rules) else None

    def _refresh_single_match(self) -> None:
        """What applies to every request but a preflight, `single_match`, if the same applies to all; and its plans."""
        checks = (self._finder, self._proxy_check, self._blocked_clients, self._safe_clients, self._exempt)
        same = self._enabled is True and not any(checks) and all(rule.preflight for rule in self._table.rules)
        self.single_match: Match | None = self._table.combined((((), ()),)) if same else None
        self.plans_by_address = None if self.single_match is None else self.single_match.plans_by_address


def _applicable(endpoint_rules: EndpointRules, method: str, request: Request) -> EndpointRules:
    """Of what stands on an endpoint, what is for this request, out to the level of the first that ends the search.

    Where `when` failed, it applies, and the search goes on.
    """
    if _apply_always(endpoint_rules):
        return endpoint_rules
    applicable: list[CompiledRule] = []
    last = endpoint_rules[-1].level
    for rule in endpoint_rules:
        if rule.level > last:
            break
        agrees = rule.applies(method, request)
        if agrees and rule.when is not None:
            agrees = evaluate_predicate(rule.when, request, *WHEN_FAILURE)
        if agrees is not False:
            applicable.append(rule)
            if rule.is_final and agrees:
                last = rule.level
    return tuple(applicable)


def _apply_always(endpoint_rules: EndpointRules) -> bool:
    return not endpoint_rules[-1].level and all(rule.is_unconditional for rule in endpoint_rules)


def _announced_method(request: Request) -> str | None:
    """The method that a CORS preflight announces; None where the OPTIONS request is no preflight (Fetch).

    It is any text that a client writes. Of several lines the first counts: what it names can only add limits.
    """
    values = request.header_lines("access-control-request-method")
    return values[0].strip().upper() if values and request.header_lines("origin") else None
