"""The Lua scripts, assembled once from their files, and what goes in and comes out of them. Knows no client library."""

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from itertools import accumulate
from math import inf
from typing import Any, Final, Literal

from msgspec import DecodeError, json, msgpack

from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.limit import MICROSECONDS, Charge, Decision, Limit, Role

Codec = Literal["packed", "plain", "text"]
"""How arguments, replies and states are written: packed, all of them; `plain`, but for the replies; all as text."""

_CODECS: Final = {
    "packed": ["codec_packed"],
    "plain": ["codec_packed", "codec_plain"],
    "text": ["codec_text", "codec_plain"],
}
_SETTLE: Final = 2  # what to do; to peek is 0, to take 1
_ALIKE: Final = 4096  # kinds of charges of which it is kept how they are written
_SHORT: Final = 16  # values in a list of msgpack with the shortest head
_COMMAS: Final = {"packed": b"", "plain": b"", "text": b","}  # between values
TWINS: Final = frozenset(SCRIPTED.values())  # the types of limits whose algorithm has a Lua twin
_taken: Final = msgpack.Decoder(list[Decision]).decode
_settled: Final = msgpack.Decoder(tuple[list[Decision], list[int]]).decode


class Script:
    """One script: its text and the digest by which a server knows it."""

    __slots__ = ("sha", "text")

    def __init__(self, driver: str, codec: Codec) -> None:
        own = files("ratelimit_mw")
        parts = [own / "stores" / f"{name}.lua" for name in (*_CODECS[codec], "head", "bucket")]
        parts += [own / "algorithms" / f"{name}.lua" for name in SCRIPTED]
        self.text = "\n".join(part.read_text("utf-8") for part in [*parts, own / "stores" / f"{driver}.lua"])
        # a name the server chose, not a secret
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@cache
def script(driver: Literal["take", "settle"], codec: Codec) -> Script:
    """The script with this driver for a server with this codec."""
    return Script(driver, codec)


def take_arguments(codec: Codec, now: int, charges: Sequence[Charge], *, commit: bool) -> bytes:
    """ARGV[1] of take.lua for one group. `now`: a told time in microseconds, 0 for the server's own."""
    return joined(codec, now, [group(codec, charges)], commit=commit)


def joined(codec: Codec, now: int, groups: Iterable[bytes], *, commit: bool) -> bytes:
    """ARGV[1] of take.lua for these groups, in the order of their keys. What several ask alike is said once."""
    kinds: dict[bytes, int] = {}
    which = [kinds.setdefault(group, len(kinds) + 1) for group in groups]
    return _whole(codec, [_values(codec, [now, int(commit), len(which), *which]), *kinds])


def group(codec: Codec, charges: Sequence[Charge]) -> bytes:
    """One group in the arguments of take.lua. Where it stands among others does not matter."""
    many = len(charges)
    parts = []
    for charge in charges:
        limit = charge.limit
        time = limit.patience_us if charge.max_delay is None else charge.patience_us  # that takes longer
        parts.append(_known(codec, limit.algorithm, charge.role, many, charge.cost, time, limit.six))
    return _COMMAS[codec].join(parts)


def settle_arguments(codec: Codec, now: int, charges: Sequence[Charge]) -> bytes:
    """ARGV[1] of settle.lua."""
    many = len(charges)
    parts = [_values(codec, [now, _SETTLE, 0])]
    for charge in charges:
        limit = charge.limit
        # nothing counts from before the epoch, and Lua is told no number below 0
        time = now if charge.at is None else max(0, charge.at)
        parts.append(_charge(codec, limit.algorithm, charge.role, many, charge.cost, time, limit.six))
    return _whole(codec, parts)


def _charge(codec: Codec, algorithm: str, role: Role, many: int, cost: int, time: int, six: Sequence[int]) -> bytes:
    """What `head.lua` says that a script is told of each charge, with the two values that its driver names.

    Lua takes 8,000 values at once, those of 727 charges: with more the script fails.
    """
    return _values(codec, [algorithm, role, many, cost, time, *six])


_known = lru_cache(_ALIKE)(_charge)  # the requests of a rule differ in their keys alone


def _values(codec: Codec, values: list[object]) -> bytes:
    """These values, so that others can stand before and after them: without the brackets, or the head, of a list."""
    return json.encode(values)[1:-1] if codec == "text" else msgpack.encode(values)[1 if len(values) < _SHORT else 3 :]


def _whole(codec: Codec, parts: Iterable[bytes]) -> bytes:
    inside = _COMMAS[codec].join(parts)
    return b"[" + inside + b"]" if codec == "text" else inside


def decisions(reply: object, charges: Sequence[Charge]) -> list[Decision]:
    """The decisions in a reply of take.lua. Raises `StoreError` when it is not one for each charge."""
    return _decisions(reply, len(charges))


def decisions_apart(reply: object, groups: Sequence[int]) -> list[list[Decision]]:
    """The same for groups of so many charges. All at once: to begin with each takes longer than to read it."""
    every = _decisions(reply, sum(groups))
    if len(every) == len(groups):  # most often
        return [[decision] for decision in every]
    ends = [*accumulate(groups)]
    return [every[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _decisions(reply: object, many: int) -> list[Decision]:
    try:
        found = _taken(reply) if type(reply) is bytes else _plain(reply)
    except (DecodeError, TypeError):
        found = []
    if len(found) != many:
        raise _unreadable(reply, "take")
    return found


def _plain(reply: Any) -> list[Decision]:
    """Decisions in a reply of the protocol's own."""
    return [_of_integers(*_integers(values)) for values in reply]


def _integers(values: Any) -> list[int]:
    if type(values) is not list or not {int}.issuperset(map(type, values)):
        raise TypeError
    return values


def _of_integers(
    allowed: int, limit: int, remaining: int, retry: int, following: int, reset: int, delay: int, at: int
) -> Decision:
    """As `head.lua` says that a decision is."""
    return Decision(
        allowed == 1,
        limit,
        remaining,
        inf if retry < 0 else retry / MICROSECONDS,
        following / MICROSECONDS,
        reset / MICROSECONDS,
        delay / MICROSECONDS,
        at,
    )


def settled(reply: Any, charges: Sequence[Charge]) -> tuple[list[Decision], list[int]]:
    """How things stand, in a reply of settle.lua, and how many units of each charge were forgiven.

    Raises `StoreError` as above.
    """
    many = len(charges)
    try:
        if type(reply) is bytes:
            stands, beyond = _settled(reply)
        else:
            stands, beyond = _plain(reply[0]), _integers(reply[1])
    except (DecodeError, TypeError, LookupError):
        stands, beyond = [], []
    if len(stands) != many or len(beyond) != many:
        raise _unreadable(reply, "settle")
    return stands, beyond


def _unreadable(reply: object, driver: str) -> StoreError:
    return StoreError(f"the server answered {reply!r:.200} to {driver}.lua")


def no_twin(limit: Limit) -> ConfigError:
    """What is wrong with a limit of a type that is not in `TWINS`."""
    return ConfigError(f"{type(limit).__name__} has no Lua twin: Redis knows {', '.join(SCRIPTED)}")
