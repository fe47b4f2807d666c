"""Opens a store of each kind, for tests that every store has to pass."""

from pathlib import Path
from typing import Any

from ratelimit_mw import MemoryStore
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock

KINDS = ("memory", "file", "msgpack", "text")  # the last two are the codecs of Redis


class Opener:
    """Opens stores of a kind, each over a clock and with a prefix of its own."""

    def __init__(self, kind: str, url: str, folder: Path) -> None:
        self.kind, self._url, self._folder = kind, url, folder

    def __call__(self, clock: Clock, prefix: str) -> Store:
        if self.kind == "memory":
            return MemoryStore(clock=clock)
        if self.kind == "file":
            return SQLiteStore(self._folder / f"{prefix}.db", clock=clock, timeout=5, deny_cache=0)
        store = RedisStore(self._url, clock=clock, timeout=5, deny_cache=0, prefix=f"{prefix}-{self.kind}:")
        if self.kind == "text":
            below: Any = store._store
            below._codec = self.kind
        return store
