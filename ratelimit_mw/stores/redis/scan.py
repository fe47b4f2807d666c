"""Lists the keys of buckets on the servers of a Redis store, page by page."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ratelimit_mw.stores.inventory import KeyPage
from ratelimit_mw.stores.redis.protocol import Command

_COUNT: Final = 1000  # keys that the server looks at in one call, which takes it about a millisecond
_ALMOST: Final = 0.999  # the share that was seen, until the last page: the number of keys is an estimate
_ESCAPES: Final = str.maketrans({char: f"\\{char}" for char in "\\*?[]"})  # the wildcards of a pattern

Query = Callable[[Command], Any]  # sends a command to one server and returns the reply


def list_keys(servers: Sequence[Query], prefix: str) -> Iterator[KeyPage]:
    """Yield the keys with this prefix, without the prefix. `servers`: each has a part of the keys."""
    head = prefix.encode("utf-8", "surrogatepass")
    pattern = f"{prefix.translate(_ESCAPES)}{{*".encode("utf-8", "surrogatepass")
    sizes = [int(query(("DBSIZE",))) for query in servers]
    total, before = max(1, sum(sizes)), 0
    for number, (query, size) in enumerate(zip(servers, sizes, strict=True), 1):
        cursor, looked_at = 0, 0
        while True:
            reply, keys = query(("SCAN", cursor, "MATCH", pattern, "COUNT", _COUNT))
            cursor = int(reply)
            looked_at = min(looked_at + _COUNT, size)
            is_last = number == len(servers) and not cursor
            seen = 1.0 if is_last else min(_ALMOST, (before + looked_at) / total)
            yield KeyPage(list(_texts(keys, len(head))), seen)
            if not cursor:
                break
        before += size


def _texts(keys: Sequence[bytes], start: int) -> Iterator[str]:
    """Yield the keys as text, without the first bytes. Leaves out keys that no store of ours writes."""
    for key in keys:
        try:
            yield key[start:].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            continue
