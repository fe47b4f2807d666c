"""Headers and refusals. The only place that knows their names and their syntax.

`RateLimit` and `RateLimit-Policy` as in draft-ietf-httpapi-ratelimit-headers-11, which are structured fields (RFC
9651); bodies are problem details (RFC 9457).
"""

import math
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import json

from ratelimit_mw.limit import Limit
from ratelimit_mw.settings import Headers
from ratelimit_mw.verdict import Policy, Verdict

_MOST_SHOWN: Final = 8  # policies in a field: proxies limit the size of headers
_LARGEST: Final = 999_999_999_999_999  # of a structured field's integers
_PROBLEMS: Final = "https://iana.org/assignments/http-problem-types#"
_STORE_DOWN_RETRY: Final = 1  # seconds; a hint, nobody knows when the store is back

HeaderList = list[tuple[str, str]]


class Response(NamedTuple):
    """What a face renders."""

    status: int
    headers: HeaderList
    body: bytes


REASONS: Final = {403: "Forbidden", 429: "Too Many Requests", 503: "Service Unavailable"}


def headers(verdict: Verdict, style: Headers = "ietf") -> HeaderList:
    """The fields that tell a client how it stands. None when no store decided."""
    if style == "none" or not verdict.decisions:
        return []
    fields: HeaderList = []
    if style != "legacy":
        fields += _ietf(verdict)
    if style != "ietf" and verdict.binding is not None:
        fields += [
            ("X-RateLimit-Limit", str(verdict.limit)),
            ("X-RateLimit-Remaining", str(verdict.remaining)),
            ("X-RateLimit-Reset", str(math.ceil(time.time() + verdict.reset_after))),
        ]
    return fields


def refusal(verdict: Verdict, style: Headers = "ietf") -> Response:
    """The answer to a refused request: 429; 503 when the store is down and that refuses; 403 when it has no key."""
    if verdict.source == "denied_on_error":
        detail = "Requests cannot be counted at the moment."
        status, kind, title = (
            503,
            "temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        )
        return _problem(status, _PROBLEMS + kind, title, detail, (), [("Retry-After", str(_STORE_DOWN_RETRY))])
    if not verdict.decisions:
        return _problem(403, "about:blank", "Forbidden", "The request does not say whose it is.", (), [])
    refusing = [
        policy.name
        for policy, charge, decision in zip(_policies(verdict), verdict.charges, verdict.decisions, strict=True)
        if not decision.allowed and charge.role != "shadow"
    ]
    title = "Request cannot be satisfied as assigned quota has been exceeded"
    if math.isinf(verdict.retry_after):
        fields: HeaderList = []
        detail = "This request costs more than its quota ever allows; waiting does not help."
    else:
        wait = max(1, math.ceil(verdict.retry_after))
        fields = [("Retry-After", str(wait))]
        detail = f"Try again in {wait} second{'s' if wait > 1 else ''}."
    return _problem(429, _PROBLEMS + "quota-exceeded", title, detail, refusing, [*fields, *headers(verdict, style)])


def _problem(status: int, kind: str, title: str, detail: str, policies: Sequence[str], fields: HeaderList) -> Response:
    problem = {"type": kind, "title": title, "status": status, "detail": detail}
    body = json.encode({**problem, "violated-policies": policies} if policies else problem)
    own = [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
    ]
    return Response(status, [*own, *fields], body)


def _ietf(verdict: Verdict) -> HeaderList:
    if len(verdict.decisions) == 1:  # the common case
        (charge,), (decision,), (policy,) = verdict.charges, verdict.decisions, _policies(verdict)
        if charge.role == "shadow" or (policy.hidden and decision.allowed):
            return []
        return [("RateLimit-Policy", _policy_field((policy,))), ("RateLimit", _state(verdict, 0, policy))]
    policies = _policies(verdict)
    shown = [
        index
        for index, charge in enumerate(verdict.charges)
        if charge.role != "shadow" and not (policies[index].hidden and verdict.decisions[index].allowed)
    ]
    if not shown:
        return []
    shown.sort(key=lambda index: index != verdict.binding)  # what binds stands first; sort keeps the order of the rest
    del shown[_MOST_SHOWN:]
    return [
        ("RateLimit-Policy", _policy_field(tuple([policies[index] for index in shown]))),
        ("RateLimit", ", ".join([_state(verdict, index, policies[index]) for index in shown])),
    ]


@lru_cache(maxsize=1024)
def _policy_field(policies: tuple[Policy, ...]) -> str:
    """`"default";q=100;w=60`. The window stands there only if it is whole seconds: the field has no fractions."""
    items = []
    for policy in policies:
        window = policy.limit.window
        length = f";w={int(window)}" if window == int(window) else ""
        items.append(f'"{policy.name}";q={min(policy.limit.quota, _LARGEST)}{length}')
    return ", ".join(items)


def _state(verdict: Verdict, index: int, policy: Policy) -> str:
    """`"default";r=50;t=30`: so many units, in so many seconds."""
    decision = verdict.decisions[index]
    limit = policy.limit
    available = min(decision.remaining, limit.quota, _LARGEST)
    return f'"{policy.name}";r={available};t={min(math.ceil(decision.next_after), math.ceil(limit.window))}'


def _policies(verdict: Verdict) -> Sequence[Policy]:
    """The names of the charges. A verdict that did not come through the middleware is named by its keys."""
    return verdict.policies or _named(
        tuple([(charge.key.rpartition(":")[2], charge.limit) for charge in verdict.charges])
    )


@lru_cache(maxsize=1024)
def _named(charges: tuple[tuple[str, Limit], ...]) -> tuple[Policy, ...]:
    return tuple(
        Policy(limit.name or (rule if index == 0 else f"{rule}-{index + 1}"), limit)
        for index, (rule, limit) in enumerate(charges)
    )
