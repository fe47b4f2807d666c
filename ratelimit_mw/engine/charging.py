"""Charges that an app makes itself while it handles a request, e.g. for the tool that the request's body names.

The buckets are those of a `Limiter` over the same store, unless the settings have a `key_secret` or `plain_keys`. All
else follows the settings of the middleware: `on_store_error`, shadow, overrides of a key, metrics and logs.
"""

import sys
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.identity import encode
from ratelimit_mw.core.limit import Limit, check_int
from ratelimit_mw.core.verdict import CHARGE, RefusedCharge, Verdict
from ratelimit_mw.engine.limits_of_calls import Key, Limits, as_limits, check_iterable, check_key
from ratelimit_mw.rules.override_entries import warn_invalid_override
from ratelimit_mw.rules.plan import BLOCKLIST, Match, Plan
from ratelimit_mw.settings.compiled import LimitSet
from ratelimit_mw.settings.limits import LimitSpec

if TYPE_CHECKING:
    from ratelimit_mw.engine.state import RateLimitState

_BUCKET_NAME: Final = "default"  # that of a `Limiter`
_ADMITTED: Final = Verdict(True, (), (), CHARGE)
_BLOCKED: Final = Verdict(False, (), (), BLOCKLIST)


async def charge(gate: Any, limits: Limits, key: Key, cost: int, state: "RateLimitState | None") -> Verdict:
    """Charge units of the app's own limits over the store of a gate. See `RateLimitState.charge`.

    `state`: records a refusal, which is then raised; None if it is only returned.
    """
    verdict = await _decide(gate, limits, key, check_int("cost", cost, 0))
    if state is not None and not verdict.allowed:
        state.record_refused_charge(verdict, gate)
        werkzeug = sys.modules.get("werkzeug.exceptions")
        raise RefusedCharge(verdict) if werkzeug is None else _http_error(werkzeug)(verdict)
    return verdict


@cache
def _http_error(werkzeug: Any) -> type[RefusedCharge]:
    """Return a `RefusedCharge` that Flask and Quart take for an HTTP error, so that they do not log it.

    `werkzeug`: its module of exceptions. The response is a 500, which `raise_unhandled` replaces.
    """
    parts = {
        "code": HTTPStatus.TOO_MANY_REQUESTS,  # for the app's own error handlers
        "get_response": lambda *_, **__: werkzeug.InternalServerError().get_response(),
        "__reduce__": lambda self: (RefusedCharge, (self.verdict,)),
    }
    return type(RefusedCharge.__name__, (RefusedCharge, werkzeug.HTTPException), parts)


async def _decide(gate: Any, limits: Limits, key: Key, cost: int) -> Verdict:
    given = limits if isinstance(limits, (str, Limit)) else tuple(check_iterable(limits))
    match: Match = gate.compiled[_compile, gate, given]
    if gate.settings.enabled is False:
        return _ADMITTED
    await gate.refresh()
    tag = match.limit_sets[0].tag_of(encode([("key", part) for part in check_key(key)]))
    override = gate.rule_set.overrides.of_key(tag)
    if override is not None and override.action in ("exempt", "off", "block"):
        return _BLOCKED if override.action == "block" else _ADMITTED
    if override is not None:
        try:
            match = gate.compiled[_compile, gate, override.limits or given, override.limits is None]
        except ConfigError as error:
            warn_invalid_override(override.id, error)
    compiled = match.fixed_limits or ()
    plan = Plan([one.charge(tag, cost) for one in compiled], compiled, match.policies)
    verdict: Verdict | None = await (gate.decide(match, plan, None) if cost else gate.look(match, plan))
    return _ADMITTED if verdict is None else verdict


def _compile(gate: Any, limits: str | Limit | Sequence[str | Limit], in_shadow: bool = False) -> Match:  # noqa: FBT001, FBT002  # a part of the cache's key
    """Return the limits of a charge, compiled. Raises `ConfigError` for invalid limits, and for slots."""
    found = as_limits(limits)
    if any(limit.is_concurrency for limit in found):
        raise ConfigError(
            "limits: got a Concurrency, whose slots a charge cannot release; use slot() of a Limiter", code="RL-078"
        )
    specs = [LimitSpec(limit=limit, key="ip", cost=1, shadow=in_shadow, settle=False) for limit in found]
    # a charge names its limits itself, so another charge's limits must not be taken over
    fresh = replace(gate.settings, on_change="fresh")
    # the first limit, if it has no name, gets that of the rule
    return Match([LimitSet(specs, CHARGE, fresh, bucket_name=_BUCKET_NAME)], CHARGE, CHARGE)
