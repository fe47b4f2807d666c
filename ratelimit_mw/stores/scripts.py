"""The Lua scripts, assembled once from their files, and what goes in and comes out of them. Knows no client library."""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, Literal

from msgspec import json, msgpack

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.limit import Charge, Decision, Limit
from ratelimit_mw.ticks import MICROSECONDS

Codec = Literal["packed", "text"]
_SETTLE: Final = 2  # what to do; to peek is 0, to take 1
_GROUP: Final = 1  # all charges of a call are one group
_LONG: Final = 16  # values: from here on the head of a MessagePack list has three bytes, not one
_FILLING: Final = (1, 1, 1, 1, 1, 1)
_FIELDS: Final = 8  # integers per decision in the reply of take.lua


class Script:
    """One script: its text and the digest by which a server knows it."""

    __slots__ = ("sha", "text")

    def __init__(self, driver: str, codec: Codec) -> None:
        own = files("ratelimit_mw")
        parts = [own / "stores" / f"{name}.lua" for name in (f"codec_{codec}", "head", "bucket")]
        parts += [own / "algorithms" / f"{name}.lua" for name in ALGORITHMS]
        self.text = "\n".join(part.read_text("utf-8") for part in [*parts, own / "stores" / f"{driver}.lua"])
        # a name the server chose, not a secret
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@cache
def script(driver: Literal["take", "settle"], codec: Codec) -> Script:
    """The script with this driver for a server with this codec."""
    return Script(driver, codec)


def take_arguments(codec: Codec, now: int, charges: Sequence[Charge], *, commit: bool) -> bytes:
    """ARGV[1] of take.lua for one group. `now`: a told time in microseconds, 0 for the server's own."""
    return _encoded(codec, now, int(commit), ((charge, charge.patience_us) for charge in charges))


def settle_arguments(codec: Codec, now: int, charges: Sequence[Charge]) -> bytes:
    """ARGV[1] of settle.lua."""
    # nothing counts from before the epoch, and Lua is told no number below 0
    times = [now if charge.at is None else max(0, charge.at) for charge in charges]
    return _encoded(codec, now, _SETTLE, zip(charges, times, strict=True))


def _encoded(codec: Codec, now: int, what: int, charges: Iterable[tuple[Charge, int]]) -> bytes:
    """What `head.lua` says that a script is told. Each charge comes with the second value that its driver names.

    Lua takes 8,000 values at once, those of 727 charges: with more the script fails.
    """
    values: list[object] = [now, what]
    for charge, time in charges:
        numbers = charge.limit.numbers
        values += (charge.limit.algorithm, charge.role, _GROUP, charge.cost, time, *numbers, *_FILLING[len(numbers) :])
    if codec == "text":
        return json.encode(values)
    return msgpack.encode(values)[1 if len(values) < _LONG else 3 :]  # without the head of the list


def decisions(reply: object, charges: Sequence[Charge]) -> list[Decision]:
    """The decisions in a reply of take.lua. Raises `StoreError` when it is not one integer per field and charge."""
    if not isinstance(reply, list) or len(reply) != _FIELDS * len(charges) or not all(type(n) is int for n in reply):
        raise StoreError(f"the server answered {reply!r:.200} to take.lua")
    return [_decision(*reply[at : at + _FIELDS]) for at in range(0, len(reply), _FIELDS)]


def _decision(
    allowed: int, limit: int, remaining: int, retry: int, following: int, reset: int, delay: int, at: int
) -> Decision:
    return Decision(
        allowed == 1,
        limit,
        remaining,
        math.inf if retry < 0 else retry / MICROSECONDS,
        following / MICROSECONDS,
        reset / MICROSECONDS,
        delay / MICROSECONDS,
        at,
    )


def check_scripted(limit: Limit) -> None:
    """Raises `ConfigError` for a limit whose algorithm has no Lua twin here."""
    if ALGORITHMS.get(limit.algorithm) is not type(limit):
        raise ConfigError(f"{type(limit).__name__} has no Lua twin: Redis knows {', '.join(ALGORITHMS)}")
