"""A group of charges, ready to be sent alone or among others."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from ratelimit_mw.errors import StoreError
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.stores.group import Group
from ratelimit_mw.stores.scripts import Codec, group

Recall = Callable[[Sequence[Charge]], Sequence[Decision] | None]
"""What a group is answered without the store; None where it has to be asked."""


class Written:
    """What a server is told of a group of charges: the same whenever they are asked.

    `asked`: as they were, `group`: with one bucket each. `keys`: of each of these, as `keys_of` says. Raises at once
    what cannot be written: it is the error of the request that asks it.
    """

    __slots__ = ("_codec", "_text", "asked", "group", "keys")

    def __init__(
        self, asked: Sequence[Charge], keys_of: Callable[[Sequence[Charge]], list[bytes]], codec: Codec
    ) -> None:
        self.asked, self._codec = asked, codec
        self.group = Group(asked)
        self.keys = keys_of(self.group.charges)
        self._text = group(codec, self.group.charges)

    def text(self, codec: Codec) -> bytes:
        """As a part of the arguments of take.lua."""
        return self._text if codec == self._codec else group(codec, self.group.charges)


class Parcel(Struct, eq=False, gc=False):
    """`now`: a told time in microseconds, 0 for the server's own. `commit`: whether it is taken, or peeked at.

    Under asyncio `batching` sets what is to come and when nobody waits for it any more: one object for each request is
    enough.
    """

    written: Written
    now: int
    commit: bool
    reply: "asyncio.Future[Any]" = None  # type: ignore[assignment]  # where it waits there is one
    until: float = 0.0

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
