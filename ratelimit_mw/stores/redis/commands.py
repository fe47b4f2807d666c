"""Decides what the Redis stores send: keys, commands, and the command that follows a reply.

Threads and asyncio share this module. It is written as coroutines, which do I/O through a `Sender` only.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, Decision, PlainGroup, check_seconds, microseconds
from ratelimit_mw.metrics.recording import STORE_CALLS, StoreCall
from ratelimit_mw.stores.contract import BaseStore
from ratelimit_mw.stores.group import Group, in_parts, units_that_count
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides
from ratelimit_mw.stores.redis.hash_slots import slot, split_by_slot, take_by_slot
from ratelimit_mw.stores.redis.inventory import SCAN_COUNT, Cursor, FoundLimits, pattern_of
from ratelimit_mw.stores.redis.protocol import Command, NoCodec, NoScript, Sender
from ratelimit_mw.stores.redis.scripts import (
    SCRIPTED_LIMITS,
    Codec,
    Driver,
    encode_group,
    join_groups,
    read_decisions,
    refusing_arguments,
    script,
    settle_arguments,
    unsupported_limit,
)

FORMAT: Final = "1"  # version of the states' format; every key has it after the prefix
_MAX_SHAPES: Final = 4096
_MAX_CORRECTIONS: Final = 500  # corrections in one call
_MAX_UNITS: Final = 1000  # units in one call, for limits that write each unit
_UNITS_PER_CHARGE: Final = 8  # writing so many units one by one takes the server as long as one charge
_MAX_ATTEMPTS: Final = 4  # of one call: the server may lack the script, in each of two codecs


class Shape(Struct, frozen=True, eq=False, gc=False):
    """What groups of charges have in common that differ in their keys only.

    `text`: their part of the arguments of take.lua, in `codec`. `weight`: the work for the server; most charges count
    1.
    """

    codec: Codec
    text: bytes
    weight: int

    @classmethod
    def of(cls, charges: Sequence[Charge], codec: Codec, now: int = 0) -> "Shape":
        """Return the shape of a group. Raises `ConfigError` for a limit without a Lua implementation."""
        _check_limits(charges)
        weight = len(charges)
        for charge in charges:
            limit = charge.limit
            if limit.max_settle_units < MAX_EXACT_INT:  # it writes each unit
                weight += charge.cost // _UNITS_PER_CHARGE
        return cls(codec, encode_group(codec, charges, now), weight)


class EncodedGroup(Struct, eq=False, gc=False):
    """A group of charges with its keys and its part of the arguments of take.lua.

    `original_charges`: the charges that the caller passed. `charges`: the same with one charge per bucket. `keys`: one
    per bucket. `slot`: the hash slot of all keys; None if they have several, 0 without a cluster. `merged`: the charges
    that were merged; None if each had a bucket of its own.
    """

    original_charges: Sequence[Charge]
    charges: Sequence[Charge]
    shape: Shape
    keys: list[bytes]
    slot: int | None
    merged: Group | None = None

    def spread(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Return one decision per original charge."""
        return decisions if self.merged is None else self.merged.spread(decisions)


class TakeMode(NamedTuple):
    """Options that all groups of one call share.

    `now`: injected time in microseconds, 0 for the server's own. `commit`: True takes, False peeks.
    """

    now: int
    commit: bool


DEFAULT_MODE: Final = TakeMode(0, commit=True)  # the mode of every take outside of tests


class RedisCommands(BaseStore):
    """The part of a Redis store that does not depend on how commands are sent."""

    def __init__(self, prefix: str, timeout: float, clock: Callable[[], float] | None, *, is_cluster: bool) -> None:
        if not isinstance(prefix, str):
            raise ConfigError(f"prefix: got {prefix!r}, expected a string", code="RL-043")
        if not check_seconds("timeout", timeout):
            raise ConfigError("timeout: got 0, expected more than 0 seconds", code="RL-004")
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock: got {clock!r}, expected a callable that returns seconds", code="RL-043")
        self._base = self._prefix = f"{prefix}{FORMAT}:"
        self._timeout = timeout
        self._configured_clock = self._clock = clock  # the caller's clock; the clock in use, which tests may freeze
        self._codec: Codec = "msgpack"  # every stock server supports it
        self._shapes: dict[object, Shape] = {}  # of groups in which nothing has to be merged, see `_encode_group`
        self.is_cluster = is_cluster  # whether a call reaches the keys of one hash slot only
        REGISTRY.register(self)

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:  # noqa: ARG002  # this process keeps no states
        self._prefix = self._base + overrides.key_prefix
        if self._configured_clock is None:
            self._clock = overrides.wall

    async def _take_unbatched(
        self, original_charges: Sequence[Charge], sender: Sender, *, commit: bool
    ) -> Sequence[Decision]:
        """Decide a group of a thread, or one in several slots. Under asyncio, a `Batcher` sends the others."""
        if not original_charges:
            return []
        now = self._now()
        whole = self._encode_group(original_charges)
        charges = whole.charges
        if whole.slot is not None:
            reply = await self._take_together([whole], TakeMode(now, commit), sender)
            return whole.spread(read_decisions(reply, len(charges)))

        async def take(part: Sequence[Charge], sender: Sender, *, commit: bool = commit) -> list[Decision]:
            reply = await self._take_together([self._encode_group(part)], TakeMode(now, commit), sender)
            return read_decisions(reply, len(part))

        async def repair(part: Sequence[Charge], sender: Sender) -> list[Decision]:
            if commit:
                return await self._apply_corrections(part, now, sender)
            # a peek has changed nothing, so show each bucket as if the correction had been made
            as_limits = [replace(charge, cost=max(0, charge.cost), role="limit") for charge in part]
            return await take(as_limits, sender, commit=False)

        return whole.spread(await take_by_slot(split_by_slot(whole.keys), charges, take, repair, sender))

    async def _settle(self, charges: Sequence[Charge], sender: Sender) -> None:
        now = self._now()

        async def settle(part: Sequence[Charge], sender: Sender) -> None:
            await self._apply_corrections(part, now, sender)

        for call in settling_calls(charges):
            await self._run_by_slot(call, settle, sender)

    async def _reset(self, charges: Sequence[Charge], sender: Sender) -> None:
        async def reset(part: Sequence[Charge], sender: Sender) -> None:
            await sender.send(("UNLINK", *self._keys(part)))

        await self._run_by_slot(charges, reset, sender)

    async def _run_by_slot(
        self,
        charges: Sequence[Charge],
        run_part: Callable[[Sequence[Charge], Sender], Coroutine[Any, Any, None]],
        sender: Sender,
    ) -> None:
        """Run `run_part` for each slot of a cluster, or once without a cluster."""
        _check_limits(charges)
        if not charges:
            return
        slot_groups = split_by_slot(self._keys(charges)) if self.is_cluster else []
        if len(slot_groups) <= 1:
            await run_part(charges, sender)
            return
        outcomes = await sender.run_all(
            [partial(run_part, [charges[index] for index in indices]) for indices in slot_groups]
        )
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _encode_group(self, original_charges: Sequence[Charge]) -> EncodedGroup:
        """Encode a group. Raises `ConfigError` if it is invalid, so that only its own request gets the error."""
        charges, merged, shape_key = original_charges, None, None
        if type(original_charges) is PlainGroup:
            shape_key = original_charges.shape_key
        elif (
            len(original_charges) == 1
            and type((charge := original_charges[0]).limit) in SCRIPTED_LIMITS  # which has a hash
            and not charge.limit.uses_wall_time
        ):
            shape_key = charge.limit, charge.cost, charge.role, charge.max_delay
        shape = self._shapes.get(shape_key)
        if shape is None:
            group = Group(original_charges)
            if group.charges is not original_charges:
                charges, merged = group.charges, group
            shape = Shape.of(charges, self._codec, self._now())
            if shape_key is not None:
                if len(self._shapes) >= _MAX_SHAPES:
                    self._shapes.clear()
                self._shapes[shape_key] = shape
        keys = self._keys(charges)
        if not self.is_cluster:
            return EncodedGroup(original_charges, charges, shape, keys, 0, merged)
        slots = set(map(slot, keys))
        return EncodedGroup(original_charges, charges, shape, keys, slots.pop() if len(slots) == 1 else None, merged)

    def _take_command(self, groups: Sequence[EncodedGroup], mode: TakeMode) -> Command:
        """Return the command that takes or peeks groups in one call, at one time."""
        codec = self._codec
        keys: list[bytes] = []
        texts = []
        for group in groups:
            keys += group.keys
            shape = group.shape
            texts.append(shape.text if shape.codec == codec else encode_group(codec, group.charges, mode.now))
        arguments = join_groups(codec, mode.now, tuple(texts), commit=mode.commit)
        return "EVALSHA", script("take", codec).sha, len(keys), *keys, arguments

    async def _take_together(self, groups: Sequence[EncodedGroup], mode: TakeMode, sender: Sender) -> object:
        """Take or peek groups in one call, at one time. Return the reply of the server."""
        return await self._evaluate("take", lambda: self._take_command(groups, mode), sender)

    async def _apply_corrections(self, charges: Sequence[Charge], now: int, sender: Sender) -> list[Decision]:
        """Return the decisions after the corrections."""
        keys = self._keys(charges)

        def command() -> Command:
            arguments = settle_arguments(self._codec, now, charges)
            return "EVALSHA", script("settle", self._codec).sha, len(keys), *keys, arguments

        return read_decisions(await self._evaluate("settle", command, sender), len(charges), "settle")

    async def _scan(self, cursor: Cursor, sender: Sender) -> tuple[Cursor, list[bytes]]:
        """Return the next cursor, and a page of keys."""
        cursor, keys = await sender.send(("SCAN", cursor, "MATCH", pattern_of(self._prefix), "COUNT", SCAN_COUNT))
        return cursor, keys

    async def _scan_refusing(self, cursor: Cursor, found: FoundLimits, sender: Sender) -> tuple[Cursor, list[bytes]]:
        """Do the same as `_scan`, but omit buckets that would admit one unit. Adds the others' limits to `found`."""
        now, charges = self._now(), found.charges

        def command() -> Command:
            arguments = refusing_arguments(self._codec, now, list(charges.values()), is_cluster=self.is_cluster)
            page = cursor, pattern_of(self._prefix), SCAN_COUNT, *charges
            return "EVALSHA", script("refusing", self._codec).sha, 0, arguments, *page

        reply: Any = await self._evaluate("refusing", command, sender)
        try:
            cursor, refusing, others = reply
        except (TypeError, ValueError) as error:
            raise StoreError(f"the server answered {reply!r:.200} to refusing.lua") from error
        found.learn(others)
        return cursor, refusing + others

    async def _evaluate(self, driver: Driver, command: Callable[[], Command], sender: Sender) -> object:
        """Return the reply to an EVALSHA. `command` makes it, in the codec that the server supports."""
        known = True
        send = sender.send
        if STORE_CALLS.enabled and driver != "refusing":  # no request waits for that
            send = partial(_send_counted, driver, sender)
        for _ in range(_MAX_ATTEMPTS):
            evalsha = command()
            try:
                return await send(evalsha if known else ("EVAL", script(driver, self._codec).text, *evalsha[2:]))
            except NoScript:
                known = False  # EVAL also loads the script on this server
            except NoCodec:
                self._codec, known = "text", True
                self._shapes.clear()
        raise StoreError("the server has neither of the codecs that the scripts need")

    def _keys(self, charges: Sequence[Charge]) -> list[bytes]:
        prefix, keys = self._prefix, []
        for charge in charges:  # a key may be any text
            keys.append(f"{prefix}{charge.key}:{charge.limit.bucket}".encode("utf-8", "surrogatepass"))  # noqa: PERF401  # a call less
        return keys

    def _now(self) -> int:
        """Return the injected time in microseconds; 0 uses the server's own."""
        clock = self._clock  # read once, because the end of a test may remove it in another thread
        return 0 if clock is None else max(1, microseconds(clock()))


async def _send_counted(call: StoreCall, sender: Sender, command: Command) -> object:
    """Send a command, and count the call."""
    started = perf_counter()
    try:
        reply = await sender.send(command)
    except StoreError as error:
        STORE_CALLS.record(call, perf_counter() - started, error)
        raise
    STORE_CALLS.record(call, perf_counter() - started)
    return reply


def _check_limits(charges: Sequence[Charge]) -> None:
    """Raise `ConfigError` for a limit without a Lua implementation."""
    for charge in charges:
        if type(charge.limit) not in SCRIPTED_LIMITS:
            raise unsupported_limit(charge.limit)


def settling_calls(charges: Sequence[Charge]) -> list[list[Charge]]:
    """Split the corrections into calls that each keep the server busy for a short time only.

    A correction of more units than its limit settles in one step takes several calls. Units that cannot have an effect
    are omitted.
    """
    calls: list[list[Charge]] = [[]]
    room = _MAX_UNITS
    for charge in charges:
        limit = charge.limit
        for units in in_parts(units_that_count(charge.cost, limit), limit):
            weight = abs(units) if limit.max_settle_units < MAX_EXACT_INT else 0
            if weight > room or len(calls[-1]) >= _MAX_CORRECTIONS:
                calls.append([])
                room = _MAX_UNITS
            room -= weight
            calls[-1].append(charge if units == charge.cost else replace(charge, cost=units))
    return calls if charges else []
