"""What the Redis stores say: keys, commands, and which command follows which reply.

Does no I/O, so threads and asyncio share it.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, Literal, TypeVar

from msgspec.structs import replace

from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.limit import EXACT, Charge, Decision, microseconds, seconds
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores.group import FORGIVEN, Group, counting, in_parts, taken
from ratelimit_mw.stores.live import STORES, Stage
from ratelimit_mw.stores.parcel import How, Parcel, Written
from ratelimit_mw.stores.scripts import (
    TWINS,
    Codec,
    decisions,
    joined,
    no_twin,
    script,
    settle_arguments,
    settled,
)
from ratelimit_mw.stores.slots import parts, take_apart

T = TypeVar("T")
Command = tuple[str | bytes | int, ...]
Steps = Generator[Any, Any, T]
"""Yields a command, and is sent its reply or thrown a `Meaning` or `StoreError`; or yields a list of steps that go side
by side, and is sent their outcomes, each a result or an error. Returns what was asked for."""

FORMAT: Final = "1"  # of the states; the first part of every key
_KNOWN: Final = 4096  # groups that are kept as they are written
_CHARGES: Final = 500  # corrections in one call, at most
_HEAVY: Final = 1000  # units in one call, at most, of limits that settle no more in one step
_TRIES: Final = 4  # calls for one group: each of the two codecs' scripts may be unknown at first


class Meaning(Exception):
    """A reply that the steps understand, and go on from."""


class NoScript(Meaning):
    """The server does not know the script: it restarted, failed over, or was flushed."""


class NoCodec(Meaning):
    """The server has no cmsgpack and struct."""


def drive(steps: Steps[T], ask: Callable[[Any], Any]) -> T:
    """Run the steps, for threads."""
    try:
        step = next(steps)
        while True:
            try:
                reply = ask(step)
            except (Meaning, StoreError) as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


async def adrive(steps: Steps[T], ask: Callable[[Any], Awaitable[Any]]) -> T:
    """Run the steps, for asyncio."""
    try:
        step = next(steps)
        while True:
            try:
                reply = await ask(step)
            except (Meaning, StoreError) as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        result: T = end.value
        return result


class Talk:
    """The part of a Redis store that does not depend on how commands are sent."""

    def __init__(
        self, prefix: str, timeout: float, clock: Callable[[], float] | None, *, slots: bool, codec: Codec
    ) -> None:
        if not isinstance(prefix, str):
            raise ConfigError(f"prefix: found {prefix!r}, allowed is a string")
        if not seconds("timeout", timeout):
            raise ConfigError("timeout: found 0, allowed is more than 0 seconds")
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock: found {clock!r}, allowed is a callable that returns seconds")
        self._base = self._prefix = f"{prefix}{FORMAT}:"
        self._timeout = timeout
        self._own = self._clock = clock  # what it was given, and what it goes by: tests may stop its time
        self._codec = codec
        self._known: dict[int, Written] = {}  # by the identity of what was asked, which they hold on to
        self.forgiven = 0  # units of corrections beyond a debt of one quota, which nobody is charged
        self.slots: Final = slots  # whether keys live in the slots of a cluster: one call reaches those of one slot
        STORES.enrol(self)

    def _enter(self, stage: Stage, *, empty: bool) -> None:  # noqa: ARG002  # nothing is kept in this process
        self._prefix = self._base + stage.room
        self._known.clear()
        if self._own is None:
            self._clock = stage.wall

    def _take(self, asked: Sequence[Charge], *, commit: bool) -> Steps[Sequence[Decision]]:
        if not asked:
            return []
        now = self._now()
        if not self.slots:
            written = self._written(asked)
            reply = yield from self._take_together([Parcel(written, How(now, commit))])
            return written.group.spread(decisions(reply, written.group.charges))
        group = Group(asked)
        charges = group.charges

        def take(part: Sequence[Charge], *, commit: bool = commit) -> Steps[list[Decision]]:
            return self._take_part(part, now, commit=commit)

        def mend(part: Sequence[Charge]) -> Steps[list[Decision]]:
            if commit:
                return self._stands_after(part, now)
            return take([replace(charge, cost=max(0, charge.cost), role="limit") for charge in part], commit=False)

        apart = self._parts(charges)
        steps = take(charges) if len(apart) == 1 else take_apart(apart, charges, take, mend)
        return group.spread((yield from steps))

    def _settle(self, charges: Sequence[Charge]) -> Steps[Sequence[Charge]]:
        now = self._now()
        self._forgive(sum(max(0, charge.cost - counting(charge.cost, charge.limit)) for charge in charges))
        found: list[Charge] = []  # one for each charge
        for call in settling_calls(charges):
            part = yield from self._each_part([one for _, one in call], lambda part: self._settle_part(part, now))
            for (index, _), own in zip(call, part, strict=True):
                if index == len(found):
                    found.append(own if charges[index].cost > 0 else charges[index])  # a give-back: as it came
                elif charges[index].cost > 0:
                    found[index] = replace(own, cost=found[index].cost + own.cost)
        return found

    def _reset(self, charges: Sequence[Charge]) -> Steps[None]:
        yield from self._each_part(charges, self._reset_part)

    def _each_part(
        self, charges: Sequence[Charge], steps: Callable[[Sequence[Charge]], Steps[Sequence[Charge]]]
    ) -> Steps[Sequence[Charge]]:
        """What the steps of the parts answer, in the order of the charges."""
        apart = self._parts(charges) if charges else []
        if len(apart) <= 1:
            return (yield from steps(charges)) if apart else []
        outcomes = yield [steps([charges[index] for index in part]) for part in apart]
        found = list(charges)
        for part, outcome in zip(apart, outcomes, strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            for index, charge in zip(part, outcome, strict=True):
                found[index] = charge
        return found

    def _parts(self, charges: Sequence[Charge]) -> list[list[int]]:
        """The indices of the charges that one call reaches together."""
        return parts(self._keys(charges)) if self.slots and len(charges) > 1 else [list(range(len(charges)))]

    def _take_part(self, charges: Sequence[Charge], now: int, *, commit: bool) -> Steps[list[Decision]]:
        reply = yield from self._take_together([Parcel(self._written(charges), How(now, commit))])
        return decisions(reply, charges)

    def _written(self, asked: Sequence[Charge]) -> Written:
        """Once for a tuple, which never changes: plans are remembered, and each request of a client asks its own."""
        known = self._known.get(id(asked))
        if known is None:
            known = Written(asked, self._keys, self._codec)
            if type(asked) is tuple:
                if len(self._known) >= _KNOWN:
                    self._known.clear()
                self._known[id(asked)] = known
        return known

    def _take_together(self, parcels: Sequence[Parcel]) -> Steps[object]:
        """Groups in one call, all at one time. The reply is that of the server."""
        every = [parcel.written for parcel in parcels]
        keys = [key for one in every for key in one.keys]
        now, commit = parcels[0].how

        def arguments(codec: Codec) -> bytes:
            texts = [one.text if one.codec == codec else one.text_in(codec) for one in every]
            return joined(codec, now, texts, commit=commit)

        reply = yield from self._evaluate("take", keys, arguments)
        return reply

    def _settle_part(self, charges: Sequence[Charge], now: int) -> Steps[Sequence[Charge]]:
        stands, beyond = yield from self._corrected(charges, now)
        return [
            taken(charge, charge.cost - units, decision) if charge.cost > 0 else charge
            for charge, units, decision in zip(charges, beyond, stands, strict=True)
        ]

    def _stands_after(self, charges: Sequence[Charge], now: int) -> Steps[list[Decision]]:
        stands, _ = yield from self._corrected(charges, now)
        return stands

    def _corrected(self, charges: Sequence[Charge], now: int) -> Steps[tuple[list[Decision], list[int]]]:
        """How things stand after corrections, and of each how many units were forgiven."""
        reply = yield from self._evaluate(
            "settle", self._keys(charges), lambda codec: settle_arguments(codec, now, charges)
        )
        stands, beyond = settled(reply, charges)
        self._forgive(sum(beyond))
        return stands, beyond

    def _forgive(self, units: int) -> None:
        if units:
            self.forgiven += units
            warn_rarely("settle", FORGIVEN, units)

    def _reset_part(self, charges: Sequence[Charge]) -> Steps[Sequence[Charge]]:
        yield ("UNLINK", *self._keys(charges))
        return charges

    def _evaluate(
        self, driver: Literal["take", "settle"], keys: list[bytes], arguments: Callable[[Codec], bytes]
    ) -> Steps[object]:
        known = True
        for _ in range(_TRIES):
            run = script(driver, self._codec)
            call = ("EVALSHA", run.sha) if known else ("EVAL", run.text)
            try:
                return (yield (*call, len(keys), *keys, arguments(self._codec)))
            except NoScript:
                known = False  # this very server is told the script as it runs it
            except NoCodec:
                self._codec, known = "text", True
        raise StoreError("the server has neither of the codecs that the scripts need")

    def _keys(self, charges: Sequence[Charge]) -> list[bytes]:
        prefix = self._prefix
        keys = []
        for charge in charges:
            limit = charge.limit
            if type(limit) not in TWINS:
                raise no_twin(limit)
            keys.append(f"{prefix}{charge.key}:{limit.bucket}".encode("utf-8", "surrogatepass"))  # any text is a key
        return keys

    def _now(self) -> int:
        """A told time in microseconds; 0 asks the server for its own."""
        clock = self._clock  # once: a test that ends in another thread takes it away
        return 0 if clock is None else max(1, microseconds(clock()))


def settling_calls(charges: Sequence[Charge]) -> list[list[tuple[int, Charge]]]:
    """The corrections, with their index, as calls that each keep the server busy for a short time only.

    A correction of more units than its limit settles in one step is in several calls. Units that can make no difference
    are left out.
    """
    calls: list[list[tuple[int, Charge]]] = [[]]
    room = _HEAVY
    for index, charge in enumerate(charges):
        limit = charge.limit
        for units in in_parts(counting(charge.cost, limit), limit):
            weight = abs(units) if limit.most_settled < EXACT else 0
            if weight > room or len(calls[-1]) >= _CHARGES:
                calls.append([])
                room = _HEAVY
            room -= weight
            calls[-1].append((index, charge if units == charge.cost else replace(charge, cost=units)))
    return calls if charges else []
