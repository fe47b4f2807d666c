"""Keeps overrides in Redis: one hash, `rl:1:{overrides}`, and a list of changes, `rl:1:{overrides}:changes`.

The tag of a client is a hash or has the form `kind=value`, so it is never `overrides`. Both keys are in one slot.
"""

from collections.abc import Sequence
from typing import Any, Final

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.kept_overrides import CHANGES_TIME, KEPT_CHANGES, KeptOverrides
from ratelimit_mw.stores.redis.protocol import Sender
from ratelimit_mw.stores.redis.scripts import read_lua

_WRITE: Final = read_lua("stores/redis/kept_overrides")
_FIELDS: Final = ("version", "entries", "mac")


async def read_overrides(sender: Sender, prefix: str, known: str) -> KeptOverrides | None:
    """See `OverrideKeeper.read_overrides`."""
    (version,) = await sender.send(("HMGET", _key(prefix), "version"))
    if (version or b"").decode("ascii", "replace") == known:
        return None
    reply = await sender.send(("HMGET", _key(prefix), *_FIELDS))  # all of one version
    version, text, mac = (value or b"" for value in reply)
    try:
        return KeptOverrides(version.decode("ascii"), text, mac.decode("ascii"))
    except UnicodeDecodeError:
        raise StoreError(f"the hash of overrides was written by another program: {reply!r:.200}") from None


async def write_overrides(sender: Sender, prefix: str, known: str, kept: KeptOverrides, change: bytes) -> bool:
    """See `OverrideKeeper.write_overrides`."""
    values = known, *kept, change, KEPT_CHANGES, CHANGES_TIME * 1000
    reply = await sender.send(("EVAL", _WRITE, 2, _key(prefix), _changes_key(prefix), *values))
    return bool(int(reply))


async def read_changes(sender: Sender, prefix: str) -> Sequence[bytes]:
    """See `OverrideKeeper.read_changes`."""
    changes: Any = await sender.send(("LRANGE", _changes_key(prefix), 0, KEPT_CHANGES - 1))
    return list(changes)


def _key(prefix: str) -> bytes:
    return f"{prefix}{{overrides}}".encode("utf-8", "surrogatepass")


def _changes_key(prefix: str) -> bytes:
    return f"{prefix}{{overrides}}:changes".encode("utf-8", "surrogatepass")
