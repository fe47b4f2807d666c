"""The methods of `stores.inventory.Inventory` over Redis: list the keys, and keep refusals for `top` and `tail`.

Each minute has a sorted set of clients, `rl:1:{top}:MINUTE`; the latest refusals are a stream, `rl:1:{tail}`. The tag
of a client is a hash or has the form `kind=value`, so it is never `top` or `tail`.
"""

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import MICROSECONDS, Charge, Limit
from ratelimit_mw.core.runtime import run
from ratelimit_mw.stores.inventory import (
    KEPT_CLIENTS,
    KEPT_REFUSALS,
    KEPT_SECONDS,
    KeyPage,
    NumberedRefusal,
    Refusal,
)
from ratelimit_mw.stores.redis.protocol import Sender
from ratelimit_mw.stores.redis.scripts import read_lua

SCAN_COUNT: Final = 1000  # keys that the server examines in one call, in about a millisecond
_ALMOST: Final = 0.999  # the most that `seen` shows before the last page, because the number of keys is an estimate
_ESCAPES: Final = str.maketrans({char: f"\\{char}" for char in "\\*?[]"})  # the wildcards of a pattern
_MAX_FOUND_LIMITS: Final = 250  # limits of one call: each is about 100 bytes, and Lua unpacks 8,000 values at most
_MINUTE: Final = 60  # seconds
_PER_CALL: Final = 250  # clients or refusals in one call, because nothing interrupts a script on the server
_KEPT_MS: Final = KEPT_SECONDS * 1000
_COUNT_REFUSED: Final = read_lua("stores/redis/refused_top")
_KEEP_REFUSED: Final = read_lua("stores/redis/refused_tail")
_FIELDS: Final = (b"k", b"l", b"t", b"w")  # the fields of an entry: key, limit, time in microseconds, wait in seconds
_LINE: Final = (b"m", b"p")  # method and path

Cursor = int | str | bytes
Scan = Callable[[Cursor, Sender], Coroutine[Any, Any, tuple[Cursor, list[bytes]]]]
"""Reads a page of the keys of a server. Returns the next cursor, and the keys."""

LimitOf = Callable[[str], Limit | None]  # returns the limit of a key by its suffix, `rule:bucket-id`


def pattern_of(prefix: str) -> bytes:
    """Return the pattern of the keys with this prefix."""
    return _encoded(f"{prefix.translate(_ESCAPES)}{{*")


def list_pages(servers: Sequence[Sender], scan: Scan, prefix: str) -> Iterator[KeyPage]:
    """Yield pages of the keys that begin with `prefix`, with the prefix removed. Blocks, so call it in a thread.

    `servers`: each has a part of the keys.
    """
    start = len(_encoded(prefix))
    sizes = [int(run(server.send(("DBSIZE",)))) for server in servers]
    total, before = max(1, sum(sizes)), 0
    for number, (server, size) in enumerate(zip(servers, sizes, strict=True), 1):
        cursor: Cursor = 0
        looked_at = 0
        while True:
            cursor, keys = run(scan(cursor, server))
            looked_at = min(looked_at + SCAN_COUNT, size)
            is_last = number == len(servers) and not int(cursor)
            seen = 1.0 if is_last else min(_ALMOST, (before + looked_at) / total)
            yield KeyPage(list(_texts(keys, start)), seen)
            if not int(cursor):
                break
        before += size


class FoundLimits:
    """The limits of the keys listed so far, by key suffix `rule:bucket-id`, each as a charge of one unit.

    Keeps the latest 250.
    """

    def __init__(self, limit_of: LimitOf) -> None:
        self._limit_of: Final = limit_of
        self.charges: Final[dict[bytes, Charge]] = {}

    def learn(self, keys: Sequence[bytes]) -> None:
        """Add the limits of these keys."""
        for suffix in {key.rpartition(b"}:")[2] for key in keys}:
            text = suffix.decode("utf-8", "surrogateescape")
            if (limit := self._limit_of(text)) is not None:
                self.charges[suffix] = Charge(text, limit)
        for suffix in list(self.charges)[:-_MAX_FOUND_LIMITS]:
            del self.charges[suffix]


def _texts(keys: Sequence[bytes], start: int) -> Iterator[str]:
    """Yield the keys as text, without the first bytes. Leaves out keys of other programs that are not UTF-8."""
    for key in keys:
        try:
            yield key[start:].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            continue


async def add_refused(sender: Sender, prefix: str, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
    """See `Inventory.add_refused`."""
    top, tail = _top_key(prefix, int(time.time() // _MINUTE)), _tail_key(prefix)
    pairs = list(counts.items())
    for start in range(0, len(pairs), _PER_CALL):
        some = pairs[start : start + _PER_CALL]
        values = [value for key, count in some for value in (count, _encoded(key))]
        await sender.send(("EVAL", _COUNT_REFUSED, 1, top, _KEPT_MS, KEPT_CLIENTS, len(some), *values))
    for start in range(0, len(latest), _PER_CALL):
        part = latest[start : start + _PER_CALL]
        fields = [
            value
            for one in part
            for value in (
                _encoded(one.key),
                one.limit,
                round(one.at * MICROSECONDS),
                repr(one.retry_after),
                _encoded(one.method),
                _encoded(one.path),
            )
        ]
        await sender.send(("EVAL", _KEEP_REFUSED, 1, tail, _KEPT_MS, KEPT_REFUSALS, len(part), *fields))


async def most_refused(sender: Sender, prefix: str, since: float) -> Mapping[str, int]:
    """See `Inventory.most_refused`."""
    now = int(time.time() // _MINUTE)
    counts = Counter[str]()
    for minute in range(max(int(since // _MINUTE), now - KEPT_SECONDS // _MINUTE), now + 2):  # as clocks differ
        reply = await sender.send(("ZRANGE", _top_key(prefix, minute), 0, -1, "WITHSCORES"))
        for key, count in _pairs(reply):
            counts[_decoded(key)] += int(float(count))
    return counts


async def latest_refusals(sender: Sender, prefix: str, after: str | None, most: int) -> Sequence[NumberedRefusal]:
    """See `Inventory.latest_refusals`."""
    key = _tail_key(prefix)
    if after is None:
        reply = await sender.send(("XREVRANGE", key, "+", "-", "COUNT", most))
        reply = reply[::-1]
    else:
        reply = await sender.send(("XRANGE", key, f"({after}", "+", "COUNT", most))
    return [NumberedRefusal(number.decode("ascii"), _refusal(fields)) for number, fields in reply]


def _pairs(reply: Any) -> Iterable[tuple[Any, Any]]:
    """Return the pairs of a flat list. A client of redis-py that was passed in returns pairs already, or a mapping."""
    if isinstance(reply, Mapping):
        return reply.items()
    is_flat = not reply or not isinstance(reply[0], (tuple, list))
    return zip(reply[::2], reply[1::2], strict=True) if is_flat else iter(reply)


def _refusal(fields: Any) -> Refusal:
    try:
        values = dict(_pairs(fields))
        key, limit, at, wait = (values[name] for name in _FIELDS)
        line = [_decoded(values.get(name, b"")) for name in _LINE]  # which an earlier version did not write
        return Refusal(_decoded(key), _decoded(limit), int(at) / MICROSECONDS, float(wait), *line)
    except (KeyError, ValueError) as error:
        raise StoreError(f"the stream of refusals has an entry of another program: {fields!r:.200}") from error


def _top_key(prefix: str, minute: int) -> bytes:
    return _encoded(f"{prefix}{{top}}:{minute}")


def _tail_key(prefix: str) -> bytes:
    return _encoded(f"{prefix}{{tail}}")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(text: Any) -> str:
    """Return the text of a key. Bytes that no key of this package contains are escaped."""
    try:
        decoded: str = text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        decoded = text.decode("utf-8", "backslashreplace")
    return decoded
