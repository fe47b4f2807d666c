"""A group of charges, ready to be sent alone or among others."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ratelimit_mw.errors import StoreError
from ratelimit_mw.limit import Charge
from ratelimit_mw.stores.scripts import Codec, group


class Parcel:
    """`keys`: one for each charge. `now`: a told time in microseconds, 0 for the server's own.

    It is written at once, in this codec: what cannot be written is the error of the request that asks it. Under asyncio
    `batching` sets what is to come and when nobody waits for it any more: one object for each request is enough.
    """

    __slots__ = ("_codec", "_written", "asked", "charges", "commit", "keys", "now", "reply", "until")

    reply: "asyncio.Future[Any]"
    until: float

    def __init__(
        self, keys: Sequence[bytes], charges: Sequence[Charge], now: int, codec: Codec, *, commit: bool
    ) -> None:
        self.keys, self.charges, self.now, self.commit = keys, charges, now, commit
        self.asked = charges  # before those of one bucket were summed
        self._codec, self._written = codec, group(codec, charges)

    def written(self, codec: Codec) -> bytes:
        """As a part of the arguments of take.lua."""
        return self._written if codec == self._codec else group(codec, self.charges)

    def apart_from(self, other: "Parcel") -> bool:
        """Whether one call cannot be for both: all its groups are taken, or all peeked at, and at one time."""
        return self.now != other.now or self.commit != other.commit

    def hear(self, reply: Any) -> None:
        """What came of it, which may be a `StoreError`."""
        if self.reply.done():
            return
        if isinstance(reply, StoreError):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)
