"""The store in this process that decides while the configured store fails: `on_store_error = "local"`, the default."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import isinf
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.core.limit import Charge, Decision, microseconds, scaled
from ratelimit_mw.stores.deny_cache import RememberedRefusal
from ratelimit_mw.stores.group import stored_bucket
from ratelimit_mw.stores.lifecycle import StoreOverrides, fork_safe_lock
from ratelimit_mw.stores.memory import MemoryStore

_REFUSALS: Final = 10_000  # the most buckets whose refusals are remembered


class FallbackStore(MemoryStore):
    """A `MemoryStore` that applies a share of each limit and the refusals that the store made before it failed.

    `share`: fraction of each quota and burst, more than 0 and at most 1. States are kept when the store recovers, so
    that clients do not get a new quota each time the store fails. If the store refused a cost for a bucket, the same
    cost or more is refused here, too, until that refusal's `retry_after` is over. At most 10,000 such buckets are
    remembered.

    `refusals`: the refusals of the store by bucket, the oldest first.
    """

    def __init__(self, share: float = 1.0, *, clock: Callable[[], float] | None = None) -> None:
        super().__init__(clock=clock)
        self._share: Final = share
        self.refusals: OrderedDict[tuple[str, str], RememberedRefusal] = OrderedDict()
        self._refusals_lock = fork_safe_lock()

    def observe(self, charges: Sequence[Charge], decisions: Sequence[Decision]) -> None:
        """Remember the refusals among the store's own decisions."""
        now = self._now()
        with self._refusals_lock:
            for charge, decision in zip(charges, decisions, strict=True):
                if charge.role == "limit":
                    self._remember(charge, decision, now)
            while len(self.refusals) > _REFUSALS:
                self.refusals.popitem(last=False)

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `MemoryStore.take`. The charges are unscaled, as the store would get them."""
        scaled_charges = self._scale(charges)
        refusals = self._active_refusals(charges)
        return self._refuse(scaled_charges, refusals) if refusals else super().take(scaled_charges)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what `take` would return now, and charge nothing."""
        scaled_charges = self._scale(charges)
        refusals = self._active_refusals(charges)
        return self._refuse(scaled_charges, refusals) if refusals else super().peek(scaled_charges)

    def settle(self, charges: Sequence[Charge]) -> None:
        """See `MemoryStore.settle`."""
        super().settle(self._scale(charges))

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets and the store's refusals of them."""
        with self._refusals_lock:
            for charge in charges:
                self.refusals.pop(stored_bucket(charge), None)
        super().reset(self._scale(charges))

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        super()._apply(overrides, empty=empty)
        if empty:
            with self._refusals_lock:
                self.refusals.clear()

    def _remember(self, charge: Charge, decision: Decision, now: int) -> None:
        bucket = stored_bucket(charge)
        refusal = self.refusals.get(bucket)
        if decision.allowed:
            if refusal is not None and _demand(charge) >= _demand(
                refusal.charges[0]
            ):  # the bucket was reset or refunded
                del self.refusals[bucket]
        elif isinf(decision.retry_after):
            pass  # the cost exceeds the limit, so it exceeds the scaled limit, too
        elif refusal is None or now >= refusal.expires_at or _demand(charge) <= _demand(refusal.charges[0]):
            # keep the smallest refused cost, because a refusal applies to larger costs, too
            expires_at = now + microseconds(decision.retry_after)
            self.refusals[bucket] = RememberedRefusal((charge,), (decision,), now, now, expires_at)
            self.refusals.move_to_end(bucket)

    def _scale(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        return charges if self._share == 1 else [_scaled_charge(charge, self._share) for charge in charges]

    def _active_refusals(self, charges: Sequence[Charge]) -> dict[int, Decision]:
        """Return the store's refusals that are still valid, by index of the charge."""
        if not self.refusals:
            return {}
        now = self._now()
        refusals = {}
        for index, charge in enumerate(charges):
            refusal = self.refusals.get(stored_bucket(charge))
            if refusal is None or charge.role != "limit" or _demand(charge) < _demand(refusal.charges[0]):
                continue
            if refusal.charges[0].limit.notation != charge.limit.notation:  # with `on_change`, they share a bucket
                continue
            if refusal.is_valid(now):
                (refusals[index],) = refusal.decisions_at(now)
        return refusals

    def _refuse(self, charges: Sequence[Charge], refusals: dict[int, Decision]) -> Sequence[Decision]:
        """Refuse the whole group and charge nothing. The decisions on other buckets show what is left."""
        decisions = list(super().peek(charges))
        for index, charge in enumerate(charges):
            if index in refusals:
                decisions[index] = refusals[index]
            elif decisions[index].allowed:
                decisions[index] = super().peek([replace(charge, cost=0)])[0]
        return decisions


def _demand(charge: Charge) -> int:
    """Return the units that a bucket must have for a charge."""
    return charge.cost + charge.limit.keep


def _scaled_charge(charge: Charge, share: float) -> Charge:
    """Return the charge with a scaled limit. A cost that fits the limit is cut to fit the scaled limit."""
    limit = scaled(charge.limit, share)
    fits = abs(charge.cost) <= charge.limit.most
    cost = max(-limit.most, min(charge.cost, limit.most)) if fits else charge.cost
    return replace(charge, limit=limit, cost=cost, lease=0)
