"""Answers a client that asks at `usage_path` what is left of its own limits. Charges nothing.

A client's answer is kept for a second, so that it can make a process ask the store once a second, however often the
client asks. If it asks several times at once, all wait for one answer.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from math import isfinite
from typing import Any, Final

from msgspec import json

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.http.response import Response, refusal_response
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.stores.group import stored_bucket

_SECONDS_KEPT: Final = 1.0
_MOST_KEPT: Final = 4096  # answers; before there are more, all are dropped
_MOST_LIMITS: Final = 100  # in one answer, and so in one call to the store
_UNAVAILABLE: Final = refusal_response(Verdict(False, (), (), source="denied_on_error"))

_NUMBER: Final = {"type": "number"}
_PROPERTIES: Final = {
    "name": {"type": "string"},
    "quota": {"type": "integer", "description": "units in a window"},
    "window": {**_NUMBER, "nullable": True, "description": "seconds; null for requests at the same time"},
    "remaining": {"type": "integer", "description": "units left now"},
    "reset_after": {**_NUMBER, "nullable": True, "description": "seconds until all units are there again"},
}
_POLICIES: Final = {"type": "array", "items": {"type": "object", "required": [*_PROPERTIES], "properties": _PROPERTIES}}
_SCHEMA: Final = {"type": "object", "required": ["policies"], "properties": {"policies": _POLICIES}}
USAGE_RESPONSE: Final[dict[str, Any]] = {
    "description": "What is left of the limits of this client.",
    "content": {"application/json": {"schema": _SCHEMA}},
}

Limits = Sequence[tuple[Charge, Policy]]
Peek = Callable[[Sequence[Charge]], Awaitable[Sequence[Decision]]]


class UsageAnswers:
    """The latest answers to clients."""

    def __init__(self) -> None:
        self._kept: Final[dict[Any, tuple[float, Future[Response]]]] = {}

    async def response(
        self, limits: Limits, peek: Peek, wait: Callable[[Future[Response]], Awaitable[Response]]
    ) -> Response:
        """Return the response about these limits: a 200 with what is left, or a 503 if the store fails.

        `peek`: reads decisions from the store. `wait`: returns the result of a future.
        """
        if not limits:
            return _response(())
        key, now = tuple(stored_bucket(charge) for charge, _ in limits), time.monotonic()
        until, answer = self._kept.get(key, (now, None))
        if answer is not None and now < until:
            return await wait(answer)
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        answer = Future()
        self._kept[key] = now + _SECONDS_KEPT, answer
        found = _UNAVAILABLE
        try:
            with suppress(Exception):  # a faulty store must not fail the request; limited requests log it
                decisions = await peek([charge for charge, _ in limits])
                found = _response([_shown(policy, one) for (_, policy), one in zip(limits, decisions, strict=True)])
        finally:
            answer.set_result(found)  # also if this request is canceled, because others may wait
        return found


def own_limits(plans: Sequence[Plan]) -> Limits:
    """Return a charge of 0 for each bucket in some plans, with the policy of its limit."""
    found: dict[tuple[str, str], tuple[Charge, Policy]] = {}
    for plan in plans:
        for charge, policy in zip(plan.charges, plan.policies, strict=True):
            found.setdefault(stored_bucket(charge), (Charge(charge.key, charge.limit, 0), policy))
    return list(found.values())[:_MOST_LIMITS]


def _shown(policy: Policy, decision: Decision) -> dict[str, Any]:
    return {
        "name": policy.name,
        "quota": policy.quota,
        "window": None if policy.limit.is_concurrency else policy.limit.window_at(decision.at),  # a slot has none
        "remaining": min(decision.remaining, policy.quota),
        "reset_after": round(decision.reset_after, 3) if isfinite(decision.reset_after) else None,
    }


def _response(policies: Sequence[dict[str, Any]]) -> Response:
    body = json.encode({"policies": policies})
    fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    return Response(200, fields, body)
