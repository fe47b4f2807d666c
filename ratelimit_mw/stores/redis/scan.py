"""Lists the keys of buckets on the servers of a Redis store, page by page."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from ratelimit_mw.core.limit import Charge, Limit
from ratelimit_mw.stores.inventory import KeyPage

COUNT: Final = 1000  # keys that the server examines in one call, in about a millisecond
_ALMOST: Final = 0.999  # the most that `seen` shows before the last page, because the number of keys is an estimate
_ESCAPES: Final = str.maketrans({char: f"\\{char}" for char in "\\*?[]"})  # the wildcards of a pattern
_MAX_KINDS: Final = 250  # limits of one call: each is about 100 bytes, and Lua unpacks 8,000 values at most

S = TypeVar("S")
Cursor = int | str | bytes
LimitOf = Callable[[str], Limit | None]  # returns the limit of a key by its end, `rule:bucket-id`


def pattern_of(prefix: str) -> bytes:
    """Return the pattern of the keys with this prefix."""
    return f"{prefix.translate(_ESCAPES)}{{*".encode("utf-8", "surrogatepass")


def list_pages(
    servers: Sequence[S],
    size_of: Callable[[S], int],
    scan: Callable[[S, Cursor], tuple[Cursor, Sequence[bytes]]],
    prefix: str,
) -> Iterator[KeyPage]:
    """Yield the keys with this prefix, without it. `servers`: each has a part of the keys.

    `scan`: returns the next cursor, and the keys of a page.
    """
    start = len(prefix.encode("utf-8", "surrogatepass"))
    sizes = [size_of(server) for server in servers]
    total, before = max(1, sum(sizes)), 0
    for number, (server, size) in enumerate(zip(servers, sizes, strict=True), 1):
        cursor: Cursor = 0
        looked_at = 0
        while True:
            cursor, keys = scan(server, cursor)
            looked_at = min(looked_at + COUNT, size)
            is_last = number == len(servers) and not int(cursor)
            seen = 1.0 if is_last else min(_ALMOST, (before + looked_at) / total)
            yield KeyPage(list(_texts(keys, start)), seen)
            if not int(cursor):
                break
        before += size


class Kinds:
    """The limits that a listing has found so far: a charge of one unit for each end of a key. Keeps the latest 250."""

    def __init__(self, limit_of: LimitOf) -> None:
        self._limit_of: Final = limit_of
        self.charges: Final[dict[bytes, Charge]] = {}

    def learn(self, keys: Sequence[bytes]) -> None:
        """Add the limits of these keys."""
        for end in {key.rpartition(b"}:")[2] for key in keys}:
            text = end.decode("utf-8", "surrogateescape")
            if (limit := self._limit_of(text)) is not None:
                self.charges[end] = Charge(text, limit)
        for end in list(self.charges)[:-_MAX_KINDS]:
            del self.charges[end]


def _texts(keys: Sequence[bytes], start: int) -> Iterator[str]:
    """Yield the keys as text, without the first bytes. Leaves out keys that this package does not write."""
    for key in keys:
        try:
            yield key[start:].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            continue
