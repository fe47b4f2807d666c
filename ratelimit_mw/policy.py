"""What a request is asked, and what the answer means: plan and conclude. Pure: no store, no clock, no I/O."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.calls import Answers, Call
from ratelimit_mw.client_ip import client_address
from ratelimit_mw.kept import Budget, Kept
from ratelimit_mw.keys import Caller
from ratelimit_mw.limit import Bucket, Charge, Decision, bucket_of
from ratelimit_mw.lines import Line, Lines
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.request import Request
from ratelimit_mw.response import Policy
from ratelimit_mw.stores.group import can_be_summed, identity
from ratelimit_mw.verdict import Source, Verdict, verdict_of

_SHORT: Final = 256  # characters of a user or client of whom a plan is remembered
PLANS: Final = Budget(16_384)  # of recent clients, for all combinations of rules
_ADDRESSES: Final = 4096  # of IPv6 clients, whose networks are remembered


class Match:
    """The lines that apply to a request. One object per combination of rules, made once.

    `defaults`: what applies where a callable gives no limits. `route`: what the key `route` means unless the framework
    knows better. `denied`: refused without being asked. `reads_user`: as far as is known before a request comes.
    `messages`: the same for each message, if it is a websocket's handshake; `closes`: there, whether a refused message
    ends it. `waits`: whether a request may be held back. `follows`: whether something of it is settled after the
    response; `holds`: whether slots are given back then; `queues`: whether a request may have to wait for one.
    """

    __slots__ = (
        *("calls", "closes", "defaults", "denied", "fixed", "follows", "groups", "messages", "policies", "reads_user"),
        *("holds", "of_client", "prefix", "queues", "remembered", "route", "rule", "waits"),
    )

    def __init__(
        self,
        groups: Sequence[Lines],
        rule: str,
        route: str,
        defaults: Lines | None = None,
        *,
        denied: bool = False,
        messages: "Match | None" = None,
        closes: bool = False,
    ) -> None:
        self.groups = groups
        self.rule = rule
        self.route = route
        self.defaults = defaults
        self.denied = denied
        self.messages = messages
        self.closes = closes
        self.calls: list[Call] = list(dict.fromkeys(call for group in groups for call in group.calls))
        self.fixed: list[Line] | None = None
        if all(group.fixed is not None for group in groups):
            self.fixed = [line for group in groups for line in group.fixed or ()]
        elif defaults is not None:
            self.calls += [call for call in defaults.calls if call not in self.calls]
        self.policies = [line.policy for line in self.fixed or ()]
        keys = [key for group in groups for key in (*group.keys, group.tier) if key is not None]
        self.reads_user = any(key.reads_user for key in keys)
        # plans by (user, client, route), where nothing else is looked at: a client that comes again costs one look-up
        again = self.fixed is not None and all(line.key.memorable and isinstance(line.cost, int) for line in self.fixed)
        self.remembered = Kept(self._plan_of, PLANS) if again and not denied else None
        self.prefix = max((line.key.prefix for line in self.fixed or ()), default=0)
        may_apply = [*groups, *([] if self.fixed is not None or defaults is None else [defaults])]
        self.waits = any(group.waits for group in may_apply)
        self.follows = any(group.follows for group in may_apply)
        self.holds = any(group.holds for group in may_apply)
        self.queues = any(group.queues for group in may_apply)
        quick = self.remembered is not None and not (self.waits or self.follows or self.holds)
        self.of_client: Plans | None = Plans(self._plan_of_client, self.prefix) if quick else None

    def lines(self, request: Caller, route: str, answers: Answers) -> Sequence[Line] | None:
        """The lines of a request; None when a callable gave no limits, and neither did that of the defaults."""
        if self.fixed is not None:
            return self.fixed
        found: dict[Lines, Sequence[Line]] = {}
        for group in self.groups:
            own = group.of(request, route, answers)
            if own is None and group.own is not None and group.own.shadow:
                continue  # it refuses nobody, so nothing has to stand in for it
            if own is None and self.defaults is not None:
                group = self.defaults  # noqa: PLW2901  # it stands in for the group, once
                own = group.of(request, route, answers) or None  # where there are no default limits, nothing does
            if own is None:
                return None
            found[group] = own
        return [line for lines in found.values() for line in lines]

    def _plan_of_client(self, client: str | None) -> "Plan":
        found = self._plan(None, client, None)
        alone = [charge.role for charge in found.charges] == ["limit"]
        return replace(found, match=self, alone=alone)

    def _plan_of(self, who: tuple[str | None, str | None, str | None]) -> "Plan":
        return self._plan(*who)

    def _plan(self, user: str | None, client: str | None, route: str | None) -> "Plan":
        return _plan(self, _Known(user, client), route or self.route, {})


class _Known(Struct, frozen=True, gc=False):
    """A caller of whom nothing else is asked."""

    user: str | None
    client: str | None
    cookies: Mapping[str, str] = {}

    def header(self, _: str) -> str | None:
        return None


class Plan(Struct, frozen=True, gc=False):
    """What the store is asked. `denied`: refused without asking, and as what that counts.

    `match`, and `alone`, whether there is one charge, that can refuse: where nothing but the client's address counts.
    """

    charges: Sequence[Charge]
    lines: Sequence[Line]
    policies: Sequence[Policy]
    denied: Source | None = None
    match: Any = None
    alone: bool = False

    def of(self, indices: Sequence[int]) -> "Plan":
        """A part of it."""
        parts = (self.charges, self.lines, self.policies)
        return Plan(*[[part[index] for index in indices] for part in parts])  # type: ignore[arg-type]  # one kind each


def _is_short(who: str | None) -> bool:
    return who is None or len(who) <= _SHORT


@cache
def _networks(prefix: int) -> Kept[str, str]:
    """What `_of_network` says, remembered: one for all rules."""
    return Kept(partial(_of_network, prefix=prefix), Budget(_ADDRESSES), _is_short)


def _of_network(client: str, prefix: int) -> str:
    """The first address of an IPv6 client's network, of which the same is asked; else the client itself."""
    counted = client_address(client, prefix) if prefix else None
    first = client if counted is None else counted.partition("/")[0]
    return first if client_address(first, prefix) == counted else client  # such as one that means an IPv4 address


class Plans(Kept[str | None, Plan]):
    """What is asked of a client, by its address. `prefix`: by so many bits of an IPv6 address."""

    def __init__(self, make: Callable[[str | None], Plan], prefix: int) -> None:
        super().__init__(make, PLANS, _is_short)
        self._networks: Final = _networks(prefix)

    def __missing__(self, client: str | None) -> Plan:
        if client is not None and ":" in client:
            first = self._networks[client]
            if first != client:
                return self[first]
        return super().__missing__(client)


_DENIED: Final = Plan((), (), (), denied="store")
_UNKNOWN: Final = Plan((), (), (), denied="denied_on_error")


def owners(asked: Plan) -> Sequence[str]:
    """The identities that a request has under its keys; none where it has no key but those that all clients share."""
    pairs = zip(asked.charges, asked.lines, strict=True)
    return list(dict.fromkeys(identity(charge.key) for charge, line in pairs if not line.key.is_shared))


def plan(match: Match, request: Request, answers: Answers) -> Plan:
    """The charges of a request, given what the callables of its match answered."""
    if match.remembered is not None:
        user, client = request.user if match.reads_user else None, request.client
        if _is_short(user) and _is_short(client):
            if client is not None and ":" in client:
                client = _networks(match.prefix)[client]
            return match.remembered[user, client, request.route]
    return _DENIED if match.denied else _plan(match, request, request.route or match.route, answers)


def _plan(match: Match, request: Caller, route: str, answers: Answers) -> Plan:
    lines = match.lines(request, route, answers)
    if lines is None:
        return Plan((), (), ()) if match.groups[0].settings.shadow else _UNKNOWN
    charges = []
    for line in lines:
        identity = line.key.identity(request, route, answers)
        if identity is None:
            return _plan_without(lines, request, route, answers)
        charges.append(line.charges[identity, line.cost_of(answers)])
    return Plan(_apart(charges), lines, match.policies if lines is match.fixed else [line.policy for line in lines])


def _plan_without(candidates: Sequence[Line], request: Caller, route: str, answers: Answers) -> Plan:
    """The same when a key is not there."""
    charges, lines = [], []
    for line in candidates:
        identity = line.key.identity(request, route, answers)
        if identity is None:
            warn_rarely(f"key {line.key.text!r}", "is not there; missing_key = %r says what follows", line.missing)
            if line.missing == "deny" and not line.shadow:
                return _DENIED
            if line.bans or line.missing == "deny" or (line.missing == "exempt" and not line.key.failed(answers)):
                continue  # a ban of all who have no key would be everybody's, for what one of them did
            identity = line.shared
        charges.append(line.charges[identity, line.cost_of(answers)])
        lines.append(line)
    return Plan(_apart(charges), lines, [line.policy for line in lines])


def _apart(charges: Sequence[Charge]) -> Sequence[Charge]:
    """The same charges; of two in one bucket that no store can sum, the second gets a bucket of its own.

    So both limits hold, where a store would refuse to be asked: limits of one name that callables give, for example.
    The answer is a tuple, which never changes: a store may remember what it makes of it.
    """
    if len(charges) == 1 or len({(charge.key, charge.limit.bucket) for charge in charges}) == len(charges):
        return tuple(charges)
    found: dict[tuple[str, str], Charge] = {}
    apart = []
    for charge in charges:
        own = charge
        while not can_be_summed(found.setdefault((own.key, own.limit.bucket), own), own):
            own = replace(own, key=f"{own.key}+")  # no name has a plus
        apart.append(own)
    return tuple(apart)


def without_charged(asked: Plan, charged: Iterable[Charge]) -> Plan:
    """Drop what outer middleware has charged already: whole charges, or the part of a cost that was charged.

    `charged`: the charges of the outer middleware. Penalties stay, because outer middleware cannot know whether this
    one refuses.
    """
    paid = Counter[Bucket]()
    for charge in charged:
        paid[bucket_of(charge)] += charge.cost
    if not any(bucket_of(charge) in paid for charge in asked.charges):
        return asked
    due = [charge.cost - paid[bucket_of(charge)] for charge in asked.charges]
    kept = [index for index, charge in enumerate(asked.charges) if due[index] > 0 or bucket_of(charge) not in paid]
    if any(asked.charges[index].role == "limit" for index in kept):  # which may refuse
        counts = [index for index, charge in enumerate(asked.charges) if charge.role == "penalty"]
        due = [charge.cost if charge.role == "penalty" else due[index] for index, charge in enumerate(asked.charges)]
        kept = sorted({*kept, *counts})
    part = asked.of(kept)
    return replace(part, charges=[replace(asked.charges[index], cost=due[index]) for index in kept])


def without_store(asked: Plan) -> tuple[Source, Plan]:
    """What happens when the store failed: the strictest of what the lines say, and what is asked locally instead.

    The charges are those of the store, of which a `LocalStore` takes its share; the policies say that share.
    """
    modes = {line.on_store_error for line in asked.lines if not line.shadow}
    if "deny" in modes:
        return "denied_on_error", Plan((), (), ())
    kept = [index for index, line in enumerate(asked.lines) if line.on_store_error == "local"]
    if not kept:
        return "allowed_on_error", Plan((), (), ())
    part = asked.of(kept)
    return "local", replace(part, policies=[line.local for line in part.lines])


def conclude(match: Match, asked: Plan, decisions: Sequence[Decision], source: Source = "store") -> Verdict:
    """The verdict on a request."""
    if asked.denied is not None or source == "denied_on_error":
        return Verdict(False, (), (), match.rule, asked.denied or source)
    return verdict_of(asked.charges, decisions, match.rule, source, asked.policies)
