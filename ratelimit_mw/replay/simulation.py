"""Decides the requests of a log by the middleware's own rules, plans and algorithms, under the log's clock."""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Final
from zlib import crc32

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.http.client_lists import ClientList
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.views import AsgiRequest
from ratelimit_mw.replay.assumptions import Assumed, replayed_settings
from ratelimit_mw.replay.client_plans import Caller, ClientPlan, LastingStore, Route, SharedPlan
from ratelimit_mw.replay.formats.base import CLIENT, REQUEST, STATUS, USER, LogFormat, Record
from ratelimit_mw.replay.reading import Group
from ratelimit_mw.replay.records import RecordReader
from ratelimit_mw.replay.schedule import Schedule
from ratelimit_mw.replay.tallies import MINUTE, Member, RuleTally, Tallies, members_of, rule_of
from ratelimit_mw.rules.plan import Match, Plan, client_identities, conclude, make_plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.group import hash_tag

Watch = Callable[[float, Verdict | None], object]  # receives the time of each request, and its verdict

_MAX_ROUTES: Final = 65_536  # remembered paths
_MAX_PLANS: Final = 300_000  # remembered plans of clients
_MAX_WAITING: Final = 1000  # delayed requests, as in the ASGI middleware
_TOO_MANY: Final = "429"
_status_of: Final = itemgetter(STATUS)
_EXEMPT, _SAFE, _BLOCKED, _DENIED, _OTHER = "exempt", "safe", "blocked", "denied", "other"


class Simulation:
    """Replays requests against the settings.

    `keeps_times`: whether to keep the times of each client's requests. `part`: the number of the part of the clients to
    replay, and the number of parts. `watch`: receives each verdict.
    """

    def __init__(
        self,
        settings: Settings,
        log: LogFormat,
        assumed: Assumed,
        *,
        keeps_times: bool = False,
        part: tuple[int, int] = (0, 1),
        watch: Watch | None = None,
    ) -> None:
        self._settings: Final = settings
        self._log: Final = log
        self._assumed: Final = assumed
        self._keeps_times: Final = keeps_times
        self._part: Final = part
        self._watch: Final = watch
        self.rules: Final = RuleSet(replayed_settings(settings))
        self._store: Final = LastingStore()
        self._schedule: Final = Schedule(
            self._store, _MAX_WAITING if settings.max_waiting is None else settings.max_waiting
        )
        self._address_key: Final = Key("ip", settings.ipv6_prefix)
        self._reader: Final = RecordReader(settings, log, assumed)
        blocked = settings.blocklist and not settings.shadow
        self._blocked: Final = ClientList("blocklist", settings.blocklist) if blocked else None
        self._safe: Final = ClientList("safelist", settings.safelist) if settings.safelist else None
        self._has_lists: Final = self._blocked is not None or self._safe is not None
        self._is_static: Final = self._finds_rules_by_path()
        self._routes: dict[str, Route] = {}  # by the text of the request
        self._by_match: dict[int, Route] = {}
        self._no_request: Final = Route(None, [])
        self._no_request.is_simple = False
        self._remembered = 0
        self._nameless: Final[set[str]] = set()  # clients without an address
        self._minute = -1
        self.tallies: Final = Tallies()
        self._rows: Final = self.tallies.rules
        self._prepare_rows()

    def _finds_rules_by_path(self) -> bool:
        """Return whether method, path and client address decide which rules apply."""
        settings, log = self._settings, self._log
        lists = (*settings.safelist, *settings.blocklist)
        return (
            isinstance(settings.enabled, bool)
            and not any(rule.host or rule.when is not None for rule in settings.parsed_rules())
            and all(isinstance(entry, str) and not entry.startswith("call:") for entry in lists)
            and (self._reader.proxy_header is None or not log.has_value(f"header:{self._reader.proxy_header}"))
            and not log.has_value("header:access-control-request-method")
            and not self._assumed.headers.keys() & {"access-control-request-method"}
        )

    def _prepare_rows(self) -> None:
        app, *of_rules, default = self.rules.limit_sets
        if self._blocked is not None:
            self._rows["blocklist"] = RuleTally("blocklist")
        for limit_set in ([app] if app.fixed_limits != [] else []) + [*of_rules, default]:
            self._rows[limit_set.name] = tally = RuleTally(limit_set.name)
            shadows = [limit.shadow for limit in limit_set.known_limits]
            is_shadow_rule = self._settings.shadow or (limit_set.rule is not None and limit_set.rule.shadow)
            tally.is_shadow = is_shadow_rule or (bool(shadows) and all(shadows))

    def replay(self, group: Group) -> None:
        """Decide the requests of a group. If the log has whole seconds, the requests of a second are spread over it."""
        us, is_whole, records = group
        minute = us // MINUTE
        if minute != self._minute:
            self._add_up()
            self._minute = minute
        tallies = self.tallies
        if tallies.first is None:
            tallies.first = us
        tallies.last = us
        statuses = list(map(_status_of, records))
        tallies.logged_refusals += statuses.count(_TOO_MANY) + statuses.count(int(_TOO_MANY))
        timed = zip(_spread(us, len(records) if is_whole else 0), records, strict=False)
        if self._is_static:
            self._replay_all(timed)
        else:
            for now, record in timed:
                self._replay_one(now, record)

    # every step is inlined, because a replay spends most of its time here
    def _replay_all(self, timed: Iterable[tuple[int, Record]]) -> None:  # noqa: C901, PLR0912
        """Decide requests whose rules depend on the path alone, as is common."""
        routes, events, watch, tallies = self._routes, self._schedule.events, self._watch, self.tallies
        is_silent, agent_of = watch is None and not self._keeps_times, self._reader.agent
        for now, record in timed:
            if events:
                self._schedule.run_until(now)
            try:
                route = routes[record[REQUEST]]
            except KeyError:
                route = self._find_route(record)
            route.seen += 1
            if not route.is_simple:
                if route is not self._no_request:
                    self._store.now = now
                    self._decide(route, record, now)
                continue
            caller, user = record[CLIENT], record[USER]
            if user and user != "-":
                caller = caller, user
            try:
                client_plan = route.plans[caller]
            except KeyError:
                client_plan = self._remember_plan(route, caller, record)
            if client_plan.row is not None:  # the common case of a single limit; the same as `ClientPlan.decide`
                states, key = client_plan.states, client_plan.key
                old = states[key]
                decision, new = client_plan.decide_one(old, now, client_plan.cost, None)
                if new is not old:
                    states[key] = new
                if not decision.allowed:
                    client_plan.label = client_plan.label or self._label(hash_tag(key), caller)
                    client_plan.row.refuse(client_plan.label, now, record, agent_of)
                    tallies.refused += 1
                if is_silent:
                    continue
                decisions: Sequence[Decision] = (decision,)
            elif client_plan.charges:
                decisions = client_plan.decide(now) if client_plan.buckets else self._take(client_plan.charges, now)
                for one in decisions:
                    if not one.allowed:
                        self._count_refusal(client_plan.charges, decisions, caller, now, record)
                        break
            else:
                self._decide_without_store(route, client_plan.reason, caller, now, record)
                continue
            for member in client_plan.members:
                member.add(now, record, agent_of(record))
            if watch is not None and route.match is not None:
                watch(now / 1_000_000, conclude(route.match, Plan(client_plan.charges, (), ()), decisions))

    def _take(self, charges: Sequence[Charge], now: int) -> Sequence[Decision]:
        self._store.now = now
        return self._store.take(charges)

    def _replay_one(self, now: int, record: Record) -> None:
        """Decide a request whose rules depend on more than its path."""
        self._schedule.run_until(now)
        self._store.now = now
        if not record[REQUEST]:
            self.tallies.skipped += 1
            return
        request = self._reader.request(record)
        route = self._route_of(request)
        route.seen += 1
        self._decide(route, record, now, request)

    def _find_route(self, record: Record) -> Route:
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        text = record[REQUEST]
        if not text:
            return self._no_request
        route = self._routes[text] = self._route_of(self._reader.request(record))
        return route

    def _route_of(self, request: AsgiRequest) -> Route:
        match = self.rules.match(request)
        route = self._by_match.get(id(match))
        if route is None:
            route = self._by_match[id(match)] = Route(match, [] if match is None else self._rows_of(match))
            if match is None and not self._has_lists and self._part[1] == 1:
                route.plans = SharedPlan(ClientPlan(reason=_EXEMPT))
        if request.method == "OPTIONS":
            self.tallies.preflights += 1
        return route

    def _is_in_part(self, route: Route, request: AsgiRequest) -> bool:
        """Return whether this process replays a request. One process replays all requests that share a bucket."""
        keys = {} if route.match is None else {limit.key.text: limit.key for limit in route.match.fixed_limits or ()}
        if len(keys) > 1:
            raise ConfigError(
                f"--jobs: rule {route.rule} applies with limits of different keys: {', '.join(keys)}", code="RL-051"
            )
        key = next(iter(keys.values()), self._address_key)
        identity = key.identity(request, "", {}) or ""
        return crc32(identity.encode("utf-8", "surrogatepass")) % self._part[1] == self._part[0]

    def _rows_of(self, match: Match) -> list[RuleTally]:
        names = [
            limit_set.name for limit_set in match.limit_sets if limit_set.name != "app" or limit_set.fixed_limits != []
        ]
        return [self._rows.setdefault(name, RuleTally(name)) for name in names]

    def _remember_plan(self, route: Route, caller: Caller, record: Record) -> ClientPlan:
        """Return the plan of a client on a route, and remember it."""
        if self._remembered >= _MAX_PLANS:
            self._remembered = 0
            for other in self._by_match.values():
                other.plans.clear()
        self._remembered += 1
        client_plan = route.plans[caller] = self._plan_client(route, caller, record)
        return client_plan

    def _plan_client(self, route: Route, caller: Caller, record: Record) -> ClientPlan:
        match = route.match
        is_plain = not self._has_lists and self._part[1] == 1 and self._assumed.user is None and isinstance(caller, str)
        way = route.way if is_plain else None
        client = None if way is None else self._reader.client(record)
        charges = None if way is None or client is None else way.charges(client)
        if way is not None and charges is not None:
            plan = way.plan(charges)
        else:
            request = self._reader.request(record)
            client, reason = request.client, self._reason_without_limits(route, request)
            if match is None or reason:
                return ClientPlan(reason=reason)
            plan = make_plan(match, request, {})
        if client is None:
            self._count_nameless(record)
        if not plan.charges:
            return ClientPlan(reason=_reason_without_charges(plan))
        client_plan = ClientPlan(plan.charges, self._members(plan))
        client_plan.use(self._store)
        if len(client_plan.buckets) == 1:
            client_plan.row = self._rows[rule_of(client_plan.key)]
        return client_plan

    def _reason_without_limits(self, route: Route, request: AsgiRequest) -> str:
        """Return the reason for which no limit applies to a request; empty if limits apply."""
        if self._part[1] > 1 and not self._is_in_part(route, request):
            return _OTHER
        if self._blocked is not None and self._blocked.matches(request, once=False):
            return _BLOCKED
        if route.match is None:
            return _EXEMPT
        return _SAFE if self._safe is not None and self._safe.matches(request, once=True) else ""

    def _members(self, plan: Plan) -> Sequence[Member]:
        return members_of(self.tallies, plan) if self._keeps_times else ()

    def _decide_without_store(self, route: Route, reason: str, caller: Caller, now: int, record: Record) -> None:
        """Count a request for which no store is queried."""
        if reason == _OTHER:
            route.seen -= 1
            return
        client = caller if isinstance(caller, str) else caller[0]
        verdict = None
        if reason in (_BLOCKED, _DENIED):
            self.tallies.refused += 1
            row = self._rows["blocklist"] if reason == _BLOCKED else self._rows.get(route.rule, route.rows[-1])
            row.refuse(client, now, record, self._reader.agent)
            if reason == _BLOCKED:  # no rules were matched
                route.seen -= 1
                row.minutes[self._minute][0] += 1
                self.tallies.requests += 1
            verdict = Verdict(False, (), (), row.name)
        elif reason == _SAFE:
            route.seen -= 1
            self.tallies.requests += 1
            self.tallies.unlimited += 1
        if self._watch is not None:
            self._watch(now / 1_000_000, verdict)

    def _decide(self, route: Route, record: Record, now: int, request: AsgiRequest | None = None) -> None:
        """Decide a request in full: with callables, delays, slots and settlement after the response."""
        request = request or self._reader.request(record)
        caller, match, reason = record[CLIENT], route.match, self._reason_without_limits(route, request)
        if match is None or reason:
            self._decide_without_store(route, reason, caller, now, record)
            return
        if request.client is None:
            self._count_nameless(record)
        plan = make_plan(match, request, self._reader.results(match.callables, request))
        if not plan.charges:
            self._decide_without_store(route, _reason_without_charges(plan), caller, now, record)
            return
        may_be_delayed = match.may_delay and any(charge.effective_max_delay_us for charge in plan.charges)
        keys: Sequence[str] = ()
        if may_be_delayed:
            keys = client_identities(plan) or [self._address_key.identity(request, "", {}) or ""]
            plan = self._schedule.capacity.refusing_if_full(plan, keys)
        decisions = self._store.take(plan.charges)
        verdict = conclude(match, plan, decisions)
        for member in self._members(plan):
            member.add(now, record, self._reader.agent(record))
        if not all(decision.allowed for decision in decisions):
            self._count_refusal(plan.charges, decisions, caller, now, record)
        if verdict.allowed and (match.settles or match.has_slots or verdict.delay):
            status, duration = self._reader.status(record), self._reader.duration(record)
            self._schedule.add_admitted(match, verdict, status, duration, now, keys)
        if self._watch is not None:
            self._watch(now / 1_000_000, verdict)

    def _count_nameless(self, record: Record) -> None:
        """Count a client without an address, once while it is remembered."""
        client = record[CLIENT]
        if client not in self._nameless:
            if len(self._nameless) >= _MAX_PLANS:
                self._nameless.clear()
            self._nameless.add(client)
            self.tallies.nameless += 1

    def _count_refusal(
        self, charges: Sequence[Charge], decisions: Sequence[Decision], caller: Caller, now: int, record: Record
    ) -> None:
        """Count a refused request once for each rule with a limit that refuses it, or with a shadow that would."""
        refused = False
        rules: dict[str, str] = {}
        for charge, decision in zip(charges, decisions, strict=True):
            if not decision.allowed:
                refused = refused or charge.role != "shadow"
                rules.setdefault(rule_of(charge.key), hash_tag(charge.key))
        for name, identity in rules.items():
            self._rows[name].refuse(self._label(identity, caller), now, record, self._reader.agent)
        self.tallies.refused += refused

    def _label(self, identity: str, caller: Caller) -> str:
        """Return the name of a client in results: its address or identity; its address if all share the identity."""
        if identity.startswith("ip=") and "+" not in identity:
            return identity[3:]
        if identity == "all=all" or (identity.startswith("route=") and "+" not in identity):
            return caller if isinstance(caller, str) else caller[0]
        return identity

    def _add_up(self) -> None:
        """Add the requests of this minute to the counts of their rules."""
        for route in self._by_match.values():
            if route.seen:
                self.tallies.requests += route.seen
                if route.match is None:
                    self.tallies.unlimited += route.seen
                for row in route.rows:
                    row.minutes[self._minute][0] += route.seen
                route.seen = 0

    def finish(self) -> Tallies:
        """Return the counts."""
        self._add_up()
        self.tallies.skipped += self._no_request.seen
        return self.tallies


def _reason_without_charges(plan: Plan) -> str:
    return _EXEMPT if plan.denied_source is None else _DENIED


def _spread(us: int, length: int) -> Iterable[int]:
    """Return times for `length` requests, evenly spread over the second from `us` on. For 0, repeats `us` forever."""
    if not length:
        return repeat(us)
    step = 1_000_000 // length
    return range(us, us + step * length, step) if step else repeat(us)
