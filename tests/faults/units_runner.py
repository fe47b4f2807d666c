"""Reserves, charges and settles until it is killed: `python units_runner.py STORE SEED NOW`.

Prints units before it takes or corrects them, such as `5`, and a line `ok` after each answer. Prints `id ID` for each
reservation that it leaves open.
"""

import asyncio
import sys
from random import Random
from typing import Any

import httpx

from ratelimit_mw import AsyncLimiter
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.service import service
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis import AsyncRedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock

LIMIT = {"limits": "1000000000/day using fixed_window", "key": "shared"}
TTL = 60  # seconds
MOST = 99  # units at a time


def opened(url: str, now: float) -> Any:
    """Return a store at this URL or path. Its clock stands still."""
    clock = Clock(now)
    if url.startswith("redis:"):
        return AsyncRedisStore(url, clock=clock, timeout=30, deny_cache=0)
    return SQLiteStore(url, clock=clock, timeout=30, deny_cache=0)


def settings_over(store: Any) -> dict[str, Any]:
    return {"limits": [], "store": store, "store_timeout": 30, "on_store_error": "deny"}


class Client:
    """Calls the decision service over a store, in this process."""

    def __init__(self, store: Any) -> None:
        app = service({"trusted_proxies": ["127.0.0.1"], **settings_over(store)})
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://service")

    async def call(self, verb: str, **body: Any) -> httpx.Response:
        return await self._client.post(f"/v1/{verb}", json=body)

    async def used(self) -> int:
        """Return the units of the limit that are charged."""
        answer = (await self.call("peek", **LIMIT)).json()
        used: int = answer["limit"] - answer["remaining"]
        return used


async def work(url: str, random: Random, now: float) -> None:
    """Take units by each interface in turn, without an end."""
    store = opened(url, now)
    client, limiter = Client(store), AsyncLimiter(store)
    state = RateLimitState(None, AsyncGate(Settings(**settings_over(store))))

    def say(line: object) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    while True:
        cost, actual = random.randint(1, MOST), random.randint(0, 2 * MOST)
        say(cost)
        match random.choice(("reserve", "service", "service", "charge")):
            case "reserve":
                async with limiter.reserve(LIMIT["limits"], LIMIT["key"], cost) as reservation:
                    say("ok")
                    reservation.actual = actual
                    say(actual - cost)
                say("ok")
            case "charge":
                await state.charge(LIMIT["limits"], key=LIMIT["key"], cost=cost)
                say("ok")
            case _:
                name = (await client.call("reserve", **LIMIT, cost=cost, ttl=TTL)).json()["id"]
                say("ok")
                end = random.choice(("commit", "cancel", "none"))
                if end == "none":
                    say(f"id {name}")
                    continue
                more = {"actual": actual} if end == "commit" else {}
                say(more.get("actual", 0) - cost)
                (await client.call(end, id=name, **more)).raise_for_status()
                say("ok")


if __name__ == "__main__":
    _, url, seed, now = sys.argv
    asyncio.run(work(url, Random(seed), float(now)))  # noqa: S311  # tests need no secrets
