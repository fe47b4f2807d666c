"""Keeps the numbers of refusals and the latest refusals in Redis, for `top` and `tail`. Coroutines, like `commands`.

Each minute has a sorted set of clients, `rl:1:{top}:MINUTE`; the latest refusals are a stream, `rl:1:{tail}`. The tag
of a client is a hash or has the form `kind=value`, so it is never `top` or `tail`.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import MICROSECONDS
from ratelimit_mw.stores.inventory import KEPT_CLIENTS, KEPT_REFUSALS, KEPT_SECONDS, NumberedRefusal, Refusal
from ratelimit_mw.stores.redis.protocol import Sender

_MINUTE: Final = 60  # seconds
_PER_CALL: Final = 250  # clients or refusals in one call, because nothing interrupts a script on the server
_KEPT_MS: Final = KEPT_SECONDS * 1000
_FIELDS: Final = (b"k", b"l", b"t", b"w")  # the fields of an entry: key, limit, time in microseconds, wait in seconds


async def add_refused(sender: Sender, prefix: str, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
    """See `Inventory.add_refused`."""
    top = _top_key(prefix, int(time.time() // _MINUTE))
    pairs = list(counts.items())
    for start in range(0, len(pairs), _PER_CALL):
        some = pairs[start : start + _PER_CALL]
        values = [value for key, count in some for value in (count, _encoded(key))]
        await sender.send(("EVAL", _text("top"), 1, top, _KEPT_MS, KEPT_CLIENTS, len(some), *values))
    for start in range(0, len(latest), _PER_CALL):
        part = latest[start : start + _PER_CALL]
        fields = [
            value
            for one in part
            for value in (_encoded(one.key), one.limit, round(one.at * MICROSECONDS), repr(one.retry_after))
        ]
        tail = _tail_key(prefix)
        await sender.send(("EVAL", _text("tail"), 1, tail, _KEPT_MS, KEPT_REFUSALS, len(part), *fields))


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
        return Refusal(_decoded(key), _decoded(limit), int(at) / MICROSECONDS, float(wait))
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


@cache
def _text(table: Literal["top", "tail"]) -> str:
    """Return the text of the script that adds to a table."""
    return (files("ratelimit_mw") / "stores" / "redis" / f"refused_{table}.lua").read_text("utf-8")
