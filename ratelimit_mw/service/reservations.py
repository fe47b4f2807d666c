"""Reserves units, and commits or cancels them later: `/v1/reserve`, `/v1/commit` and `/v1/cancel`.

An id describes its reservation, so any process over the same store can end it. A mark in the store, whose key is a hash
of the whole id, makes it valid: nothing else is, and it can be used once, until `ttl` ends by the store's clock. The
mark is a fixed window of 3 units: reserving takes 1, ending takes 2. So the first end leaves 0, a second one is
refused, and without the mark, or after it, 1 would be left.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, Decision
from ratelimit_mw.core.verdict import Verdict, refunds_for
from ratelimit_mw.engine.limits_of_calls import Key, Limits
from ratelimit_mw.service.answers import Rejected, numbers
from ratelimit_mw.service.calls import LimitsText, limits_of
from ratelimit_mw.service.hits import Hits, answered
from ratelimit_mw.stores.group import hash_tag

_TTL: Final = 300.0  # seconds
_MAX_TTL: Final = 86_400.0  # seconds
_RESERVED, _ENDED = 1, 2  # units of the mark


class ReserveCall(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/reserve`: take an estimate. `ttl`: seconds in which it can be committed or canceled."""

    limits: LimitsText
    key: Key
    cost: int = 1
    ttl: float = _TTL


class EndCall(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/cancel`: refund a reservation."""

    id: str


class CommitCall(EndCall, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/commit`: correct a reservation to its true cost; without `actual`, keep the estimate."""

    actual: int | None = None


class _Reserved(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an id contains. `at`: of the decision on each limit. `nonce`: 128 random bits."""

    nonce: str
    ttl: float
    limits: LimitsText
    key: Key
    cost: int
    at: list[int]


class Reservations:
    """Takes and ends reservations in the store of a gate."""

    def __init__(self, hits: Hits) -> None:
        self._hits: Final = hits

    async def reserve_call(self, call: ReserveCall) -> dict[str, Any]:
        """Take units, all or nothing. `id` is null if nothing was, e.g. of an exempt key, or if the store failed."""
        if not 1 <= call.ttl <= _MAX_TTL:
            raise Rejected(400, f"ttl: got {call.ttl:g}, expected 1 to {_MAX_TTL:g} seconds")
        if not 0 <= call.cost < MAX_EXACT_INT:
            raise Rejected(400, f"cost: got {call.cost}, expected a whole number from 0 to {MAX_EXACT_INT - 1}")
        found = await self._hits.in_force(limits_of(call), lambda limits: self._charges(limits, call))
        if isinstance(found, Verdict):
            return {"id": None, **numbers(found)}
        charges = found.charges
        verdict = await self._hits.take_or_handle_error(charges)
        took = bool(verdict.decisions) and all(decision.allowed for decision in verdict.decisions)  # also in shadow
        if not took or verdict.source == "local":
            return {"id": None, **numbers(verdict)}
        at = [decision.at for decision in verdict.decisions]
        reserved = _Reserved(token_hex(16), call.ttl, found.limits or call.limits, call.key, call.cost, at)
        try:
            await self._mark(reserved, charges, _RESERVED)
        except Rejected:  # without an id, the caller cannot end it
            await answered(self._hits.corrected(refunds_for(verdict)))
            raise
        return {"id": urlsafe_b64encode(json.encode(reserved)).decode().rstrip("="), **numbers(verdict)}

    async def commit_call(self, call: CommitCall) -> dict[str, Any]:
        """Correct a reservation to its true cost."""
        if call.actual is not None and not 0 <= call.actual < MAX_EXACT_INT:
            raise Rejected(400, f"actual: got {call.actual}, expected a whole number from 0 to {MAX_EXACT_INT - 1}")
        return {"committed": await self._end(call.id, call.actual)}

    async def cancel_call(self, call: EndCall) -> dict[str, Any]:
        """Refund a reservation, and return its units."""
        await self._end(call.id, 0)
        return {"canceled": _read(call.id).cost}

    async def _end(self, text: str, actual: int | None) -> int:
        """End a reservation at its true cost. Returns the units that it took. None keeps the estimate."""
        reserved = _read(text)
        try:
            charges = self._charges(limits_of(reserved), reserved)
        except ConfigError:
            raise _unknown() from None
        mark = await self._mark(reserved, charges, _ENDED)
        if not mark.allowed:
            raise Rejected(409, "id: this reservation was committed or canceled before")
        if mark.remaining or len(reserved.at) != len(charges):
            raise _unknown()
        actual = reserved.cost if actual is None else actual
        settled = [replace(charge, at=at) for charge, at in zip(charges, reserved.at, strict=True)]
        due = [replace(one, cost=actual - one.cost) for one in settled if one.cost != actual]
        if due:
            await answered(self._hits.corrected(due))
        return actual

    async def _mark(self, reserved: _Reserved, charges: Sequence[Charge], units: int) -> Decision:
        digest = sha256(json.encode(reserved)).hexdigest()
        limit = FixedWindow(_RESERVED + _ENDED, reserved.ttl)
        charge = Charge(f"{{{hash_tag(charges[0].key)}}}:reserved-{digest}", limit, units)
        (decision,) = await answered(self._hits.decided([charge]))
        found: Decision = decision
        return found

    def _charges(self, limits: Limits, call: ReserveCall | _Reserved) -> list[Charge]:
        return self._hits._units_to_reserve(limits, call.key, call.cost)  # noqa: SLF001  # of the same package


def _read(text: str) -> _Reserved:
    """Return what an id contains. Raises `Rejected` for a text that is no id."""
    try:
        reserved = json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Reserved)
    except (MsgspecError, binascii.Error, ValueError, RecursionError):
        raise _unknown() from None
    if not 1 <= reserved.ttl <= _MAX_TTL:
        raise _unknown()
    return reserved


def _unknown() -> Rejected:
    return Rejected(404, "id: no reservation has this id, or its ttl has ended, so its estimate stays charged")
