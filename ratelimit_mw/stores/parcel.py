"""A group of charges, ready to be sent alone or among others."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ratelimit_mw.errors import StoreError
from ratelimit_mw.limit import Charge
from ratelimit_mw.stores.group import Group
from ratelimit_mw.stores.scripts import Codec, group


class Written:
    """What a server is told of a group of charges: the same whenever they are asked.

    `asked`: as they were, `group`: with one bucket each. `keys`: of each of these, as `keys_of` says. Raises at once
    what cannot be written: it is the error of the request that asks it.
    """

    __slots__ = ("asked", "codec", "group", "keys", "text")

    def __init__(
        self, asked: Sequence[Charge], keys_of: Callable[[Sequence[Charge]], list[bytes]], codec: Codec
    ) -> None:
        self.asked, self.codec = asked, codec
        self.group = Group(asked)
        self.keys = keys_of(self.group.charges)
        self.text = group(codec, self.group.charges)


class Parcel:
    """`now`: a told time in microseconds, 0 for the server's own.

    Under asyncio `batching` sets what is to come and when nobody waits for it any more: one object for each request is
    enough.
    """

    __slots__ = ("_written", "asked", "charges", "commit", "keys", "now", "reply", "until")

    reply: "asyncio.Future[Any]"
    until: float

    def __init__(self, written: Written, now: int, *, commit: bool) -> None:
        self._written, self.now, self.commit = written, now, commit
        self.asked, self.charges, self.keys = written.asked, written.group.charges, written.keys

    def written(self, codec: Codec) -> bytes:
        """As a part of the arguments of take.lua."""
        own = self._written
        return own.text if codec == own.codec else group(codec, self.charges)

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
