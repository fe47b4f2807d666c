"""Settlements, charges in handlers, reservations and reports count the same in each store: as plain addition does."""

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from profiles import PROOF
from ratelimit_mw import AsyncLimiter, MemoryStore, RateLimited, asgi
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.service.calls import RequestParts
from ratelimit_mw.service.requests import request_of
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis import AsyncRedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock
from service.calls import client, made
from stores.opener import KINDS

STEPS = 3000 if PROOF else 150
QUOTA = 20
MOST = 9  # units of a request
REPORT = request_of(RequestParts(path="/", headers={"model": "m"}).scope())

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(5), pytest.mark.one_redis]


class Count:
    """The model of a limit at one instant: a sum between 0 and two quotas, the second of which is debt."""

    def __init__(self) -> None:
        self.used = 0

    @property
    def left(self) -> int:
        return max(0, QUOTA - self.used)

    def take(self, cost: int) -> bool:
        if self.used + cost > QUOTA:
            return False
        self.used += cost
        return True

    def add(self, delta: int) -> None:
        self.used = min(max(0, self.used + delta), 2 * QUOTA)


def opened(kind: str, url: str, folder: Path, prefix: str) -> Any:
    if kind == "memory":
        return MemoryStore(clock=Clock())
    if kind == "file":
        return SQLiteStore(folder / "limits.db", clock=Clock(), timeout=5, deny_cache=0)
    store = AsyncRedisStore(url, clock=Clock(), timeout=5, deny_cache=0, prefix=f"{prefix}-{kind}:")
    below: Any = store._store
    below._codec = kind
    return store


class World:
    """Random calls of each interface, each compared with the model. All but requests and reports share a bucket."""

    def __init__(self, store: Any, algorithm: str, random: Random) -> None:
        over: dict[str, Any] = {"store": store, "store_timeout": 9, "on_store_error": "deny"}  # slow machines, too
        self._notation = f"{QUOTA}/hour using {algorithm}"
        self._random, self._limiter = random, AsyncLimiter(store)
        self._state = RateLimitState(None, AsyncGate(Settings(limits=[], **over)))
        self._service = made(
            limits=[{"limit": self._notation, "name": "tokens", "overdraw": True}],
            key="header:model",
            **over,
        )
        self._web = asgi.RateLimitMiddleware(
            self._app,
            limits=[
                {"limit": self._notation, "key": "header:who", "cost": lambda request: int(request.header("cost"))}
            ],
            **over,
        )
        self._shared, self._requests, self._reports = Count(), Count(), Count()
        self._open: list[tuple[int, Any, AbstractAsyncContextManager[Any]]] = []
        self._ids: list[tuple[int, str]] = []
        self._actual: int | None = None

    async def step(self) -> None:
        steps = (self.request, self.charge, self.reserve, self.end, self.reserve_by_http, self.end_by_http, self.report)
        await self._random.choice(steps)()

    def units(self, least: int = 1) -> int:
        return self._random.randint(least, MOST)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        state = scope["state"]["ratelimit"]
        assert state.verdict.remaining == self._requests.left
        if self._actual is not None:
            state.settle(self._random.randint(0, 40))  # only the last value counts
            state.settle(self._actual)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def request(self) -> None:
        cost, self._actual = self.units(), self._random.choice((None, 0, self.units(), 3 * QUOTA))
        admitted = self._requests.take(cost)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._web), base_url="http://app") as one:
            answer = await one.get("/", headers={"who": "me", "cost": str(cost)})
        assert answer.status_code == (204 if admitted else 429)
        if admitted and self._actual is not None:
            self._requests.add(self._actual - cost)
            while sending := asyncio.all_tasks() - {asyncio.current_task()}:  # the correction, after the response
                await asyncio.wait(sending)

    async def charge(self) -> None:
        cost = self.units(0)
        verdict = await self._state.charge(self._notation, key="k", cost=cost, raises=False)
        expected = self._shared.take(cost) if cost else True
        assert (verdict.allowed, verdict.remaining) == (expected, self._shared.left)

    async def reserve(self) -> None:
        cost = self.units()
        held = self._limiter.reserve(self._notation, "k", cost)
        admitted = self._shared.take(cost)
        with suppress(RateLimited):
            self._open.append((cost, await held.__aenter__(), held))
            assert admitted
            admitted = False
        assert not admitted

    async def end(self) -> None:
        if not self._open:
            return
        cost, reservation, held = self._open.pop(self._random.randrange(len(self._open)))
        reservation.actual = self._random.choice((None, 0, self.units(), 2 * QUOTA))
        error = self._random.choice((None, ValueError()))
        await held.__aexit__(type(error) if error else None, error, None)
        kept = 0 if error else cost
        self._shared.add((kept if reservation.actual is None else reservation.actual) - cost)

    async def reserve_by_http(self) -> None:
        cost = self.units()
        got = await self._call("reserve", limits=self._notation, key="k", cost=cost)
        expected = self._shared.take(cost)
        assert (got["allowed"], got["remaining"], got["id"] is not None) == (expected, self._shared.left, expected)
        if expected:
            self._ids.append((cost, got["id"]))

    async def end_by_http(self) -> None:
        if not self._ids:
            return
        cost, name = self._ids.pop(self._random.randrange(len(self._ids)))
        actual = self._random.choice((None, 0, self.units(), 2 * QUOTA))
        if self._random.random() < 0.5:
            actual = 0
            assert await self._call("cancel", id=name) == {"canceled": cost}
        else:
            more = {} if actual is None else {"actual": actual}
            assert await self._call("commit", id=name, **more) == {"committed": cost if actual is None else actual}
        self._shared.add((cost if actual is None else actual) - cost)
        assert (await self._call("commit", id=name, actual=99))["status"] == 409

    async def report(self) -> None:
        """Ask before, report in any case, and take one unit as a client without costs does."""
        asked, _ = await self._service.requests.decide([(REPORT, 0)], zero_looks=True)
        assert (asked.allowed, asked.remaining) == (self._reports.left > 0, self._reports.left)
        if self._random.random() < 0.5:
            cost = self.units()
            told, _ = await self._service.requests.decide([(REPORT, cost)], zero_looks=True)
            self._reports.add(cost)
            assert told is None  # no other limit applies
        else:
            one, _ = await self._service.requests.decide([(REPORT, None)], zero_looks=True)
            assert (one.allowed, one.remaining) == (self._reports.take(1), self._reports.left)

    async def _call(self, verb: str, **body: Any) -> Any:
        async with client(self._service) as service:
            return (await service.post(f"/v1/{verb}", json=body)).json()

    async def unused(self) -> None:
        """End what is open, and compare once more."""
        while self._open or self._ids:
            await self.end()
            await self.end_by_http()
        verdict = await self._limiter.peek(self._notation, "k")
        assert verdict.remaining == self._shared.left


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {"smooth"}))  # there, the next one pays the cost
@pytest.mark.parametrize("kind", KINDS)
def test_all_interfaces_count_exactly_in_each_store(kind: str, algorithm: str, redis_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        store = opened(kind, redis_url, tmp_path, algorithm)
        try:
            world = World(store, algorithm, Random(f"{kind} {algorithm}"))  # noqa: S311  # tests need no secrets
            for _ in range(STEPS):
                await world.step()
            await world.unused()
        finally:
            await store.aclose()

    asyncio.run(main())
