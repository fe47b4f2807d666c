"""Headers and refusals. The only place that knows their names and their syntax.

`RateLimit` and `RateLimit-Policy` as in draft-ietf-httpapi-ratelimit-headers-11, which are structured fields (RFC
9651); bodies are problem details (RFC 9457).
"""

import time
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from math import ceil, isinf
from random import uniform
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, json

from ratelimit_mw.core.limit import Decision, Limit
from ratelimit_mw.core.verdict import Verdict

_MAX_FIELD_INT: Final = 999_999_999_999_999  # the integers of structured fields end there
_MAX_POLICIES: Final = 8  # policies in a field: proxies limit the size of headers
_PROBLEMS: Final = "https://iana.org/assignments/http-problem-types#"
_BURST: Final = "ratelimit-mw-burst"  # a parameter of our own carries our name
_SLOT_UNIT: Final = "concurrent-requests"  # the quota unit of slots; that of all others is requests
_BLOCKED: Final = "Requests from here are not answered."
_STORE_DOWN_RETRY: Final = 1  # seconds; a hint, nobody knows when the store is back

# every field that is ever sent
_NAMES: Final = (
    "Cache-Control",
    "Content-Length",
    "Content-Type",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
)

_CONTENT_TYPE: Final = "application/problem+json"
_TEXT: Final = {"type": "string"}
_DESCRIPTIONS: Final = {
    "Retry-After": "Seconds until the same request is admitted.",
    "RateLimit": "Per policy, how many units are left (r), and for how many seconds (t).",
    "RateLimit-Policy": "Per policy, its quota (q) and its window in seconds (w).",
}
_RAW_NAMES: Final = {name: name.lower().encode("ascii") for name in _NAMES}
_LEGACY: Final = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
_LIST_FIELDS: Final = ("RateLimit", "RateLimit-Policy")
BODY_HEADERS: Final = ("content-type", "content-length")

Headers = Literal["ietf", "legacy", "both", "none"]
HeaderList = list[tuple[str, str]]
RawFields = list[tuple[bytes, bytes]]


class PolicyFields(Struct, frozen=True, gc=False):
    """What fields say of a policy each time."""

    policy: str
    state: str  # with places for two numbers
    raw: tuple[bytes, bytes]  # the field of the policy, as ASGI has it
    raw_state: bytes


class Policy:
    """What headers and bodies call one charge of a request. Made once per limit; compared by identity."""

    __slots__ = (
        "burst",
        "fields",
        "limit",
        "max_wait_seconds",
        "most",
        "name",
        "not_when_admitted",
        "only_when_refusing",
        "settle_policy",
        "settles",
    )

    def __init__(
        self,
        name: str,
        limit: Limit,
        *,
        only_when_refusing: bool = False,
        shadow: bool = False,
        settles: bool = True,
        settle_policy: Any = None,
    ) -> None:
        self.name = name
        self.limit = limit
        self.most = min(limit.quota, _MAX_FIELD_INT)  # units that headers may name
        # of these, how many at one instant
        self.burst = min(getattr(limit, "burst", None) or limit.quota, _MAX_FIELD_INT)
        self.max_wait_seconds = ceil(limit.max_wait)  # seconds that headers may name
        # shown only when it refuses, because it tells about others than the client
        self.only_when_refusing = only_when_refusing
        self.not_when_admitted = only_when_refusing or shadow  # not shown when it admits
        self.fields: PolicyFields | None = None  # `response` keeps it here
        self.settles = settles  # whether it is corrected when the true cost is known
        self.settle_policy = settle_policy  # how its rule learns that after the response, if it does


class Response(NamedTuple):
    """What a face renders."""

    status: int
    headers: HeaderList
    body: bytes


def _openapi_response(reason: str, *names: str) -> dict[str, Any]:
    """A response, as OpenAPI describes it."""
    properties = {"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT}
    policies = {"violated-policies": {"type": "array", "items": _TEXT}} if "RateLimit" in names else {}
    schema = {"type": "object", "required": [*properties], "properties": {**properties, **policies}}
    return {
        "description": reason,
        "headers": {name: {"schema": _TEXT, "description": _DESCRIPTIONS[name]} for name in names},
        "content": {_CONTENT_TYPE: {"schema": schema}},
    }


REASONS: Final = {403: "Forbidden", 429: "Too Many Requests", 503: "Service Unavailable"}
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    429: _openapi_response(REASONS[429], "Retry-After", "RateLimit", "RateLimit-Policy"),
    503: _openapi_response(REASONS[503], "Retry-After"),
}


def headers(verdict: Verdict | None, style: Headers = "ietf") -> HeaderList:
    """The fields that tell a client how it stands. None when no store decided."""
    if style == "none" or verdict is None or not verdict.decisions:
        return []
    policies = verdict.policies
    if style == "ietf" and len(policies) == 1 and not policies[0].not_when_admitted:  # the common case, in short
        policy = policies[0]
        cached = policy.fields or _fields_of(policy)
        return [("RateLimit-Policy", cached.policy), ("RateLimit", cached.state % _state(policy, verdict.decisions[0]))]
    visible = _visible_policies(verdict)
    fields: HeaderList = []
    if visible and style != "legacy":
        states = [
            (policy.fields or _fields_of(policy)).state % _state(policy, decision) for policy, decision in visible
        ]
        fields += [
            ("RateLimit-Policy", _policy_list(tuple([policy for policy, _ in visible]))),
            ("RateLimit", ", ".join(states)),
        ]
    if visible and style != "ietf":
        binding = visible[0][1]
        fields += [
            ("X-RateLimit-Limit", str(binding.limit)),
            ("X-RateLimit-Remaining", str(binding.remaining)),
            ("X-RateLimit-Reset", str(ceil(time.time() + binding.reset_after))),
        ]
    return fields


def raw_headers(verdict: Verdict, app_headers: Iterable[tuple[bytes, bytes]] = ()) -> RawFields:
    """`headers` in the style `ietf`, as ASGI has them, behind those of an app: lists that go on."""
    policies, decisions = verdict.policies, verdict.decisions
    if len(policies) != 1 or not decisions or (policy := policies[0]).not_when_admitted:
        return [*app_headers, *raw(headers(verdict))]
    cached, decision = policy.fields or _fields_of(policy), decisions[0]
    available, wait = decision.remaining, ceil(decision.next_after)
    if available > policy.most or wait > policy.max_wait_seconds:
        available, wait = _state(policy, decision)
    return [*app_headers, cached.raw, (b"ratelimit", cached.raw_state % (available, wait))]


def raw(fields: HeaderList) -> RawFields:
    """Fields of ours as ASGI has them."""
    return [(_RAW_NAMES[name], value.encode()) for name, value in fields]


def non_conflicting(own: HeaderList, app_headers: Container[str]) -> HeaderList:
    """Those of our fields that go with the fields of an app, whose names are in lower case.

    `RateLimit` and `RateLimit-Policy` are lists, of which ours are further members; of others the app's are kept, and
    the three of `X-RateLimit` go together.
    """
    return [(name, value) for name, value in own if name in _LIST_FIELDS or not _is_present(name.lower(), app_headers)]


def _is_present(name: str, app_headers: Container[str]) -> bool:
    return name in app_headers or (name in _LEGACY and any(one in app_headers for one in _LEGACY))


def refusal(verdict: Verdict, style: Headers = "ietf", jitter: float = 0.0, at_least: float = 0.0) -> Response:
    """The answer to a refused request: 429; 503 when nobody can say what it may; 403 when it has no key, or is blocked.

    `jitter`: seconds that `Retry-After` may be longer, by chance. `at_least`: seconds until the limits of steps further
    out, which admitted this request and keep its charge, admit it again.
    """
    if verdict.source == "denied_on_error":
        detail = "Requests cannot be counted at the moment."
        status, kind, title = (
            503,
            "temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        )
        return _problem(status, _PROBLEMS + kind, title, detail, (), [("Retry-After", str(_STORE_DOWN_RETRY))])
    if not verdict.decisions:
        detail = _BLOCKED if verdict.rule == "blocklist" else "The request does not say whose it is."
        return _problem(403, "about:blank", "Forbidden", detail, (), [])
    policies = _policies(verdict)
    refusing = [policies[index].name for index in verdict.refusing]
    title = "Request cannot be satisfied as assigned quota has been exceeded"
    if isinf(verdict.retry_after):
        fields: HeaderList = []
        detail = "This request costs more than its quota ever allows; waiting does not help."
    else:
        delay = uniform(0, jitter) if jitter else 0.0  # noqa: S311  # to spread clients, no secret
        wait = max(1, ceil(max(verdict.retry_after, at_least) + delay))
        fields = [("Retry-After", str(wait))]
        detail = f"Try again in {wait} second{'s' if wait > 1 else ''}."
    return _problem(429, _PROBLEMS + "quota-exceeded", title, detail, refusing, [*fields, *headers(verdict, style)])


def _problem(status: int, kind: str, title: str, detail: str, policies: Sequence[str], fields: HeaderList) -> Response:
    problem = {"type": kind, "title": title, "status": status, "detail": detail}
    body = json.encode({**problem, "violated-policies": policies} if policies else problem)
    own = [
        ("Content-Type", _CONTENT_TYPE),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
    ]
    return Response(status, [*own, *fields], body)


def _visible_policies(verdict: Verdict) -> Sequence[tuple[Policy, Decision]]:
    """What a client is told about: what binds of it first, the rest in order."""
    charges, decisions, refusing = verdict.charges, verdict.decisions, verdict.refusing
    visible = [
        (index, policy, decisions[index])
        for index, policy in enumerate(_policies(verdict))
        if charges[index].role != "shadow" and not (policy.only_when_refusing and index not in refusing)
    ]
    if len(visible) > 1:
        first = verdict.binding_of([index for index, *_ in visible])
        visible.sort(key=lambda one: one[0] != first)  # sort keeps the order of the rest
    return [(policy, decision) for _, policy, decision in visible[:_MAX_POLICIES]]


@lru_cache(maxsize=1024)
def _policy_list(policies: tuple[Policy, ...]) -> str:
    """Their items."""
    return ", ".join([(policy.fields or _fields_of(policy)).policy for policy in policies])


def _fields_of(policy: Policy) -> PolicyFields:
    """`"default";q=100;w=60`, and how many can pass at once where that is not the quota; and `"default"`.

    The window stands there only if it is whole seconds: the field has no fractions.
    """
    window, name = policy.limit.window, f'"{policy.name}"'
    length = f";w={int(window)}" if window == int(window) else ""
    if policy.limit.is_concurrency:
        length = f';qu="{_SLOT_UNIT}"'  # a slot has no window
    burst = f";{_BURST}={policy.burst}" if policy.burst != policy.most else ""
    text = f"{name};q={policy.most}{length}{burst}"
    state = f"{name};r=%d;t=%d"  # there is no % in a name
    policy.fields = PolicyFields(text, state, (b"ratelimit-policy", text.encode()), state.encode())
    return policy.fields


def _state(policy: Policy, decision: Decision) -> tuple[int, int]:
    """Units left, and seconds until there are more. Rounding up can pass the window by a second."""
    units, wait = decision.remaining, ceil(decision.next_after)
    return (
        units if units < policy.most else policy.most,
        wait if wait < policy.max_wait_seconds else policy.max_wait_seconds,
    )


def _policies(verdict: Verdict) -> Sequence[Policy]:
    """The names of the charges. A verdict that did not come through the middleware is named by its keys."""
    return verdict.policies or _policies_of_charges(
        tuple([(charge.key.rpartition(":")[2], charge.limit) for charge in verdict.charges])
    )


@lru_cache(maxsize=1024)
def _policies_of_charges(charges: tuple[tuple[str, Limit], ...]) -> tuple[Policy, ...]:
    return tuple(
        Policy(limit.name or (rule if index == 0 else f"{rule}-{index + 1}"), limit)
        for index, (rule, limit) in enumerate(charges)
    )
