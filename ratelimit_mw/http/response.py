"""Builds the rate limit headers and the refusal responses.

To add a header to

- all refusals: change each `return` of `refusal_response`. REST framework builds the 429 of a throttle without this
  function, so change `add_headers` in `django/responses.py`, too, as its docstring describes;
- all refusals and all error responses of the decision service (`service/`), with a constant value: change
  `problem_response` instead of `refusal_response`;
- all responses: change `headers`, its faster form `raw_headers`, and `add_headers` in `django/responses.py`, which
  relies on the order of the two fields that `headers` returns.

Every new header needs its name in `_NAMES`, a rate limit field in `FIELDS` instead, and with a text in `_DESCRIPTIONS`.
For OpenAPI, any other header needs a text in `_openapi_response`. CONTRIBUTING.md lists the other files to change.

`RateLimit` and `RateLimit-Policy` follow draft-ietf-httpapi-ratelimit-headers-11 and are structured fields (RFC 9651).
The styles `draft-6` and `draft-7` follow its earlier versions, for clients that read only these.
Bodies are problem details (RFC 9457).
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import ceil, inf, isinf
from random import uniform
from typing import Any, Final, Literal, NamedTuple

from msgspec import json

from ratelimit_mw.core.limit import Limit
from ratelimit_mw.core.verdict import CHARGE, RefusedCharge, Verdict
from ratelimit_mw.http.policy import MAX_FIELD_INT, POLICY_NAME, Policy

_MAX_POLICIES: Final = 8  # policies in a field; proxies limit the size of headers
_PROBLEMS: Final = "https://iana.org/assignments/http-problem-types#"
_BLOCKED: Final = "Requests from this client are blocked."
SERVER_ERROR: Final = 500  # a framework's answer to an error that the app lets pass
_NO_CAPACITY_RETRY: Final = 1  # seconds; a hint, because the end of the outage is unknown
_DETAILS_503: Final[dict[str, str]] = {
    "denied_on_error": "Requests cannot be counted at the moment.",
    "latency_goal": "The service is busier than it can answer in time.",
}  # by the source of a verdict

HeaderStyle = Literal["ietf", "legacy", "both", "draft-6", "draft-7", "none"]
_IETF: Final = ("RateLimit", "RateLimit-Policy")
_LEGACY: Final = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
# The names of the rate limit fields in each style; first the one with what is left.
FIELDS: Final[dict[HeaderStyle, tuple[str, ...]]] = {
    "ietf": _IETF,
    "legacy": ("X-RateLimit-Remaining", "X-RateLimit-Limit", "X-RateLimit-Reset"),
    "both": (*_IETF, *_LEGACY),
    "draft-6": ("RateLimit-Remaining", "RateLimit-Limit", "RateLimit-Reset", "RateLimit-Policy"),
    "draft-7": _IETF,
    "none": (),
}
# The names of all headers that this module builds. `raw` raises KeyError for any other name. It is used where headers
# are added to a response that an app made under ASGI: the wrapped app, or an ASGI app in `on_refused`.
_NAMES: Final = {
    "Cache-Control",
    "Content-Length",
    "Content-Type",
    "Retry-After",
    *(name for names in FIELDS.values() for name in names),
}

_CONTENT_TYPE: Final = "application/problem+json"
_TEXT: Final = {"type": "string"}
_DESCRIPTIONS: Final = {
    "RateLimit": "Per policy, how many units are left (r), and for how many seconds (t).",
    "RateLimit-Policy": "Per policy, its quota (q) and its window in seconds (w).",
    "RateLimit-Limit": "The quota in units.",
    "RateLimit-Remaining": "How many units are left.",
    "RateLimit-Reset": "Seconds until all units are there again.",
    "X-RateLimit-Limit": "The quota in units.",
    "X-RateLimit-Remaining": "How many units are left.",
    "X-RateLimit-Reset": "When all units are there again, in seconds since 1970.",
}
_DRAFT_DESCRIPTIONS: Final = {
    "RateLimit": "How many units are left (remaining) of the quota (limit), and seconds until all are back (reset).",
    "RateLimit-Policy": "The quota of each policy, and its window in seconds (w).",
}
_RAW_NAMES: Final = {name: name.lower().encode("ascii") for name in _NAMES}
_LEGACY_IN_LOWER_CASE: Final = [name.lower() for name in _LEGACY]
BODY_HEADERS: Final = ("content-type", "content-length")

HeaderList = list[tuple[str, str]]
RawFields = list[tuple[bytes, bytes]]


class Response(NamedTuple):
    """A response for an integration to render."""

    status: int
    headers: HeaderList
    body: bytes

    @property
    def raw_headers(self) -> RawFields:
        """The headers in ASGI form. Unlike `raw`, it accepts any names, because `on_refused` may add some."""
        return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers]

    @property
    def headers_without_body(self) -> HeaderList:
        """The headers, except those that describe the body."""
        return [(name, value) for name, value in self.headers if name.lower() not in BODY_HEADERS]


def _openapi_response(status: int, fields: Mapping[str, str], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of a response. `fields`: their descriptions. `more`: properties of the body."""
    properties = {"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT}
    schema = {"type": "object", "required": [*properties], "properties": {**properties, **more}}
    fields = {"Retry-After": "Seconds to wait before the same request is repeated.", **fields}
    return {
        "description": REASONS[status],
        "headers": {name: {"schema": _TEXT, "description": text} for name, text in fields.items()},
        "content": {_CONTENT_TYPE: {"schema": schema}},
    }


REASONS: Final = {200: "OK", 403: "Forbidden", 429: "Too Many Requests", 503: "Service Unavailable"}


def openapi_responses(headers: HeaderStyle = "ietf") -> dict[int | str, dict[str, Any]]:
    """Return the responses to document in OpenAPI, by status. `headers`: that of the settings."""
    texts = {**_DESCRIPTIONS, **(_DRAFT_DESCRIPTIONS if headers in ("draft-6", "draft-7") else {})}
    policies = {"violated-policies": {"type": "array", "items": _TEXT}}
    return {
        429: _openapi_response(429, {name: texts[name] for name in FIELDS[headers]}, policies),
        503: _openapi_response(503, {}, {}),
    }


def headers(verdict: Verdict | None, style: HeaderStyle = "ietf") -> HeaderList:
    """Return the rate limit fields of a verdict. Returns none if it has no decisions, or no policy to show.

    A verdict has no decisions in two cases: it refuses with 403, or the store failed and `on_store_error` is `allow` or
    `deny` (503). With `on_store_error = "local"`, the default, the fallback store makes the decisions.

    In the style `ietf`, it returns either no field or exactly two: RateLimit-Policy, then RateLimit.
    """
    if style == "none" or verdict is None or not verdict.decisions:
        return []
    fields: HeaderList = []
    if style in ("ietf", "both") and (raw_fields := _rate_limit_fields(verdict)):
        (_, policies), (_, rate_limit) = raw_fields
        fields = [("RateLimit-Policy", policies.decode()), ("RateLimit", rate_limit.decode())]
    if style != "ietf" and (visible := _visible(verdict, policies_of(verdict))):
        if style in ("draft-6", "draft-7"):
            return _draft_fields(verdict, visible, style)
        binding = verdict.decisions[visible[0]]
        fields += [("X-RateLimit-Limit", str(binding.limit)), ("X-RateLimit-Remaining", str(binding.remaining))]
        if policies_of(verdict)[visible[0]].quota:  # a quota of 0 is never full again
            fields.append(("X-RateLimit-Reset", str(ceil(time.time() + binding.reset_after))))
    return fields


def _draft_fields(verdict: Verdict, visible: Sequence[int], style: HeaderStyle) -> HeaderList:
    """Return the fields of draft-ietf-httpapi-ratelimit-headers-06 or -07, whose limit is the first visible one.

    Both require a reset, so a quota of 0 has its window.
    """
    policies, decisions = policies_of(verdict), verdict.decisions
    texts = [policies[index].text_of_drafts_at(decisions[index].at) for index in visible]
    first, policy = decisions[visible[0]], policies[visible[0]]
    limit, remaining = min(first.limit, MAX_FIELD_INT), min(first.remaining, MAX_FIELD_INT)
    reset = ceil(first.reset_after) if policy.quota else policy.max_wait_seconds
    policy_field = ("RateLimit-Policy", ", ".join(texts))
    if style == "draft-7":
        return [policy_field, ("RateLimit", f"limit={limit}, remaining={remaining}, reset={reset}")]
    values = {"Limit": limit, "Remaining": remaining, "Reset": reset}
    return [policy_field, *[(f"RateLimit-{name}", str(value)) for name, value in values.items()]]


def raise_unhandled(verdict: Verdict | None, status: int | None) -> None:
    """Raise `RateLimited` if an app answers a refused charge with a server error.

    The app let the error pass, and its framework made a 500 of it. Raised where the response starts, the error reaches
    the middleware after all.
    """
    if status == SERVER_ERROR and verdict is not None and verdict.rule == CHARGE and not verdict.allowed:
        raise RefusedCharge(verdict)


def raw_headers(verdict: Verdict, message: Mapping[str, Any]) -> RawFields:
    """Return an app's headers followed by `headers` in the style `ietf`, in ASGI form.

    The app's headers may contain the two `RateLimit` fields already. Both are lists, so a client joins all lines of the
    same name to one list. `message`: the start of the app's response. Raises `RateLimited`, see `raise_unhandled`.
    """
    app_headers = message.get("headers", ())
    if not verdict.allowed:
        raise_unhandled(verdict, message.get("status"))
        app_headers = list(app_headers)
        return [*app_headers, *raw(addable_to_refusal(headers(verdict), names_of(app_headers)))]
    return [*app_headers, *_rate_limit_fields(verdict)]


def _rate_limit_fields(verdict: Verdict) -> Sequence[tuple[bytes, bytes]]:
    """Return the fields RateLimit-Policy and RateLimit; none without a policy to show."""
    policies, decisions = verdict.policies, verdict.decisions
    if len(policies) == 1 and decisions and not policies[0].may_be_hidden:  # most requests
        (policy,), (decision,) = policies, decisions
        units, wait = decision.remaining, ceil(decision.next_after)
        if units > policy.quota or wait > policy.max_wait_seconds:
            units, wait = _capped(policy, units, wait)
        field = policy.field or (POLICY_NAME, policy.text_at(decision.at))
        return field, (b"ratelimit", policy.rate_limit_format % (units, wait))
    shown, members = [], []
    policies = policies or policies_of(verdict)
    for index in _visible(verdict, policies):
        policy, decision = policies[index], decisions[index]
        units, wait = decision.remaining, ceil(decision.next_after)
        if units > policy.quota or wait > policy.max_wait_seconds:
            units, wait = _capped(policy, units, wait)
        shown.append(policy.text or policy.text_at(decision.at))
        members.append(policy.rate_limit_format % (units, wait))
    return ((POLICY_NAME, b", ".join(shown)), (b"ratelimit", b", ".join(members))) if shown else ()


def _capped(policy: Policy, units: int, wait: int) -> tuple[int, int]:
    """Return the units left, and the seconds until more are available, as headers can show them.

    A burst may exceed the quota, and rounding up can exceed the window by one.
    """
    return min(units, policy.quota), min(wait, policy.max_wait_seconds)


def raw(fields: HeaderList) -> RawFields:
    """Return fields of this module in ASGI form."""
    return [(_RAW_NAMES[name], value.encode()) for name, value in fields]


def names_of(raw_fields: Iterable[tuple[bytes, bytes]]) -> Iterator[str]:
    """Yield the names of fields in ASGI form."""
    return (bytes(name).decode("latin-1") for name, _ in raw_fields)


def _without_present(fields: HeaderList, own_headers: Iterable[str]) -> HeaderList:
    """Leave out the fields that a response has already. `own_headers`: the names of the response's fields.

    Always keeps `RateLimit` and `RateLimit-Policy`: both are lists, so they become further members of the response's
    own. If the response has one of the three `X-RateLimit` fields, all three are left out.
    """
    present = {name.lower() for name in own_headers}
    if not present.isdisjoint(_LEGACY_IN_LOWER_CASE):
        present.update(_LEGACY_IN_LOWER_CASE)
    return [(name, value) for name, value in fields if name in _IETF or name.lower() not in present]


def addable(verdict: Verdict | None, fields: HeaderList, own_fields: Iterable[tuple[str, object]]) -> HeaderList:
    """Return those fields of a verdict that can be added to a response with `own_fields`.

    The verdict may refuse even though the app made the response: then a limit inside the app refused the request.
    """
    if verdict is None or verdict.allowed:
        if len(fields) == len(_IETF) and fields[1][0] == "RateLimit":
            return fields  # in the style `ietf`: both are lists
        return _without_present(fields, (name for name, _ in own_fields))
    return addable_to_refusal(fields, [name for name, _ in own_fields])


def addable_to_refusal(fields: HeaderList, own_headers: Iterable[str]) -> HeaderList:
    """Return those fields of a refusal that can be added to a response made elsewhere, e.g. by `on_refused`.

    Unlike `_without_present`, leaves out both `RateLimit` fields if the response has one of them. Any other field is
    left out if the response has it.
    """
    present = {name.lower() for name in own_headers}
    both = {name.lower() for name in _IETF}
    if not present.isdisjoint(both):
        present |= both
    return _without_present([pair for pair in fields if pair[0].lower() not in present], present)


def refusal_response(
    verdict: Verdict,
    style: HeaderStyle = "ietf",
    jitter: float = 0.0,
    outer_wait: float = 0.0,
    retry: float = _NO_CAPACITY_RETRY,
) -> Response:
    """Return the response to a refused request: status 429, 503 or 403.

    The status is 503 if the request is denied because the store failed or the app is too slow, 403 if the request has
    no key or is blocked, and otherwise 429.

    `jitter`: the maximum of a random addition to `Retry-After`, in seconds. `outer_wait`: the minimum of `Retry-After`,
    in seconds. If outer limits admitted this request before an inner limit refused it, a retry has to pass the outer
    limits again. Then `outer_wait` is `RateLimitState.wait`, the time until they admit the retry. Otherwise it is 0.

    `retry`: `Retry-After` if the app is too slow, in seconds.
    """
    if verdict.source in _DETAILS_503:
        detail = _DETAILS_503[verdict.source]
        spread = uniform(0, jitter) if jitter else 0.0  # noqa: S311  # as below
        wait = ceil(retry + spread) if verdict.source == "latency_goal" else _NO_CAPACITY_RETRY
        status, kind, title = (
            503,
            "temporary-reduced-capacity",
            "Request cannot be satisfied due to temporary server capacity constraints",
        )
        return problem_response(status, _PROBLEMS + kind, title, detail, (), [("Retry-After", str(wait))])
    if not verdict.decisions:  # blocked, or without a key
        detail = _BLOCKED if verdict.rule == "blocklist" else "The request lacks what identifies its client."
        return problem_response(403, "about:blank", "Forbidden", detail, (), [])
    policies = policies_of(verdict)
    refusing = [policies[index].name for index in verdict.refusing]
    title = "Request cannot be satisfied as assigned quota has been exceeded"
    if isinf(verdict.retry_after):
        fields: HeaderList = []
        detail = "This request costs more than its quota ever allows; waiting does not help."
    else:
        extra = uniform(0, jitter) if jitter else 0.0  # noqa: S311  # spreads clients; not a secret
        wait = max(1, ceil(max(verdict.retry_after, outer_wait) + extra))
        fields = [("Retry-After", str(wait))]
        detail = f"Try again in {wait} second{'s' if wait > 1 else ''}."
    return problem_response(
        429, _PROBLEMS + "quota-exceeded", title, detail, refusing, [*fields, *headers(verdict, style)]
    )


def problem_response(
    status: int, kind: str, title: str, detail: str, refusing: Sequence[str] = (), fields: HeaderList | None = None
) -> Response:
    """Return a response with problem details. `refusing`: names of policies. `fields`: more headers."""
    problem = {"type": kind, "title": title, "status": status, "detail": detail}
    body = json.encode({**problem, "violated-policies": refusing} if refusing else problem)
    base_fields = [
        ("Content-Type", _CONTENT_TYPE),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
    ]
    return Response(status, [*base_fields, *(fields or ())], body)


def _visible(verdict: Verdict, policies: Sequence[Policy]) -> Sequence[int]:
    """Return the indices of the policies that the client may see: the binding one first, the rest in order."""
    visible: list[int] = []
    decisions, first = verdict.decisions, 0
    if verdict.allowed:
        # the same as below, in a third of the time; see `Verdict` for which one binds
        index, least, latest = 0, inf, 0.0
        for decision in decisions:
            if not policies[index].may_be_hidden:
                share = decision.remaining / (decision.limit or 1)
                if share < least or (share == least and decision.next_after > latest):
                    first, least, latest = len(visible), share, decision.next_after
                visible.append(index)
            index += 1  # noqa: SIM113  # enumerate() or zip() would take a third of the time of the loop
    else:
        charges, refusing = verdict.charges, verdict.refusing
        visible = [
            index
            for index, policy in enumerate(policies)
            if charges[index].role != "shadow" and not (policy.only_in_refusals and index not in refusing)
        ]
        binding = verdict.binding_of(visible)
        first = 0 if binding is None else visible.index(binding)
    if first:
        visible.insert(0, visible.pop(first))
    return visible if len(visible) <= _MAX_POLICIES else visible[:_MAX_POLICIES]


def policies_of(verdict: Verdict) -> Sequence[Policy]:
    """Return the policies of the charges. If the middleware did not make the verdict, derives them from the keys."""
    return verdict.policies or _policies_of_charges(
        tuple([(charge.key.rpartition(":")[2], charge.limit, charge.role == "shadow") for charge in verdict.charges])
    )


@lru_cache(maxsize=1024)
def _policies_of_charges(charges: tuple[tuple[str, Limit, bool], ...]) -> tuple[Policy, ...]:
    return tuple(
        Policy(limit.name or (rule if index == 0 else f"{rule}-{index + 1}"), limit, shadow=shadow)
        for index, (rule, limit, shadow) in enumerate(charges)
    )
