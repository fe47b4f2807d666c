"""Decides requests that callers describe in parts, under the rules of the settings."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.core.limit import request_bucket
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.settlement import MAY_BE_LOST
from ratelimit_mw.http.on_refused import custom_refusal
from ratelimit_mw.http.response import HeaderList, Response, headers
from ratelimit_mw.http.views import AsgiRequest, TargetRequest
from ratelimit_mw.rules.plan import Match, Plan, conclude
from ratelimit_mw.service.answers import finite, numbers
from ratelimit_mw.service.calls import RequestParts, cost_of
from ratelimit_mw.service.hits import answered, reset
from ratelimit_mw.stores.group import stored_bucket

_OK: Final = 200

RequestWithCost = tuple[AsgiRequest, int | None]  # a request, and its cost, which replaces the cost in the rules
StoredBucket = tuple[str, str]  # the key of a bucket, and its id


class Requests:
    """Decides, shows and resets requests that are described in parts, under the rules of a gate."""

    def __init__(self, gate: AsyncGate) -> None:
        self._gate: Final = gate

    async def check_call(self, call: RequestParts) -> dict[str, Any]:
        """Take what the rules require, and return the status and headers that the middleware would send.

        Does not wait: the caller has to wait for `delay` seconds. `headers` has one text for each name: several fields
        of one name are joined by commas. Of several `Set-Cookie`, which cannot be joined, it has the last.
        """
        request = request_of(call.scope())
        verdict, _ = await self.decide([(request, None if call.cost is None else cost_of(call, 0))])
        status, fields, body = await self.response(request, verdict)
        rule, text = None if verdict is None else verdict.rule, body.decode("utf-8", "replace")
        return {**numbers(verdict), "rule": rule, "status": status, "headers": _by_name(fields), "body": text}

    async def response(self, request: AsgiRequest, verdict: Verdict | None) -> Response:
        """Return the response to a refused request; for others, a 200 with the headers to add and an empty body."""
        gate = self._gate
        if verdict is None or verdict.allowed:
            return Response(_OK, headers(verdict, gate.settings.headers), b"")
        handler = gate.refusal_handler_for(verdict)
        return await custom_refusal(handler, request, verdict, gate.default_refusal(request, verdict))

    async def decide(
        self, requests: Sequence[RequestWithCost], *, zero_looks: bool = False
    ) -> tuple[Verdict | None, list[list[StoredBucket]]]:
        """Return the verdict on some requests, which are decided in one step, and the buckets of each.

        The verdict is None if no limit applies. A bucket that several requests have in common is charged once. A limit
        with `overdraw` takes a given cost in any case. With `zero_looks`, a request of cost 0 takes nothing, and is
        refused if one of cost 1 would be.
        """
        found: list[tuple[AsgiRequest, Match, Plan]] = []
        buckets: list[list[StoredBucket]] = []
        looks: list[Any] = []  # the buckets that are only looked at
        for request, cost in requests:
            planned = await self._plan(request)
            if planned is None:
                buckets.append([])
            else:
                match, plan = planned
                plan = _with_cost(plan, cost)  # the same plan with its cost
                if cost:
                    plan = await self._overdraw(plan)  # without what is taken already
                looks += [*map(request_bucket, plan.charges)] if cost == 0 and zero_looks else []
                found.append((request, match, plan))
                buckets.append([stored_bucket(charge) for charge in plan.charges])
        if not found:
            return None, buckets
        denied = [(request, match, plan) for request, match, plan in found if plan.denied_source is not None]
        request, match, plan = (denied or found)[0]
        if len(found) > 1 and not denied:
            plan = _joined([each_plan for _, _, each_plan in found])
        if looks and not denied:
            asked = [replace(one, cost=1) if request_bucket(one) in looks else one for one in plan.charges]
            looked = await self._gate.look(match, replace(plan, charges=asked))
            taken = [index for index, one in enumerate(plan.charges) if request_bucket(one) not in looks]
            if not taken or looked is None or not looked.allowed:
                return _without_the_unit(looked), buckets
            plan = plan.subset(taken)
        return await self._gate.decide(match, plan, request, no_sleep), buckets

    async def _overdraw(self, plan: Plan) -> Plan:
        """Take what limits with `overdraw` charge, even if it does not fit. Returns the plan without these charges."""
        indices = [index for index, limit in enumerate(plan.compiled_limits) if limit.spec.overdraw]
        if not indices or plan.denied_source is not None:
            return plan
        gate = self._gate
        try:
            await gate.runtime.settle(gate.store_for("store"), plan.subset(indices).charges)
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the call
            warn_throttled("settle", MAY_BE_LOST, type(error).__name__, code="RL-206")
        return plan.subset([index for index in range(len(plan.charges)) if index not in indices])

    async def peek_call(self, call: RequestParts) -> dict[str, Any]:
        """Return what is left of each limit that applies, and what a check would answer. Changes nothing."""
        found = await self._plan(request_of(call.scope()))
        if found is None:
            return {**numbers(None), "rule": None, "limits": []}
        match, plan = found
        charges = _with_cost(plan, None if call.cost is None else cost_of(call, 0)).charges
        decisions = await answered(self._gate.runtime.peek(charges)) if charges else ()
        verdict = conclude(match, replace(plan, charges=charges), decisions)
        limits = [
            {
                "name": policy.name,
                "limit": decision.limit,
                "notation": charge.limit.notation,
                "role": charge.role,
                "allowed": decision.allowed,
                "remaining": decision.remaining,
                "retry_after": finite(decision.retry_after),
                "reset_after": finite(decision.reset_after),
            }
            for charge, decision, policy in zip(charges, decisions, plan.policies, strict=True)
        ]
        return {**numbers(verdict), "rule": verdict.rule, "limits": limits}

    async def reset_call(self, call: RequestParts) -> dict[str, Any]:
        """Forget what the client of a request has used of each limit that applies."""
        found = await self._plan(request_of(call.scope()))
        charges = () if found is None else found[1].charges
        return {"reset": await answered(reset(self._gate, charges))}

    async def _plan(self, request: AsgiRequest) -> tuple[Match, Plan] | None:
        """Return the limits of a request and its charges; None if nothing limits it."""
        match = self._gate.rule_set.match(request)
        return None if match is None else (match, await self._gate.plan(match, request))


def request_of(scope: dict[str, Any]) -> AsgiRequest:
    """Return the view of a request that is described in parts."""
    client = scope["client"]
    return TargetRequest(scope, client[0] if client else None)


async def no_sleep(_seconds: float, _woken: object = None, /) -> None:
    """Return at once, because the answer contains the delay, and the caller waits."""


def _with_cost(plan: Plan, cost: int | None) -> Plan:
    """Return the plan with this cost in place of that in the rules; unchanged if `cost` is None."""
    if cost is None:
        return plan
    charges = [one if one.role == "penalty" else replace(one, cost=cost) for one in plan.charges]
    return replace(plan, charges=charges)


def _without_the_unit(looked: Verdict | None) -> Verdict | None:
    """Return the verdict on a look at one unit, as if the unit was not asked for: it was not taken."""
    if looked is None or not looked.allowed:
        return looked
    decisions = [
        replace(one, remaining=one.remaining + charge.cost)
        for charge, one in zip(looked.charges, looked.decisions, strict=False)
    ]
    return replace(looked, decisions=decisions)


def _by_name(fields: HeaderList) -> dict[str, str]:
    """Return header fields as a mapping. Names are compared without case, and keep the case of the first field."""
    first_names: dict[str, str] = {}
    values: dict[str, str] = {}
    for name, value in fields:
        lower = name.lower()
        first = first_names.setdefault(lower, name)
        values[first] = f"{values[first]}, {value}" if first in values and lower != "set-cookie" else value
    return values


def _joined(plans: Sequence[Plan]) -> Plan:
    """Return one plan for several requests. If several charge a bucket, only the first charge is kept."""
    first: dict[Any, tuple[Any, Any, Any]] = {}
    for one in plans:
        for parts in zip(one.charges, one.compiled_limits, one.policies, strict=True):
            first.setdefault(request_bucket(parts[0]), parts)
    charges, limits, policies = zip(*first.values(), strict=True) if first else ((), (), ())
    return Plan(charges, limits, policies)
