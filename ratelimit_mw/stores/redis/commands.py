"""Decides what the Redis stores send: keys, commands, and the command that follows a reply.

Does no I/O, so threads and asyncio share it.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, Literal, TypeVar

from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, Decision, check_seconds, microseconds
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.stores.group import UNCOLLECTED, Group, in_parts, settled_charge, units_that_count
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides
from ratelimit_mw.stores.redis.hash_slots import split_by_slot, take_by_slot
from ratelimit_mw.stores.redis.parcel import EncodedGroup, PendingTake, TakeMode
from ratelimit_mw.stores.redis.scripts import (
    SCRIPTED_LIMITS,
    Codec,
    join_groups,
    read_decisions,
    read_settlement,
    script,
    settle_arguments,
    unsupported_limit,
)

T = TypeVar("T")
Command = tuple[str | bytes | int, ...]
Steps = Generator[Any, Any, T]
"""A generator that yields commands and returns a result.

It receives the reply to each command, or a `RetryableReply` or `StoreError` that is raised in it. It may also yield a
list of steps to run concurrently, and receives their outcomes, each a result or an error."""

FORMAT: Final = "1"  # version of the states' format; every key has it after the prefix
_MAX_ENCODED_GROUPS: Final = 4096  # cached groups
_MAX_CORRECTIONS: Final = 500  # corrections in one call
_MAX_UNITS: Final = 1000  # units in one call, of limits that write each unit
_MAX_ATTEMPTS: Final = 4  # for one call: the server may not know the script, in either of two codecs


class RetryableReply(Exception):
    """A reply after which the steps send another command."""


class NoScript(RetryableReply):
    """The server does not know the script: it restarted, failed over, or flushed its scripts."""


class NoCodec(RetryableReply):
    """The server lacks cmsgpack or struct."""


def drive(steps: Steps[T], execute: Callable[[Any], Any]) -> T:
    """Run the steps in a thread."""
    try:
        step = next(steps)
        while True:
            try:
                reply = execute(step)
            except (RetryableReply, StoreError) as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


async def adrive(steps: Steps[T], execute: Callable[[Any], Awaitable[Any]]) -> T:
    """Run the steps in an event loop."""
    try:
        step = next(steps)
        while True:
            try:
                reply = await execute(step)
            except (RetryableReply, StoreError) as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


class RedisCommands:
    """The part of a Redis store that does not depend on how commands are sent."""

    def __init__(
        self, prefix: str, timeout: float, clock: Callable[[], float] | None, *, is_cluster: bool, codec: Codec
    ) -> None:
        if not isinstance(prefix, str):
            raise ConfigError(f"prefix: got {prefix!r}, expected a string")
        if not check_seconds("timeout", timeout):
            raise ConfigError("timeout: got 0, expected more than 0 seconds")
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock: got {clock!r}, expected a callable that returns seconds")
        self._base = self._prefix = f"{prefix}{FORMAT}:"
        self._timeout = timeout
        self._configured_clock = self._clock = clock  # the caller's; the one in use, which tests may freeze
        self._codec = codec
        self._encoded_groups: dict[int, EncodedGroup] = {}  # by id of the charges, which the values keep alive
        self.forgiven = 0  # units of corrections beyond a debt of one quota, which are not charged
        self.is_cluster: Final = is_cluster  # whether a call reaches the keys of one hash slot only
        REGISTRY.register(self)

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:  # noqa: ARG002  # this process keeps no states
        self._prefix = self._base + overrides.key_prefix
        self._encoded_groups.clear()
        if self._configured_clock is None:
            self._clock = overrides.wall

    def _take(self, original_charges: Sequence[Charge], *, commit: bool) -> Steps[Sequence[Decision]]:
        if not original_charges:
            return []
        now = self._now()
        if not self.is_cluster:
            encoded_group = self._encode_group(original_charges)
            reply = yield from self._take_together([PendingTake(encoded_group, TakeMode(now, commit))])
            return encoded_group.group.spread(read_decisions(reply, encoded_group.group.charges))
        group = Group(original_charges)
        charges = group.charges

        def take(part: Sequence[Charge], *, commit: bool = commit) -> Steps[list[Decision]]:
            return self._take_part(part, now, commit=commit)

        def repair(part: Sequence[Charge]) -> Steps[list[Decision]]:
            if commit:
                return self._correct_part(part, now)
            # a peek changed nothing: show each bucket as if the correction had been made
            return take([replace(charge, cost=max(0, charge.cost), role="limit") for charge in part], commit=False)

        slot_groups = self._slot_groups(charges)
        steps = take(charges) if len(slot_groups) == 1 else take_by_slot(slot_groups, charges, take, repair)
        return group.spread((yield from steps))

    def _settle(self, charges: Sequence[Charge]) -> Steps[Sequence[Charge]]:
        now = self._now()
        self._count_uncollected(
            sum(max(0, charge.cost - units_that_count(charge.cost, charge.limit)) for charge in charges)
        )
        results: list[Charge] = []  # one for each charge
        for call in settling_calls(charges):
            part = yield from self._run_by_slot([one for _, one in call], lambda part: self._settle_part(part, now))
            for (index, _), charge in zip(call, part, strict=True):
                if index == len(results):
                    results.append(
                        charge if charges[index].cost > 0 else charges[index]
                    )  # a refund is returned as it came
                elif charges[index].cost > 0:
                    results[index] = replace(charge, cost=results[index].cost + charge.cost)
        return results

    def _reset(self, charges: Sequence[Charge]) -> Steps[None]:
        yield from self._run_by_slot(charges, self._reset_part)

    def _run_by_slot(
        self, charges: Sequence[Charge], steps: Callable[[Sequence[Charge]], Steps[Sequence[Charge]]]
    ) -> Steps[Sequence[Charge]]:
        """Run the steps of each slot group, and return their results in the order of the charges."""
        slot_groups = self._slot_groups(charges) if charges else []
        if len(slot_groups) <= 1:
            return (yield from steps(charges)) if slot_groups else []
        outcomes = yield [steps([charges[index] for index in part]) for part in slot_groups]
        results = list(charges)
        for part, outcome in zip(slot_groups, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            for index, charge in zip(part, outcome, strict=True):
                results[index] = charge
        return results

    def _slot_groups(self, charges: Sequence[Charge]) -> list[list[int]]:
        """Return the indices of the charges of each call: one call, or in a cluster one for each hash slot."""
        return (
            split_by_slot(self._keys(charges)) if self.is_cluster and len(charges) > 1 else [list(range(len(charges)))]
        )

    def _take_part(self, charges: Sequence[Charge], now: int, *, commit: bool) -> Steps[list[Decision]]:
        reply = yield from self._take_together([PendingTake(self._encode_group(charges), TakeMode(now, commit))])
        return read_decisions(reply, charges)

    def _encode_group(self, original_charges: Sequence[Charge]) -> EncodedGroup:
        """Encode a group. Tuples are cached by identity: plans are cached, so a client's requests share one tuple."""
        known = self._encoded_groups.get(id(original_charges))
        if known is None:
            known = EncodedGroup(original_charges, self._keys, self._codec)
            if type(original_charges) is tuple:
                if len(self._encoded_groups) >= _MAX_ENCODED_GROUPS:
                    self._encoded_groups.clear()
                self._encoded_groups[id(original_charges)] = known
        return known

    def _take_together(self, pending_takes: Sequence[PendingTake]) -> Steps[object]:
        """Take or peek groups in one call, at one time. Returns the reply of the server."""
        every = [pending_take.encoded_group for pending_take in pending_takes]
        keys = [key for one in every for key in one.keys]
        now, commit = pending_takes[0].mode

        def arguments(codec: Codec) -> bytes:
            texts = [one.text if one.codec == codec else one.text_in(codec) for one in every]
            return join_groups(codec, now, texts, commit=commit)

        reply = yield from self._evaluate("take", keys, arguments)
        return reply

    def _settle_part(self, charges: Sequence[Charge], now: int) -> Steps[Sequence[Charge]]:
        decisions, uncollected = yield from self._apply_corrections(charges, now)
        return [
            settled_charge(charge, charge.cost - units, decision) if charge.cost > 0 else charge
            for charge, units, decision in zip(charges, uncollected, decisions, strict=True)
        ]

    def _correct_part(self, charges: Sequence[Charge], now: int) -> Steps[list[Decision]]:
        decisions, _ = yield from self._apply_corrections(charges, now)
        return decisions

    def _apply_corrections(self, charges: Sequence[Charge], now: int) -> Steps[tuple[list[Decision], list[int]]]:
        """Return the decisions after the corrections, and the uncollected units of each."""
        reply = yield from self._evaluate(
            "settle", self._keys(charges), lambda codec: settle_arguments(codec, now, charges)
        )
        decisions, uncollected = read_settlement(reply, charges)
        self._count_uncollected(sum(uncollected))
        return decisions, uncollected

    def _count_uncollected(self, units: int) -> None:
        if units:
            self.forgiven += units
            warn_throttled("settle", UNCOLLECTED, units)

    def _reset_part(self, charges: Sequence[Charge]) -> Steps[Sequence[Charge]]:
        yield ("UNLINK", *self._keys(charges))
        return charges

    def _evaluate(
        self, driver: Literal["take", "settle"], keys: list[bytes], arguments: Callable[[Codec], bytes]
    ) -> Steps[object]:
        known = True
        for _ in range(_MAX_ATTEMPTS):
            run = script(driver, self._codec)
            call = ("EVALSHA", run.sha) if known else ("EVAL", run.text)
            try:
                return (yield (*call, len(keys), *keys, arguments(self._codec)))
            except NoScript:
                known = False  # EVAL also loads the script on this server
            except NoCodec:
                self._codec, known = "json", True
        raise StoreError("the server has neither of the codecs that the scripts need")

    def _keys(self, charges: Sequence[Charge]) -> list[bytes]:
        prefix = self._prefix
        keys = []
        for charge in charges:
            limit = charge.limit
            if type(limit) not in SCRIPTED_LIMITS:
                raise unsupported_limit(limit)
            keys.append(
                f"{prefix}{charge.key}:{limit.bucket}".encode("utf-8", "surrogatepass")
            )  # a key may be any text
        return keys

    def _now(self) -> int:
        """Return the injected time in microseconds; 0 uses the server's own."""
        clock = self._clock  # read once, as a test that ends may remove it in another thread
        return 0 if clock is None else max(1, microseconds(clock()))


def settling_calls(charges: Sequence[Charge]) -> list[list[tuple[int, Charge]]]:
    """Split the corrections, with their indices, into calls that each keep the server busy for a short time only.

    A correction of more units than its limit settles in one step takes several calls. Units that can make no difference
    are left out.
    """
    calls: list[list[tuple[int, Charge]]] = [[]]
    room = _MAX_UNITS
    for index, charge in enumerate(charges):
        limit = charge.limit
        for units in in_parts(units_that_count(charge.cost, limit), limit):
            weight = abs(units) if limit.max_settle_units < MAX_EXACT_INT else 0
            if weight > room or len(calls[-1]) >= _MAX_CORRECTIONS:
                calls.append([])
                room = _MAX_UNITS
            room -= weight
            calls[-1].append((index, charge if units == charge.cost else replace(charge, cost=units)))
    return calls if charges else []
