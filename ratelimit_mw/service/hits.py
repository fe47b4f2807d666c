"""Applies limits that the caller names: `/v1/hit`, and `/v1/peek`, `/v1/settle` and `/v1/reset` of a key."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, Decision
from ratelimit_mw.core.log import error_summary, warn_throttled
from ratelimit_mw.core.verdict import Verdict, verdict_of
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.limiter import AsyncLimiter
from ratelimit_mw.engine.limits_of_calls import Limits
from ratelimit_mw.engine.slots import slot_charges
from ratelimit_mw.rules.override_entries import warn_invalid_override
from ratelimit_mw.service.answers import STORE_RETRY, Rejected, numbers
from ratelimit_mw.service.calls import HitCall, SettleCall, cost_of, limits_of
from ratelimit_mw.stores.group import hash_tag

_NAME: Final = re.compile(r"([0-9]{1,16})x([0-9]{1,5})")
_ONE_OF: Final = "expected one of `delta`, `release` and `renew`"
_LOCAL: Final = "local:"  # the prefix of slots in the fallback store, which only this process has


class InForce(NamedTuple):
    """The charges of a call. `limits`: those of an override, if they replace those of the call."""

    limits: str | None
    charges: Sequence[Charge]


class Hits(AsyncLimiter):
    """Takes, shows and corrects units for a key, in the store of a gate.

    If the store fails, `on_store_error` of the settings decides a hit. Buckets are those of `AsyncLimiter` over the
    same store.
    """

    def __init__(self, gate: AsyncGate) -> None:
        store: Any = gate.store_for("store")
        super().__init__(store)
        self._gate: Final = gate

    async def hit_call(self, call: HitCall) -> dict[str, Any]:
        """Take units, all or nothing. Slots that were taken are named in `slot`."""
        cost = cost_of(call, 1)
        found = await self.in_force(limits_of(call), lambda limits: self._charges(limits, call.key, cost))
        if isinstance(found, Verdict):
            return numbers(found)
        verdict = await self.take_or_handle_error(found.charges)
        answer = numbers(verdict)
        slots = slot_charges(verdict.charges, verdict.decisions) if verdict.allowed else []
        if slots:
            names = ".".join(f"{slot.at}x{slot.cost}" for slot in slots)
            answer["slot"] = f"{_LOCAL if verdict.source == 'local' else ''}{names}"
        return answer

    async def take_or_handle_error(self, charges: Sequence[Charge]) -> Verdict:
        """Take charges, and return the verdict. If the store fails, `on_store_error` decides."""
        try:
            return verdict_of(charges, await self.decided(charges))
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the call
            return self._on_store_error(charges, error)

    async def decided(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Take charges, and return the store's decisions."""
        return await self._gate.runtime.take(charges)

    async def corrected(self, charges: Sequence[Charge]) -> None:
        """Settle charges in the store."""
        await self._gate.runtime.settle(self._gate.store_for("store"), charges)

    async def peek_call(self, call: HitCall) -> dict[str, Any]:
        """Return what is left; with a cost, what a hit would return."""
        charges = self._charges(limits_of(call), call.key, cost_of(call, 0))
        return numbers(verdict_of(charges, await answered(self._gate.runtime.peek(charges))))

    async def reset_call(self, call: HitCall) -> dict[str, Any]:
        """Forget what was taken. Slots are released, too."""
        charges = self._charges(limits_of(call), call.key, 0)
        return {"reset": await answered(reset(self._gate, charges))}

    async def settle_call(self, call: SettleCall) -> dict[str, Any]:
        """Correct what a key took, or release or renew its slots."""
        given = [one for one in (call.delta, call.release, call.renew) if one is not None]
        if len(given) != 1:
            raise Rejected(400, f"delta: got {len(given)} of the three, {_ONE_OF}")
        is_local = False
        if call.delta is not None:
            if abs(call.delta) >= MAX_EXACT_INT:
                raise Rejected(400, f"delta: got {call.delta}, expected at most {MAX_EXACT_INT - 1} units")
            charges = self._settlements(limits_of(call), call.key, call.delta)
        else:
            is_local, charges = self._held_slots(call)
        store = self._gate.store_for("local" if is_local else "store")
        await answered(self._gate.runtime.settle(store, charges))
        return {"settled": len(charges)}

    def _held_slots(self, call: SettleCall) -> tuple[bool, list[Charge]]:
        """Return whether slots are in the fallback store, and the charges that release or renew them."""
        field, text = ("renew", call.renew or "") if call.release is None else ("release", call.release)
        charges = self._charges(limits_of(call), call.key, 1)
        slots = [charge for charge in charges if charge.limit.is_concurrency]
        found = [_NAME.fullmatch(name) for name in text.removeprefix(_LOCAL).split(".")]
        names = [(int(name[1]), int(name[2])) for name in found if name is not None]
        if not slots or not len(found) == len(names) == len(slots):
            raise Rejected(400, f"{field}: got {text!r:.100}, expected the `slot` of a hit with the same limits")
        sign = -1 if field == "release" else 1
        with error_location(field):
            return text.startswith(_LOCAL), [
                Charge(slot.key, slot.limit, sign * cost, at=at) for slot, (at, cost) in zip(slots, names, strict=True)
            ]

    async def in_force(self, limits: Limits, charges_of: Callable[[Limits], Sequence[Charge]]) -> InForce | Verdict:
        """Return the charges of a call, or what overrides and switches make of them: other charges, or a verdict."""
        charges = charges_of(limits)
        await self._gate.refresh()
        override = self._gate.rule_set.overrides.of_key(f"{{{hash_tag(charges[0].key if charges else '')}}}")
        if override is None:
            return InForce(None, charges)
        if override.action in ("exempt", "off", "block"):
            return Verdict(override.action != "block", (), ())
        if override.limits is None:
            return InForce(None, [replace(charge, role="shadow") for charge in charges])
        try:
            return InForce(override.limits, charges_of(override.limits))
        except ConfigError as error:
            warn_invalid_override(override.id, error)
            return InForce(None, charges)

    def _on_store_error(self, charges: Sequence[Charge], error: Exception) -> Verdict:
        if not getattr(error, "rejected", False):  # the store logs a rejection itself, with the fix
            warn_throttled("store", "failed (%s); on_store_error decides", error_summary(error), code="RL-201")
        mode = self._gate.settings.on_store_error
        if mode == "local":
            fallback: Any = self._gate.store_for("local")
            return verdict_of(charges, fallback.take(charges), source="local")
        allowed = mode == "allow"
        return Verdict(allowed, (), (), source="allowed_on_error" if allowed else "denied_on_error")


async def reset(gate: AsyncGate, charges: Sequence[Charge]) -> int:
    """Forget buckets in the store of a gate, which may have no timeout of its own. Return how many existed."""
    if not charges:
        return 0
    store: Any = gate.store_for("store")
    async with asyncio.timeout(gate.settings.store_timeout):
        before = await store.apeek([Charge(charge.key, charge.limit, 0) for charge in charges])
        await store.areset(charges)
    return sum(decision.reset_after > 0 for decision in before)  # with nothing counted, the quota is whole now


async def answered(call: Awaitable[Any]) -> Any:
    """Await a call of the store. Raises `Rejected` if the store fails, which is logged."""
    try:
        return await call
    except Exception as error:  # any error of the store
        warn_throttled("store", "failed, a call of the service got no answer: %s", error_summary(error), code="RL-238")
        retry = [("Retry-After", str(STORE_RETRY))]
        raise Rejected(503, "store: gave no answer in time; try again", retry) from error
