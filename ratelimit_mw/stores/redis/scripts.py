"""Assembles the Lua scripts, encodes their arguments and decodes their replies. Imports no client library."""

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from hashlib import sha1
from importlib.resources import files
from math import inf
from time import time_ns
from typing import Final, Literal, NamedTuple

from msgspec import DecodeError, convert, json, msgpack

from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.algorithms.takeover import KINDS
from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.limit import MICROSECONDS, Charge, Decision, Limit, Role

Driver = Literal["take", "settle", "refusing"]  # the main part of a script, see head.lua; take.lua also peeks
Codec = Literal["msgpack", "text"]
"""The encoding of arguments, replies and states. `codec_<name>.lua` is its part on the server.

`msgpack`: arguments and replies are msgpack, states are binary. `text`, for servers without cmsgpack or struct:
arguments are JSON, replies are RESP lists, states are decimal digits.
"""

_SETTLE_MODE: Final = 2  # args[2] of settle.lua, its mode; take.lua has 0 to peek and 1 to take
_REFUSING_MODE: Final = 3  # args[2] of refusing.lua
_CACHED_CHARGES: Final = 4096  # encoded charges
_CACHED_ARGUMENTS: Final = 128  # arguments of take.lua; most requests of an app have the limits of a few rules
_FIXARRAY_LIMIT: Final = 16  # the head of a msgpack list has one byte if it has fewer values, else three
_SEPARATORS: Final = {"msgpack": b"", "text": b","}  # between values
SCRIPTED_LIMITS: Final = frozenset((*SCRIPTED.values(), *KINDS.values()))  # types of limits with a Lua implementation
# Decodes replies of the codec `msgpack`. Their durations are in seconds already; `_decision` converts the durations in
# replies of the codec `text`.
_decode_decisions: Final = msgpack.Decoder(list[Decision]).decode
_RESP_LISTS: Final = list[list[int]]


class Script(NamedTuple):
    """The text of a script, and the SHA-1 digest by which a server knows it."""

    text: str
    sha: str


@cache
def script(driver: Driver, codec: Codec) -> Script:
    """Return the script with this driver and codec."""
    parts = (f"codec_{codec}", "head", "takeover", "bucket", "closed")
    names = [f"stores/redis/{part}" for part in parts]
    names += [f"algorithms/{name}" for name in SCRIPTED]
    names += [f"stores/redis/{name}" for name in ("fair_slots", "keep", driver)]
    text = "\n".join(map(read_lua, names))
    # Redis prescribes SHA-1; the digest is a name, not a secret
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def read_lua(name: str) -> str:
    """Return the text of `<name>.lua`, a file of this package."""
    return (files("ratelimit_mw") / f"{name}.lua").read_text("utf-8")


@lru_cache(_CACHED_ARGUMENTS)
def join_groups(codec: Codec, now: int, groups: tuple[bytes, ...], *, commit: bool) -> bytes:
    """Return ARGV[1] of take.lua for groups, in the order of their keys. Equal groups are encoded once.

    `now`: an injected time in microseconds; 0 for the server's time. `groups`: from `encode_group`.
    """
    numbers: dict[bytes, int] = {}  # each distinct group, with its number
    group_numbers = [numbers.setdefault(group, len(numbers) + 1) for group in groups]
    return _encode_list(
        codec, [_encode_values(codec, [now, int(commit), len(group_numbers), *group_numbers]), *numbers]
    )


def encode_group(codec: Codec, charges: Sequence[Charge], now: int = 0) -> bytes:
    """Return the part of take.lua's arguments for one group. It does not depend on its position in a batch.

    `now`: as in `join_groups`; only limits that use wall time need it.
    """
    count = len(charges)
    parts = []
    for charge in charges:
        limit = charge.limit
        # the same as charge.effective_max_delay_us, but without calling a property in the common case
        max_delay = limit.effective_max_delay_us if charge.max_delay is None else charge.effective_max_delay_us
        algorithm, numbers = _script_of(limit, now)
        if limit.keep:
            algorithm = f"{algorithm}+{limit.keep}"  # see keep.lua
        parts.append(_cached_charge(codec, (algorithm, numbers), charge.role, count, charge.cost, max_delay))
    return _SEPARATORS[codec].join(parts)


def refusing_arguments(codec: Codec, now: int, charges: Sequence[Charge], *, is_cluster: bool) -> bytes:
    """Return ARGV[1] of refusing.lua."""
    parts = [_encode_values(codec, [now, _REFUSING_MODE, 1, int(not is_cluster)])]
    return _encode_list(codec, [*parts, *(encode_group(codec, [charge], now) for charge in charges)])


def settle_arguments(codec: Codec, now: int, charges: Sequence[Charge]) -> bytes:
    """Return ARGV[1] of settle.lua."""
    count = len(charges)
    parts = [_encode_values(codec, [now, _SETTLE_MODE, 0])]
    for charge in charges:
        limit = charge.limit
        # The script rejects times below 0. A time before 1970 has the same effect as 0: the units no longer count.
        at = now if charge.at is None else max(0, charge.at)
        parts.append(_encode_charge(codec, _script_of(limit, now), charge.role, count, charge.cost, at))
    return _encode_list(codec, parts)


def _script_of(limit: Limit, now: int) -> tuple[str, tuple[int, ...]]:
    return limit.script_at(now or time_ns() // 1000) if limit.uses_wall_time else limit.script


def _encode_charge(
    codec: Codec, script: tuple[str, tuple[int, ...]], role: Role, count: int, cost: int, max_delay_or_at: int
) -> bytes:
    """Encode the values of one charge, in the order that `head.lua` describes above its `args`.

    `max_delay_or_at`, in microseconds: for settle.lua the time of the earlier charge, for the others the maximum delay.
    A script fails for more than 727 charges, because Lua unpacks 8,000 values at most.
    """
    algorithm, numbers = script
    return _encode_values(codec, [algorithm, role, count, cost, max_delay_or_at, *numbers])


_cached_charge = lru_cache(_CACHED_CHARGES)(_encode_charge)  # charges of a rule differ only in their keys


def _encode_values(codec: Codec, values: list[object]) -> bytes:
    """Encode values as a list without its brackets (JSON) or its head (msgpack), so that encodings can be joined."""
    return (
        json.encode(values)[1:-1]
        if codec == "text"
        else msgpack.encode(values)[1 if len(values) < _FIXARRAY_LIMIT else 3 :]
    )


def _encode_list(codec: Codec, parts: Iterable[bytes]) -> bytes:
    body = _SEPARATORS[codec].join(parts)
    return b"[" + body + b"]" if codec == "text" else body


def read_decisions_by_group(reply: object, sizes: Sequence[int]) -> list[list[Decision]]:
    """Return the decisions on each group. `sizes`: the number of charges of each group.

    Decodes the reply as a whole, because a call of the decoder takes longer than decoding one group.
    """
    every = read_decisions(reply, sum(sizes))
    groups, end = [], 0
    for size in sizes:
        start, end = end, end + size
        groups.append(every[start:end])
    return groups


def read_decisions(reply: object, count: int, driver: Literal["take", "settle"] = "take") -> list[Decision]:
    """Return the decisions in a reply of `driver`. Raises `StoreError` unless there are so many."""
    try:
        if type(reply) is bytes:
            decisions = _decode_decisions(reply)
        else:  # the codec `text`: a RESP list for each decision
            decisions = [_decision(*values) for values in convert(reply, _RESP_LISTS)]
    except (DecodeError, TypeError):
        decisions = []
    if len(decisions) != count:
        raise StoreError(f"the server answered {reply!r:.200} to {driver}.lua")
    return decisions


def _decision(
    allowed: int, limit: int, remaining: int, retry_after: int, next_after: int, reset_after: int, delay: int, at: int
) -> Decision:
    """Return the decision with these eight values. `head.lua` describes them: times in microseconds, -1 for never."""
    return Decision(
        allowed == 1,
        limit,
        remaining,
        inf if retry_after < 0 else retry_after / MICROSECONDS,
        next_after / MICROSECONDS,
        reset_after / MICROSECONDS,
        delay / MICROSECONDS,
        at,
    )


def unsupported_limit(limit: Limit) -> ConfigError:
    """Return the error for a limit whose type is not in `SCRIPTED_LIMITS`."""
    return ConfigError(
        f"{type(limit).__name__} has no Lua implementation; Redis supports {', '.join(SCRIPTED)}", code="RL-044"
    )
