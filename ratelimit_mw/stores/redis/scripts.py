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
from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.limit import MICROSECONDS, Charge, Decision, Limit, Role

Codec = Literal["msgpack", "msgpack_resp_replies", "json"]
"""How arguments, replies and states are written: `msgpack`, all of them; `msgpack_resp_replies`,
the replies as the protocol's own lists; `json`, all as text."""

_CODECS: Final = {
    "msgpack": ["codec_packed"],
    "msgpack_resp_replies": ["codec_packed", "codec_plain"],
    "json": ["codec_text", "codec_plain"],
}
_SETTLE: Final = 2  # what to do; to peek is 0, to take 1
_CACHED_CHARGES: Final = 4096  # kinds of charges of which it is kept how they are written
_FIXARRAY_LIMIT: Final = 16  # values in a list of msgpack with the shortest head
_SEPARATORS: Final = {"msgpack": b"", "msgpack_resp_replies": b"", "json": b","}  # between values
SCRIPTED_LIMITS: Final = frozenset(SCRIPTED.values())  # the types of limits whose algorithm has a Lua twin
_decode_decisions: Final = msgpack.Decoder(list[Decision]).decode
_decode_settlement: Final = msgpack.Decoder(tuple[list[Decision], list[int]]).decode


class Script:
    """One script: its text and the digest by which a server knows it."""

    __slots__ = ("sha", "text")

    def __init__(self, driver: str, codec: Codec) -> None:
        package = files("ratelimit_mw")
        parts = [package / "stores" / "redis" / f"{name}.lua" for name in (*_CODECS[codec], "head", "bucket")]
        parts += [package / "algorithms" / f"{name}.lua" for name in SCRIPTED]
        self.text = "\n".join(
            part.read_text("utf-8") for part in [*parts, package / "stores" / "redis" / f"{driver}.lua"]
        )
        # a name the server chose, not a secret
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@cache
def script(driver: Literal["take", "settle"], codec: Codec) -> Script:
    """The script with this driver for a server with this codec."""
    return Script(driver, codec)


def take_arguments(codec: Codec, now: int, charges: Sequence[Charge], *, commit: bool) -> bytes:
    """ARGV[1] of take.lua for one group. `now`: a told time in microseconds, 0 for the server's own."""
    return join_groups(codec, now, [encode_group(codec, charges)], commit=commit)


def join_groups(codec: Codec, now: int, groups: Iterable[bytes], *, commit: bool) -> bytes:
    """ARGV[1] of take.lua for these groups, in the order of their keys. What several ask alike is said once."""
    kinds: dict[bytes, int] = {}
    which = [kinds.setdefault(group, len(kinds) + 1) for group in groups]
    return _encode_list(codec, [_encode_values(codec, [now, int(commit), len(which), *which]), *kinds])


def encode_group(codec: Codec, charges: Sequence[Charge]) -> bytes:
    """One group in the arguments of take.lua. Where it stands among others does not matter."""
    count = len(charges)
    parts = []
    for charge in charges:
        limit = charge.limit
        # that takes longer
        time = limit.effective_max_delay_us if charge.max_delay is None else charge.effective_max_delay_us
        parts.append(_cached_charge(codec, limit.algorithm, charge.role, count, charge.cost, time, limit.script_args))
    return _SEPARATORS[codec].join(parts)


def settle_arguments(codec: Codec, now: int, charges: Sequence[Charge]) -> bytes:
    """ARGV[1] of settle.lua."""
    count = len(charges)
    parts = [_encode_values(codec, [now, _SETTLE, 0])]
    for charge in charges:
        limit = charge.limit
        # nothing counts from before the epoch, and Lua is told no number below 0
        time = now if charge.at is None else max(0, charge.at)
        parts.append(_encode_charge(codec, limit.algorithm, charge.role, count, charge.cost, time, limit.script_args))
    return _encode_list(codec, parts)


def _encode_charge(
    codec: Codec, algorithm: str, role: Role, count: int, cost: int, time: int, script_args: Sequence[int]
) -> bytes:
    """What `head.lua` says that a script is told of each charge, with the two values that its driver names.

    Lua takes 8,000 values at once, those of 727 charges: with more the script fails.
    """
    return _encode_values(codec, [algorithm, role, count, cost, time, *script_args])


_cached_charge = lru_cache(_CACHED_CHARGES)(_encode_charge)  # the requests of a rule differ in their keys alone


def _encode_values(codec: Codec, values: list[object]) -> bytes:
    """These values, so that others can stand before and after them: without the brackets, or the head, of a list."""
    return (
        json.encode(values)[1:-1]
        if codec == "json"
        else msgpack.encode(values)[1 if len(values) < _FIXARRAY_LIMIT else 3 :]
    )


def _encode_list(codec: Codec, parts: Iterable[bytes]) -> bytes:
    body = _SEPARATORS[codec].join(parts)
    return b"[" + body + b"]" if codec == "json" else body


def read_decisions(reply: object, charges: Sequence[Charge]) -> list[Decision]:
    """The decisions in a reply of take.lua. Raises `StoreError` when it is not one for each charge."""
    return _read_decisions(reply, len(charges))


def read_decisions_by_group(reply: object, groups: Sequence[int]) -> list[list[Decision]]:
    """The same for groups of so many charges. All at once: to begin with each takes longer than to read it."""
    every = _read_decisions(reply, sum(groups))
    if len(every) == len(groups):  # most often
        return [[decision] for decision in every]
    ends = [*accumulate(groups)]
    return [every[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _read_decisions(reply: object, count: int) -> list[Decision]:
    try:
        decisions = _decode_decisions(reply) if type(reply) is bytes else _from_integers(reply)
    except (DecodeError, TypeError):
        decisions = []
    if len(decisions) != count:
        raise _unreadable_reply(reply, "take")
    return decisions


def _from_integers(reply: Any) -> list[Decision]:
    """Decisions in a reply of the protocol's own."""
    return [_decision(*_integers(values)) for values in reply]


def _integers(values: Any) -> list[int]:
    if type(values) is not list or not {int}.issuperset(map(type, values)):
        raise TypeError
    return values


def _decision(
    allowed: int, limit: int, remaining: int, retry: int, next_after: int, reset: int, delay: int, at: int
) -> Decision:
    """As `head.lua` says that a decision is."""
    return Decision(
        allowed == 1,
        limit,
        remaining,
        inf if retry < 0 else retry / MICROSECONDS,
        next_after / MICROSECONDS,
        reset / MICROSECONDS,
        delay / MICROSECONDS,
        at,
    )


def read_settlement(reply: Any, charges: Sequence[Charge]) -> tuple[list[Decision], list[int]]:
    """How things stand, in a reply of settle.lua, and how many units of each charge were forgiven.

    Raises `StoreError` as above.
    """
    count = len(charges)
    try:
        if type(reply) is bytes:
            decisions, uncollected = _decode_settlement(reply)
        else:
            decisions, uncollected = _from_integers(reply[0]), _integers(reply[1])
    except (DecodeError, TypeError, LookupError):
        decisions, uncollected = [], []
    if len(decisions) != count or len(uncollected) != count:
        raise _unreadable_reply(reply, "settle")
    return decisions, uncollected


def _unreadable_reply(reply: object, driver: str) -> StoreError:
    return StoreError(f"the server answered {reply!r:.200} to {driver}.lua")


def unsupported_limit(limit: Limit) -> ConfigError:
    """What is wrong with a limit of a type that is not in `SCRIPTED_LIMITS`."""
    return ConfigError(f"{type(limit).__name__} has no Lua twin: Redis knows {', '.join(SCRIPTED)}")
