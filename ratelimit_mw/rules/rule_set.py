"""All settings compiled: what applies to a request, if anything. Pure: no store, no clock, no I/O."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.http.callables import ENABLED_FAILURE, RequestCallable, evaluate_predicate, resolve_callable
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.client_lists import ClientList
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.paths import Forms, Paths
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.routers import is_falcon
from ratelimit_mw.http.underscore_headers import UNDERSCORE_FINDING, unambiguous_values
from ratelimit_mw.rules.compiled import LimitSet
from ratelimit_mw.rules.endpoint_limits import EndpointLimit, bucket_for, name_for
from ratelimit_mw.rules.plan import Match, PlanCache
from ratelimit_mw.rules.rule_table import (
    CompiledRule,
    EndpointLevel,
    EndpointRules,
    RuleTable,
    always_apply,
    applicable_rules,
)
from ratelimit_mw.rules.startup_checks import EndpointLimitChecks, ProxyHeaderCheck, startup_findings
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import compile_limits

_CACHE_SIZE: Final = 1024  # endpoints


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
            method, forms, request, applicable_rules(endpoint_rules, method, request) if endpoint_rules else ()
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
        return self._table.combined((((), endpoint_rules),)) if always_apply(endpoint_rules) else None

    def _refresh_single_match(self) -> None:
        """What applies to every request but a preflight, `single_match`, if the same applies to all; and its plans."""
        checks = (self._finder, self._proxy_check, self._blocked_clients, self._safe_clients, self._exempt)
        same = self._enabled is True and not any(checks) and all(rule.preflight for rule in self._table.rules)
        self.single_match: Match | None = self._table.combined((((), ()),)) if same else None
        self.plans_by_address = None if self.single_match is None else self.single_match.plans_by_address


def _announced_method(request: Request) -> str | None:
    """The method that a CORS preflight announces; None where the OPTIONS request is no preflight (Fetch).

    It is any text that a client writes. Of several lines the first counts: what it names can only add limits.
    """
    values = request.header_lines("access-control-request-method")
    return values[0].strip().upper() if values and request.header_lines("origin") else None
