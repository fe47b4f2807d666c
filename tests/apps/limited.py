"""The settings of the apps for real servers, from the environment."""

import os
from typing import Any

from ratelimit_mw import MemoryStore
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock

# The FIFO at which a streaming response waits after its first part, until the test opens it for writing.
GATE = os.environ.get("GATE", "")


def settings(redis: type[RedisStore | AsyncRedisStore]) -> dict[str, Any]:
    """Return settings with 2 requests per hour for each X-Client. The clock is stopped, so that responses are exact."""
    url, clock = os.environ["STORE"], Clock()
    store = redis(url, timeout=2.0, clock=clock) if url.startswith("redis://") else MemoryStore(clock=clock)
    limit = "2/hour using fixed_window"
    return {"limits": limit, "key": "header:X-Client", "store": store, "on_store_error": "deny"}


def slots() -> dict[str, Any]:
    """Return settings with one concurrent request per client. QUEUE is the length of the queue."""
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
