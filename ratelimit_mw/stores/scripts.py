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
_ENCODE: Final = {"packed": msgpack.encode, "text": json.encode}
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
    group: list[object] = []
    for charge in charges:
        group += (charge.limit.algorithm, charge.role, charge.cost, charge.patience_us, *_six(charge.limit))
    return _ENCODE[codec]((now, _parts(charges), int(commit), group))


def settle_arguments(codec: Codec, now: int, charges: Sequence[Charge]) -> bytes:
    """ARGV[1] of settle.lua."""
    corrections = [(charge.limit.algorithm, charge.cost, _at(charge, now), *_six(charge.limit)) for charge in charges]
    return _ENCODE[codec]((now, _parts(charges, "settle"), corrections))


def _six(limit: Limit) -> tuple[int, ...]:
    """The numbers of a limit, made up to six."""
    return (*limit.numbers, *_FILLING[len(limit.numbers) :])


def _at(charge: Charge, now: int) -> int:
    """Nothing counts from before the epoch, and Lua is told no number below 0."""
    return now if charge.at is None else max(0, charge.at)


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


def _parts(charges: Iterable[Charge], *more: str) -> dict[str, bool]:
    """The parts of the script that these charges need."""
    return {part: True for charge in charges for part in (*more, *charge.limit.needs, charge.limit.algorithm)}
