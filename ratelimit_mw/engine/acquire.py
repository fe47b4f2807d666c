"""Takes units, sleeps until they are due, and holds slots during a block. Written once, for both runtimes.

The store reserves the units in one step, and returns the delay. So callers are served in order across all threads,
tasks and processes. A caller that waits need not be woken, and need not query the store again.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from math import ceil, isfinite
from typing import Final, TypeVar

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, Limit, check_seconds
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.runtime import run
from ratelimit_mw.core.verdict import RateLimited, Verdict, refunds_for, verdict_of
from ratelimit_mw.engine.runtime import Runtime, refund
from ratelimit_mw.engine.slots import HeldSlots, slot_charges

_NOT_SETTLED: Final = "a reservation may not have been corrected (%s); if so, the estimate stays charged"


def with_timeout_as_max_delay(limits: Sequence[Limit], timeout: float | None) -> list[Limit]:
    """Return the limits with `timeout` seconds as their `max_delay`; None for no bound.

    Limits that cannot delay are returned unchanged. Raises `ConfigError` if `timeout` is not a number of seconds, or if
    no limit can delay.
    """
    if timeout is not None:
        check_seconds("timeout", timeout)
    if not any(limit.can_delay for limit in limits):
        notations = ", ".join(repr(limit.notation) for limit in limits)
        rates = [limit.notation.partition(" ")[0] for limit in limits if not limit.is_concurrency]
        fix = f"use a bucket, such as '{rates[0]} using gcra'" if rates else "use slot(), which does not wait"
        raise ConfigError(f"limits: got {notations}, which cannot delay a request; {fix}", code="RL-015")
    return [limit.with_max_delay(timeout) for limit in limits]


async def acquire(runtime: Runtime, charges: Sequence[Charge]) -> Verdict:
    """Take the charges and sleep until they are due. Raises `RateLimited` at once if they are refused.

    The units are refunded if the sleep ends early.
    """
    verdict = verdict_of(charges, await runtime.take_cancel_safe(charges))
    if not verdict.allowed:
        raise RateLimited(verdict)
    if verdict.delay:
        await _sleep_until_due(runtime, verdict)
    return verdict


async def _sleep_until_due(runtime: Runtime, verdict: Verdict, held_slots: HeldSlots | None = None) -> None:
    """Sleep for the delay of a call. If the sleep ends early, the units and the slots that it took are refunded."""
    try:
        await runtime.sleep(verdict.delay)
    except runtime.interrupts:
        if held_slots is not None:
            held_slots.registry.end(held_slots)  # first, because a renewal would take the slots again
        await runtime.finish(refund(runtime, runtime.store, verdict))
        raise


T = TypeVar("T")


class Turn(AbstractAsyncContextManager[T]):
    """An `async with` block that starts when its units are due. A block can be entered once.

    `take`: takes the units.
    """

    name = "turn"  # the name of the method that returns it, for the error

    def __init__(self, take: Callable[[], Awaitable[T]]) -> None:
        self._take: Final = take
        self._entered = False

    async def __aenter__(self) -> T:
        """Start the block. Raises `RateLimited` if the units are refused, and `RuntimeError` on a second entry."""
        if self._entered:
            raise RuntimeError(f"{self.name}: this context manager was entered before; create one for each `with`")
        self._entered = True
        return await self._take()

    async def __aexit__(self, *_: object) -> None:
        """End the block. Its units stay taken."""


class SlotHolder(Turn[Verdict]):
    """A block that takes its units when it starts, and releases the slots among them when it ends."""

    name = "slot"

    def __init__(self, runtime: Runtime, charges: Sequence[Charge]) -> None:
        super().__init__(self._take_slots)
        self._runtime: Final = runtime
        self._charges: Final = charges
        self._held_slots: HeldSlots | None = None

    async def __aexit__(self, *_: object) -> None:
        """End the block, and release its slots."""
        if self._held_slots is not None:
            await self._runtime.slot_renewer.release(self._held_slots)

    async def _take_slots(self) -> Verdict:
        runtime, charges = self._runtime, self._charges
        runtime.slot_renewer.renew_due()
        verdict = verdict_of(charges, await runtime.take_cancel_safe(charges))
        if not verdict.allowed:
            raise RateLimited(verdict)
        if slots := slot_charges(charges, verdict.decisions):  # none if the cost is 0
            self._held_slots = HeldSlots(runtime.store, slots)
            runtime.slot_renewer.add(self._held_slots)
            if verdict.delay:
                await _sleep_until_due(runtime, verdict, self._held_slots)
        return verdict


class Reservation(Turn["Reservation"]):
    """A block that takes an estimate when it starts, and corrects it to `actual` when it ends; see `Limiter.reserve`.

    `verdict`: that on the estimate, inside the block.
    """

    name = "reserve"
    verdict: Verdict

    def __init__(self, runtime: Runtime, charges: Sequence[Charge]) -> None:
        super().__init__(self._take_estimate)
        self._runtime: Final = runtime
        self._charges: Final = charges
        self._actual: int | None = None

    @property
    def actual(self) -> int | None:
        """The true cost, in units; None keeps the estimate. Raises `ConfigError` for other values; rounds up."""
        return self._actual

    @actual.setter
    def actual(self, value: float | None) -> None:
        if isinstance(value, float) and isfinite(value):
            value = ceil(value)
        if value is not None and (type(value) is not int or not 0 <= value < MAX_EXACT_INT):
            raise ConfigError(f"actual: got {value!r:.100}, expected a finite number, 0 or more", code="RL-079")
        self._actual = value

    async def __aexit__(self, *error: object) -> None:
        """End the block, and correct its units."""
        actual = 0 if self._actual is None and any(error) else self._actual
        if actual is not None:
            await self._runtime.finish(self._correct(refunds_for(self.verdict, actual)))

    async def _take_estimate(self) -> "Reservation":
        self.verdict = await acquire(self._runtime, self._charges)
        return self

    async def _correct(self, charges: Sequence[Charge]) -> None:
        try:
            if charges:
                await self._runtime.settle(self._runtime.store, charges)
        except Exception as error:  # noqa: BLE001  # the block has done its work
            warn_throttled("reserve", _NOT_SETTLED, type(error).__name__, code="RL-257")


class ThreadContext(AbstractContextManager[T]):
    """The same block as a `with` block in a thread."""

    def __init__(self, block: Turn[T]) -> None:
        self._block: Final = block

    def __enter__(self) -> T:
        return run(self._block.__aenter__())

    def __exit__(self, *error: object) -> None:
        run(self._block.__aexit__(*error))
