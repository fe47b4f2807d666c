"""The settings of the apps that real servers serve, from the environment."""

import os
from typing import Any

from ratelimit_mw import MemoryStore
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock

# Where a streaming answer waits in its middle until somebody has opened it at the other end.
GATE = os.environ.get("GATE", "")


def settings(redis: type[RedisStore | AsyncRedisStore]) -> dict[str, Any]:
    """2 requests per hour for each client, who says his name; the clock stands still, so that each answer is exact."""
    url, clock = os.environ["STORE"], Clock()
    store = redis(url, timeout=2.0, clock=clock) if url.startswith("redis://") else MemoryStore(clock=clock)
    limit = "2/hour using fixed_window"
    return {"limits": limit, "key": "header:X-Client", "store": store, "on_store_error": "deny"}


def slots() -> dict[str, Any]:
    """One request at work for each client, and a queue as long as the environment says."""
    return {
        "limits": [],
        "concurrent": 1,
        "queue": int(os.environ.get("QUEUE", "0")),
        "queue_timeout": 60,
        "slot_lifetime": 3600,
        "key": "header:X-Client",
        "store": os.environ["STORE"],
        "store_timeout": 2,  # on a busy machine
        "on_store_error": "deny",
    }
