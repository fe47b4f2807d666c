"""Compiles the settings, and finds the limits of a request. Pure: no store, no clock, no I/O."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

from ratelimit_mw.checks.rules import EndpointLimitChecks, startup_findings
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, Limit
from ratelimit_mw.core.log import Finding, warn_or_fail, without_repeats
from ratelimit_mw.http.apps import is_falcon
from ratelimit_mw.http.callables import ENABLED_FAILURE, RequestCallable, evaluate_predicate, resolve_callable
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.client_lists import ClientList
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.networks import is_ipv4, shortest
from ratelimit_mw.http.paths import Forms
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.views import UNDERSCORE_FINDING, unambiguous_values
from ratelimit_mw.rules.deployment_checks import ProxyHeaderCheck
from ratelimit_mw.rules.overrides import ActiveOverrides
from ratelimit_mw.rules.plan import Match
from ratelimit_mw.rules.rule_table import (
    CompiledRule,
    EndpointLevel,
    EndpointRules,
    RuleTable,
    applicable_rules,
)
from ratelimit_mw.rules.way import BLOCKED, NOT_LIMITED, Way
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import LimitSet
from ratelimit_mw.settings.endpoint_limits import EndpointLimit, bucket_for, name_for
from ratelimit_mw.settings.limits import parse_limits

_CACHE_SIZE: Final = 1024  # endpoints
ShortWay = tuple[Way | None, Sequence[Charge], str | None]  # see `RuleSet.short_way`
UNDECIDED: Final[ShortWay] = (None, (), None)


class RuleSet:
    """The settings, compiled for matching requests. `findings`: likely mistakes to report at startup."""

    def __init__(self, settings: Settings) -> None:
        self._settings: Final = settings
        self._enabled: Final = (
            settings.enabled if isinstance(settings.enabled, bool) else resolve_callable(settings.enabled)
        )
        finder = ClientIPResolver(settings.trusted_proxies, settings.proxy_header)
        self._finder: Final = finder if settings.trusted_proxies else None
        self.proxy_header: Final = finder.header if settings.trusted_proxies else None
        refuses_blocked = settings.blocklist and not settings.shadow  # in shadow mode nothing is refused
        self._blocked_clients: Final = ClientList("blocklist", settings.blocklist) if refuses_blocked else None
        self._safe_clients: Final = ClientList("safelist", settings.safelist) if settings.safelist else None
        rules, tiers = settings.parsed_rules(), (settings.tier, settings.default_tier)
        default, preflight = (
            LimitSet(parse_limits("limits", settings.limits, *tiers), name, settings, concurrent=settings.concurrent)
            for name in ("default", "preflight")
        )
        self._table: Final = RuleTable(rules, default, preflight, settings)
        app = self._table.app_limits(0)
        self._lost_peer: Final = Match((), "unmatched", "unmatched", denied=True)
        lists = [(self._blocked_clients, BLOCKED), (self._safe_clients, NOT_LIMITED)]
        self._lists: Final = [(one.networks, way) for one, way in lists if one is not None]
        # whether `short_way` may find a way; else, every request needs `match`
        self.has_short_way: Final = self._enabled is True and all(
            one is None or one.has_only_networks for one, _ in lists
        )
        # the path where a client asks for its own limits
        self._usage_path: Final = None if self._enabled is False else settings.usage_path
        self.reads_headers = True  # whether `short_way` needs the headers
        self.names: Counter[str] = Counter()  # limits, by the name of their rule; for names of endpoint limits
        for rule in self._table.rules:
            self.names[rule.name] += len(rule.limit_set.fixed_limits or (rule,))
        self.limit_sets: Final = [app, *(rule.limit_set for rule in self._table.rules), default]
        self._endpoint_names: Final[set[str]] = set()  # of limits that are settled
        self._has_dynamic_endpoints = False
        self._warned = False  # whether UNDERSCORE_FINDING was logged
        self._is_reloaded = False
        self._proxy_check: ProxyHeaderCheck | None = ProxyHeaderCheck(finder)
        self._endpoint_checks: Final = EndpointLimitChecks(self.limit_sets)
        findings = startup_findings(rules, self.limit_sets, self._table.messages.limit_sets)
        self.findings: Final[Sequence[Finding]] = list(findings)

    @property
    def keys(self) -> list[Key]:
        """All keys that are known before the first request."""
        return [key for limit_set in self.limit_sets for key in (*limit_set.keys, limit_set.tier) if key is not None]

    @property
    def callables(self) -> set[RequestCallable]:
        """All callables of keys, costs, tiers and limits."""
        return {call for limit_set in self.limit_sets for call in limit_set.callables}

    @property
    def algorithms(self) -> set[str]:
        """The algorithms of `known_limits`."""
        return {limit.algorithm for limit in self.known_limits}

    @property
    def known_limits(self) -> list[Limit]:
        """All limits that are known before the first request."""
        return [policy.limit for policy in self._known_policies]

    @property
    def settled_names(self) -> set[str]:
        """The names of all limits that are settled and known before the first request, and of those on endpoints."""
        return self._endpoint_names | {policy.name for policy in self._known_policies if policy.settles}

    @property
    def _known_policies(self) -> list[Policy]:
        limit_sets = [*self.limit_sets, *self._table.messages.limit_sets]
        return [limit.policy for limit_set in limit_sets for limit in limit_set.known_limits]

    @property
    def has_dynamic_limits(self) -> bool:
        """Whether a callable returns limits, whose names are unknown."""
        return self._has_dynamic_endpoints or any(map(_is_dynamic, self.limit_sets))

    @property
    def all_limit_sets(self) -> list[LimitSet]:
        """The limits of all rules, including those of CORS preflights and of messages."""
        return [*self.limit_sets, *self._table.preflight_limit_sets, *self._table.messages.limit_sets]

    def report_chosen(self, report: Callable[[Sequence[Limit]], None]) -> None:
        """Call `report` with the limits that a callable returns, not in each request: when they are compiled."""
        for limit_set in filter(_is_dynamic, self.limit_sets):
            limit_set.report_chosen = report

    @property
    def overrides(self) -> ActiveOverrides:
        """The overrides of the store; set before the first request."""
        return self._table.overrides

    @overrides.setter
    def overrides(self, overrides: ActiveOverrides) -> None:
        self._table.overrides = overrides

    @property
    def rule_names(self) -> list[str]:
        """The names of all rules, for overrides. Limits on endpoints are not among them."""
        return list(dict.fromkeys(limit_set.name.partition("/")[0] for limit_set in self.all_limit_sets))

    def share_with_outer(self, outer: "RuleSet") -> None:
        """Use the limit names and the proxy check of `outer`, because an app needs each only once.

        `outer`: the rules of the middleware. This object has those of an endpoint limit with a store of its own.
        """
        self.names = outer.names
        self._share_proxy_check(outer)

    def succeed(self, before: "RuleSet") -> None:
        """Report nothing again that `before`, the rules until a reload, has reported."""
        self._is_reloaded, self._warned = True, before._warned  # noqa: SLF001  # the same class
        settings, settings_before = self._settings, before._settings  # noqa: SLF001  # the same class
        if (settings.trusted_proxies, settings.proxy_header) == (
            settings_before.trusted_proxies,
            settings_before.proxy_header,
        ):
            self._share_proxy_check(before)

    def _share_proxy_check(self, other: "RuleSet") -> None:
        self._proxy_check = other._proxy_check  # noqa: SLF001  # the same class
        if self._proxy_check is None:
            self.reads_headers = self._finder is not None

    def adapt_to_router(self, app: object) -> None:
        """Match paths as the router of `app` does. Only Falcon's differs from the others. `app`: None for any."""
        if app is None or is_falcon(app):
            self._table.allow_empty_segments()

    def compile_endpoint_limits(
        self,
        endpoint_limits: tuple[EndpointLimit, ...],
        endpoint: str,
        display_name: str = "",
        *outer: EndpointLevel,
        siblings: EndpointRules = (),
    ) -> EndpointRules:
        """Compile the limits of an endpoint.

        `endpoint`: the text that bucket names are made from. `display_name`: the text that names in headers are made
        from (the route); if empty, `endpoint`. Both are for limits without a name. `outer`: the limits of the groups
        that contain the endpoint, nearest first; a level applies unless a final limit of a nearer level does.
        `siblings`: other endpoint limits of the same request, whose names are taken.
        """
        rules: list[CompiledRule] = []
        for level, (level_limits, bucket_name, limit_name) in enumerate(
            ((endpoint_limits, endpoint, display_name), *outer)
        ):
            for endpoint_limit in level_limits:
                given_name = endpoint_limit.rule.name
                base_name = given_name or name_for(limit_name or bucket_name)
                namesakes = [
                    compiled
                    for compiled in (*siblings, *rules)
                    if compiled.base_name == base_name and not compiled.is_exempt
                ]
                number = 1 + sum(len(compiled.limit_set.fixed_limits or (compiled,)) for compiled in namesakes)
                # a name that was made from the route may be the name of a rule, whose limits are numbered first
                number += 0 if given_name else self.names[base_name]
                name = base_name if number == 1 else f"{base_name}-{number}"
                # unique: rules of the settings have no @ in their names, and no name has brackets
                base_bucket = f"@{given_name}" if given_name else f"@{bucket_for(bucket_name)}()"
                make_rule = partial(
                    CompiledRule,
                    endpoint_limit.rule,
                    self._settings,
                    name,
                    base_name=base_name,
                    base_bucket=base_bucket,
                    level=level,
                )
                compiled = make_rule(base_bucket)
                in_same_bucket = [other for other in rules if other.base_bucket == base_bucket and not other.is_exempt]
                overlapping = [
                    other for other in in_same_bucket if not given_name or compiled.bucket_ids & other.bucket_ids
                ]
                repeated = next(
                    (other for other in overlapping if given_name and other.limit_set.rule == endpoint_limit.rule), None
                )
                # a repeated limit is one limit; different limits get separate buckets
                rules.append(repeated or (make_rule(base_bucket + "+" * len(overlapping)) if overlapping else compiled))
        known = [limit for rule in rules for limit in rule.limit_set.known_limits]
        self._endpoint_names.update(limit.policy.name for limit in known if limit.policy.settles)
        self._has_dynamic_endpoints |= any(_is_dynamic(rule.limit_set) for rule in rules)
        return tuple(rules)

    def report_endpoint(self, endpoint_rules: EndpointRules) -> EndpointRules:
        """Warn of likely mistakes in all limits of an endpoint, and return the limits.

        These are warnings even with `strict`, because the app is running.
        """
        with without_repeats() if self._is_reloaded else nullcontext():
            warn_or_fail(self._endpoint_checks.findings(rule.limit_set for rule in endpoint_rules), strict=False)
        return endpoint_rules

    def endpoint_findings(self, endpoints: Iterable[tuple[str, Callable[[], EndpointRules]]]) -> Sequence[Finding]:
        """Return what the first requests to some endpoints report about their limits.

        `endpoints`: the name of each, and a function that compiles its limits.
        """
        checks, found = EndpointLimitChecks(self.limit_sets), dict[Finding, None]()
        for name, compiled in endpoints:
            try:
                found |= dict.fromkeys(checks.findings(rule.limit_set for rule in compiled()))
            except ConfigError as error:  # a request gets a 500
                found |= {Finding(f"limits on {name}: {problem}", code=""): None for problem in error.problems}
        return list(found)

    def short_way(
        self,
        method: str,
        path: str,
        peer: str | None,
        header_lines: Callable[[str], Sequence[str]],
        endpoint_rules: EndpointRules = (),
    ) -> ShortWay:
        """Return the way of an HTTP request without a user, its charges, and the client's address.

        `NOT_LIMITED` and `BLOCKED` are ways without charges. The way is None if `match` must decide. `path`: below
        `root_path`; empty if it has several forms. `peer`, `header_lines`: see `ClientIPResolver.client_in`; the
        latter is called only if `reads_headers`. `endpoint_rules`: the limits of the request's endpoint, if the
        integration knows it.
        """
        if self._usage_path is not None and path in (self._usage_path, ""):
            return UNDECIDED
        client = peer if self._finder is None else self._finder.client_in(peer, header_lines)
        way = self._listed(client) if self._lists else None
        if way is None:
            way = self._table.way_for(method, path, endpoint_rules)
        if way is None or client is None or (charges := way.charges(client)) is None:
            return UNDECIDED
        if (proxy_check := self._proxy_check) is not None:  # read once, as a thread may set it to None
            self._examine(proxy_check, peer, header_lines)
        return way, charges, client

    def _listed(self, client: str | None) -> Way | None:
        """Return the way of a client on the blocklist or safelist."""
        address = client if client is None or is_ipv4(client) else shortest(client)
        if address is not None:
            for networks, way in self._lists:
                if address in networks:
                    return way
        return None

    def _examine(
        self, proxy_check: ProxyHeaderCheck, peer: str | None, header_lines: Callable[[str], Sequence[str]]
    ) -> None:
        proxy_check.examine(peer, header_lines)
        if proxy_check.done:
            self._proxy_check, self.reads_headers = None, self._finder is not None

    def match(self, request: Request, endpoint_rules: EndpointRules = ()) -> Match | None:
        """Return the limits of a request; None if it is safelisted or exempt, or if limiting is disabled.

        `endpoint_rules`: the limits of its endpoint, if the integration knows it. Sets `request.client` to the address
        that the trusted proxies report.
        """
        setting = self._enabled
        if setting is False or (callable(setting) and evaluate_predicate(setting, request, *ENABLED_FAILURE) is False):
            return None
        if request.is_peer_lost and not self._settings.shadow:
            return self._lost_peer  # its client cannot be told from others, and is gone, so it receives no response
        if (proxy_check := self._proxy_check) is not None:
            self._examine(proxy_check, request.client, request.header_lines)
        if self._finder is not None:
            request.client = self._client(self._finder, request)
        if self._blocked_clients is not None and self._blocked_clients.matches(request, once=False):
            return BLOCKED.match
        method, forms = request.method, Forms.of(request.paths)
        is_safe = self._safe_clients is not None and self._safe_clients.matches(request, once=True)
        if is_safe or self._table.is_exempt(forms):
            return None
        if method == "OPTIONS" and (announced := _announced_method(request)) is not None:
            return self._table.match_preflight(announced, forms, request, endpoint_rules)
        return self._table.match(
            method, forms, request, applicable_rules(endpoint_rules, method, request) if endpoint_rules else ()
        )

    def asks_usage(self, request: Request) -> bool:
        """Return whether a client asks what is left of its own limits: by each reading of the path."""
        return (
            self._usage_path is not None
            and request.method in ("GET", "HEAD")
            and request.is_answerable
            and all(path == self._usage_path for path in request.paths)
        )

    def client_matches(self, request: Request) -> list[Match]:
        """Return the limits of each rule that may apply to a client, whatever the path and method."""
        return self._table.client_matches(request)

    def find_client(self, request: Request) -> None:
        """Set `request.client` from the socket's peer to the address that the trusted proxies report."""
        if self._finder is not None:
            request.client = self._client(self._finder, request)

    def _client(self, finder: ClientIPResolver, request: Request) -> str | None:
        """Return the client's address.

        If the server lets clients forge it, logs a warning or, with `strict`, raises `ConfigError`.
        """
        joined = request.joined_values
        if joined is None:
            return finder.client_in(request.client, request.header_lines)
        if not self._warned or self._settings.strict:
            self._warned = True
            warn_or_fail([UNDERSCORE_FINDING], strict=self._settings.strict)
        return finder.client_in(
            request.client, lambda name: unambiguous_values(name, request.header_lines(name), joined)
        )


def _is_dynamic(limit_set: LimitSet) -> bool:
    """Return whether a callable returns these limits."""
    return limit_set.fixed_limits is None and limit_set.tier is None


def _announced_method(request: Request) -> str | None:
    """Return the method that a CORS preflight announces; None if an OPTIONS request is not a preflight (Fetch).

    The client may send any text. If there are several header lines, the first one counts; this is safe, because the
    method can only add limits.
    """
    values = request.header_lines("access-control-request-method")
    return values[0].strip().upper() if values and request.header_lines("origin") else None
