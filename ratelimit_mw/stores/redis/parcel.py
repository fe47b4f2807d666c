"""A group of charges, ready to be sent alone or among others."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge
from ratelimit_mw.stores.group import Group
from ratelimit_mw.stores.redis.scripts import Codec, encode_group

_UNITS: Final = 8  # units that are written one by one and are as much work as a usual charge


class EncodedGroup:
    """What a server is told of a group of charges: the same whenever they are asked.

    `original_charges`: as they were, `group`: with one bucket each, `has_unique_buckets`: whether these are the same.
    `keys`: of each bucket, as `keys_of` says.
    `weight`: how much work they are, one for a usual charge. `text`: a part of the arguments of
    take.lua, in `codec`. Raises at once what cannot be written: it is the error of the request that asks it.
    """

    __slots__ = ("codec", "group", "has_unique_buckets", "keys", "original_charges", "text", "weight")

    def __init__(
        self, original_charges: Sequence[Charge], keys_of: Callable[[Sequence[Charge]], list[bytes]], codec: Codec
    ) -> None:
        self.original_charges, self.codec = original_charges, codec
        self.group = Group(original_charges)
        self.has_unique_buckets = self.group.charges is original_charges
        self.keys = keys_of(self.group.charges)
        self.weight = len(self.keys)
        for charge in self.group.charges:
            if charge.limit.max_settle_units < MAX_EXACT_INT:  # it writes each unit
                self.weight += charge.cost // _UNITS
        self.text = encode_group(codec, self.group.charges)

    def text_in(self, codec: Codec) -> bytes:
        """The text in another one."""
        return encode_group(codec, self.group.charges)


class TakeMode(NamedTuple):
    """What all groups of one call have in common.

    `now`: a told time in microseconds, 0 for the server's own. `commit`: whether it is taken, or peeked at.
    """

    now: int
    commit: bool


DEFAULT_MODE: Final = TakeMode(0, commit=True)  # which is so outside tests


class PendingTake(Struct, eq=False, gc=False):
    """Under asyncio `batching` sets what is to come and when nobody waits for it any more.

    One object for each request is enough.
    """

    encoded_group: EncodedGroup
    mode: TakeMode = DEFAULT_MODE
    reply: "asyncio.Future[Any]" = None  # type: ignore[assignment]  # where it waits there is one
    until: float = 0.0

    def receive(self, reply: Any) -> None:
        """What came of it, which may be a `StoreError`."""
        if self.reply.done():
            return
        if isinstance(reply, StoreError):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)
