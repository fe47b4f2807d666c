"""Groups of charges, encoded to be sent alone or in a batch."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge
from ratelimit_mw.stores.group import Group
from ratelimit_mw.stores.redis.scripts import Codec, encode_group

_UNITS: Final = 8  # writing this many units one by one is as much work for the server as one charge


class EncodedGroup:
    """A group of charges with its keys and its part of the arguments of take.lua.

    `original_charges`: as the caller passed them. `group`: the same with one charge per bucket. `has_unique_buckets`:
    whether the two are equal. `keys`: one per bucket, from `keys_of`. `weight`: work for the server; most charges
    count 1. `text`: the arguments, in `codec`. Raises at once if the charges are invalid, so that the error reaches
    their own request only.
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
        """Return the text in another codec."""
        return encode_group(codec, self.group.charges)


class TakeMode(NamedTuple):
    """Options that all groups of one call share.

    `now`: injected time in microseconds, 0 for the server's own. `commit`: True takes, False peeks.
    """

    now: int
    commit: bool


DEFAULT_MODE: Final = TakeMode(0, commit=True)  # of every take outside of tests


class PendingTake(Struct, eq=False, gc=False):
    """An encoded group to take or peek. In asyncio `Batcher` sets the future `reply` and the deadline `until`."""

    encoded_group: EncodedGroup
    mode: TakeMode = DEFAULT_MODE
    reply: "asyncio.Future[Any]" = None  # type: ignore[assignment]  # set before it is awaited
    until: float = 0.0

    def resolve(self, reply: Any) -> None:
        """Resolve `reply`; a `StoreError` is raised in the waiting request."""
        if self.reply.done():
            return
        if isinstance(reply, StoreError):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)
