"""Finds the buckets of a described request, and reads what is left in buckets."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.admin.target import DescribedRequest, Step, Target
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, Decision, Role
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import callable_place
from ratelimit_mw.http.callables import FAILED, CallResults, RequestCallable
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.request import USER_NAMES, Request, as_text
from ratelimit_mw.rules.override_entries import Override
from ratelimit_mw.rules.overrides import NO_OVERRIDES, ActiveOverrides
from ratelimit_mw.rules.plan import Match, make_plan
from ratelimit_mw.stores import Store

PER_CALL: Final = 100  # buckets in one call
_NO_LIMIT: Final = "no limit applies to this request"
_BLOCKED: Final = "an override blocks the client"
_NOT_LIMITED: Final = "nothing limits this request: limiting is switched off, or the path or client is exempt"
_MISSING: Final = (
    "the request has no value for the key {key!r} of {name}; describe it with --ip, --user, --header or --host. "
    "If the app reads it from elsewhere, such as a form, reset the keys that `peek` and `keys` show, with reset --key. "
    "--ip '' means a request without an address, whose bucket all such requests share"
)
_ABSENT: Final = (
    "no such bucket exists: nothing is counted for {identity}, which this request has for the key {key!r} of {limits}"
)
_UNANSWERED: Final = (
    "{call} found no key for this request, so {identity} counts in the key {key!r}; describe the request with "
    "--header, --user or --ip"
)
_UNCOVERED: Final = (
    "{name} refuses, although override {id} exempts {who}: {name} counts by {key}, as {identity}; exempt that, too"
)
USER_IS: Final = f"; `user` is the first of {', '.join(USER_NAMES)} that the app's user has, in Django the primary key"


class Bucket(Struct, frozen=True):
    """The state of one limit for one client.

    `rule`: the rule in the key of the bucket. `limit`: canonical notation. `key`: the client's identity in the store,
    which is a hash unless `plain_keys` is set. `remaining`: whole units left. `retry_after`: seconds until the request
    would pass this limit; 0.0 if it would pass now, infinite if never. `reset_after`: seconds until the quota is whole
    again.
    """

    rule: str
    limit: str
    key: str
    remaining: int
    retry_after: float
    reset_after: float

    @property
    def exists(self) -> bool:
        """Whether anything is counted. If not, the bucket is as one that was never charged."""
        return self.reset_after > 0


class RequestBuckets(Struct, frozen=True):
    """The buckets that a request would charge.

    `charges`: one for each bucket, with the cost of the request. `names`: the names of their limits in headers.
    `roles`: those with which the request charges them.
    `reason`: why there are no buckets; empty if there are any. `missing`: a message for each limit whose bucket cannot
    be found. `keys`: the key of each limit, and what the request has for it; empty if the buckets are not those of a
    request. `results`: those of the callables. `elsewhere`: the names of limits that count in a store of their own.
    `overrides`: those that apply to the request.
    """

    charges: Sequence[Charge]
    names: Sequence[str]
    roles: Sequence[Role] = ()
    reason: str = ""
    missing: Sequence[str] = ()
    keys: Sequence[tuple[Key, str]] = ()
    results: CallResults = {}
    elsewhere: Sequence[str] = ()
    overrides: Sequence[Override] = ()

    @property
    def unanswered(self) -> Sequence[str]:
        """A message for each key callable that found nothing, where another part of the key counts instead."""
        return [
            _UNANSWERED.format(call=callable_place(call), key=key.text, identity=identity)
            for key, identity in dict.fromkeys(self.keys)
            for call in key.callables
            if as_text(self.results[call]) is None
        ]

    def uncovered(self, buckets: Sequence[Bucket], exemptions: Iterable[Override]) -> Iterator[str]:
        """Yield a message for each limit that refuses, although the client is exempt where other keys count it."""
        for one in exemptions:
            for (key, identity), name, role, bucket in zip(self.keys, self.names, self.roles, buckets, strict=False):
                if bucket.retry_after and role == "limit" and one.rule is None:
                    yield _UNCOVERED.format(name=name, id=one.id, who=one.who, key=key.text, identity=identity)

    def absent(self, buckets: Sequence[Bucket]) -> Iterator[str]:
        """Yield a message for each client's identity that has no bucket. `buckets`: those of `charges`."""
        by_key: dict[tuple[Key, str], list[tuple[str, Bucket]]] = {}
        for pair, name, bucket in zip(self.keys, self.names, buckets, strict=False):
            by_key.setdefault(pair, []).append((name, bucket))
        for (key, identity), named in by_key.items():
            if not any(bucket.exists for _, bucket in named):
                limits = ", ".join(name for name, _ in named)
                text = _ABSENT.format(key=key.text, identity=identity, limits=limits)
                yield f"{text}{USER_IS}" if key.may_read_user else text


def find_buckets(
    target: Target,
    described: DescribedRequest,
    overrides: ActiveOverrides = NO_OVERRIDES,
    *,
    need_all: bool = True,
    with_originals: bool = False,
) -> RequestBuckets:
    """Return the buckets that a request would charge: in all rules, of its endpoint, and of a websocket's messages.

    `with_originals`: also those that it would charge without the overrides. Raises `ConfigError` if the description
    lacks a key that a limit needs, unless `need_all` is false and another limit has a bucket.
    """
    with target.context_of(described):
        found = _find_buckets(target, described, [overrides, NO_OVERRIDES] if with_originals else [overrides])
    if found.missing and (need_all or not found.charges):
        raise ConfigError(*found.missing)
    return found


def _find_buckets(
    target: Target, described: DescribedRequest, override_sets: Sequence[ActiveOverrides]
) -> RequestBuckets:
    steps = target.steps_of(described)
    matches: list[tuple[Match, Step, CallResults]] = []
    elsewhere: list[str] = []
    for step in steps:
        match = step.rules.match(step.request, step.endpoint_rules)
        if match is not None and match.denied:
            return RequestBuckets((), (), (), "the client is on the blocklist, which needs no store")
        if match is not None and step.store not in (None, target.settings.store):
            elsewhere += [rule.name for rule in step.endpoint_rules]
        elif match is not None:
            messages = match.messages if step.request.method == "GET" else None
            both = [match] if messages is None else [match, messages]
            results = _results([call for one in both for call in one.callables], step.request)
            matches += [(one, step, results) for one in both]
    found: dict[tuple[str, str], tuple[Charge, str, Role, tuple[Key, str]]] = {}
    missing: dict[str, str] = {}
    all_results: dict[RequestCallable, Any] = {}
    applied: dict[str, Override] = {}
    is_blocked = False
    for match, step, results in matches:
        request = step.request
        route = request.route or match.route
        all_results |= results
        missing.update(_missing_keys(match, request, results, may_be_shared=described.ip == ""))
        limits = match.limits_for(request, route, results) or ()
        applied |= {one.id: one for one in override_sets[0].applied(limits, request, route, results)}
        for overrides in override_sets:
            plan = make_plan(match, request, results, overrides)
            is_blocked |= plan.is_blocked
            for charge, compiled in zip(plan.charges, plan.compiled_limits, strict=True):
                if compiled.policy.name in missing:
                    continue
                identity = compiled.identity(request, route, results) or "no client in particular"
                parts = _as_limit(charge), compiled.policy.name, charge.role, (compiled.key, identity)
                found.setdefault((charge.key, charge.limit.bucket), parts)
        if is_blocked and len(override_sets) == 1:
            break  # no later step decides the request
    charges, names, roles, keys = zip(*found.values(), strict=True) if found else ((), (), (), ())
    reason = _BLOCKED if is_blocked else _NO_LIMIT if matches or not steps else _NOT_LIMITED
    return RequestBuckets(
        charges,
        names,
        roles,
        "" if found else reason,
        _missing_messages(missing),
        keys,
        all_results,
        elsewhere,
        tuple(applied.values()),
    )


def look(store: Store, charges: Sequence[Charge], *, limited: bool = False) -> list[Bucket]:
    """Return the buckets of these charges. `limited`: only those that would refuse the charge.

    Changes nothing. A peek returns what would be left after the charge. For what is left now, a second peek of cost 0
    follows, unless the charge is refused.
    """
    parts = (charges[start : start + PER_CALL] for start in range(0, len(charges), PER_CALL))
    return [bucket for part in parts for bucket in _look(store, part, limited=limited)]


def _look(store: Store, charges: Sequence[Charge], *, limited: bool) -> list[Bucket]:
    decisions = list(store.peek(charges))
    chosen = [index for index, decision in enumerate(decisions) if not (limited and decision.allowed)]
    admitted = [index for index in chosen if decisions[index].allowed]
    if admitted:
        unchanged = store.peek([replace(charges[index], cost=0) for index in admitted])
        for index, decision in zip(admitted, unchanged, strict=True):
            decisions[index] = replace(decision, retry_after=0.0)
    return [_bucket(charges[index], decisions[index]) for index in chosen]


def split_key(key: str) -> tuple[str, str]:
    """Return the identity and the rule in a `Charge.key`, which has the form `{identity}:rule`."""
    identity, _, rule = key.rpartition("}:")
    return identity.removeprefix("{"), rule


def _bucket(charge: Charge, decision: Decision) -> Bucket:
    identity, rule = split_key(charge.key)
    left = decision.remaining, decision.retry_after, decision.reset_after
    return Bucket(rule, charge.limit.notation, identity, *left)


def _as_limit(charge: Charge) -> Charge:
    """Return the charge with the role `limit`. A peek then shows the state of a shadow or a penalty, too."""
    return Charge(charge.key, charge.limit, max(1, charge.cost), charge.max_delay)


def _results(calls: Iterable[RequestCallable], request: Request) -> CallResults:
    """Call the callables of the settings, as a gate does."""
    results: dict[RequestCallable, Any] = {}
    for call in dict.fromkeys(calls):
        try:
            results[call] = result_of(call, request)
        except Exception as error:  # noqa: BLE001  # as in a gate
            warn_throttled(callable_place(call), "raised an error: %s", type(error).__name__, code="RL-214", call=call)
            results[call] = FAILED
    return results


def result_of(call: RequestCallable, request: Request) -> Any:
    """Return the result of a callable of the settings. Awaits an async one."""

    async def awaited() -> Any:
        return await result

    result = call(request)
    return asyncio.run(awaited()) if isawaitable(result) else result


def _missing_messages(missing: Mapping[str, str]) -> Sequence[str]:
    """Return a message for each key in `missing`, which has the keys of limits by name."""
    names: dict[str, list[str]] = {}
    for name, key in missing.items():
        names.setdefault(key, []).append(name)
    messages = [_MISSING.format(key=key, name=", ".join(same)) for key, same in names.items()]
    return ConfigError(*messages, code="RL-051").problems


def _missing_keys(match: Match, request: Request, results: CallResults, *, may_be_shared: bool) -> Mapping[str, str]:
    """Return the key of each limit whose key is missing, by the limit's name.

    They are errors, because an operator hardly means the bucket that all clients without the key share.
    """
    if may_be_shared:
        return {}
    route = request.route or match.route
    return {
        limit.policy.name: limit.key.text
        for limit in match.limits_for(request, route, results) or ()
        if limit.identity(request, route, results) is None
    }
