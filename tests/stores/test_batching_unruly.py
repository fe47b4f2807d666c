"""Sends 10,000 requests over an unreliable network, cancels some, and checks that each gets its own decisions."""

import asyncio
import os
from collections import Counter
from random import Random, SystemRandom
from typing import Any

import pytest

from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores import circuit_breaker
from ratelimit_mw.stores.redis import AsyncRedisStore
from redis_servers import RedisServer
from unruly_proxy import UnrulyProxy, fates

REQUESTS = 10_000
WAVE = 200  # requests that start together
SEED = int(os.environ.get("TEST_SEED", SystemRandom().randrange(10**9)))  # shown by a failure
EVERYBODY = Charge("everybody", FixedWindow(25_000, 24 * 3600))  # about 40,000 units are requested
QUOTA = 1000  # plus the number of the request, so that decisions show which request they are for


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the circuit breaker closed, because a lost connection fails all requests in flight."""
    monkeypatch.setattr(circuit_breaker, "FAILURES_TO_OPEN", 1_000_000)


pytestmark = [
    pytest.mark.promise(2),
    pytest.mark.promise(3),
    pytest.mark.promise(8),
    pytest.mark.one_redis,
]


def cost(number: int) -> int:
    return 1 + number % 7


def own(number: int, units: int) -> Charge:
    """Return a charge on a bucket that no other request uses."""
    return Charge(f"k{number}", FixedWindow(QUOTA + number, 24 * 3600), units)


async def wave(store: AsyncRedisStore, random: Random, numbers: range) -> list[Any]:
    """Send requests, and return the outcome of each. About one in ten is canceled within 10 ms."""
    tasks: list[asyncio.Task[Any]] = []
    for number in numbers:
        everybody = Charge(EVERYBODY.key, EVERYBODY.limit, cost(number))
        tasks.append(asyncio.create_task(store.atake([own(number, cost(number)), everybody])))
        if random.random() < 0.05:
            await asyncio.sleep(0)
        if random.random() < 0.1:
            asyncio.get_running_loop().call_later(random.random() * 0.01, random.choice(tasks).cancel)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def used(store: AsyncRedisStore, charge: Charge) -> int:
    (decision,) = await store.apeek([charge])
    return decision.limit - decision.remaining


async def main(port: int) -> tuple[list[Any], list[int], int, Counter[str]]:
    """Return outcomes by request, units charged for each, units charged to the shared bucket, and commands by fate."""
    random = Random(SEED)  # noqa: S311  # tests need no secrets
    async with UnrulyProxy(port, fates(random), delay=0.25).running() as proxy:
        store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}/0", timeout=0.2)
        outcomes = []
        for first in range(0, REQUESTS, WAVE):
            outcomes += await wave(store, random, range(first, first + WAVE))
        await store.aclose()
        await asyncio.sleep(0.3)  # wait for the late replies, which must be dropped
    plain = AsyncRedisStore(f"redis://127.0.0.1:{port}/0", timeout=10.0)
    units: list[int] = []
    for first in range(0, REQUESTS, WAVE):
        units += await asyncio.gather(*(used(plain, own(number, 0)) for number in range(first, first + WAVE)))
    total = await used(plain, Charge(EVERYBODY.key, EVERYBODY.limit, 0))
    await plain.aclose()
    return outcomes, units, total, Counter(proxy.fates)


def test_requests_get_their_own_decisions_and_are_charged_at_most_once(redis_server: RedisServer) -> None:
    outcomes, units, total, seen = asyncio.run(main(redis_server.port))
    kinds = Counter("answer" if isinstance(outcome, list) else type(outcome).__name__ for outcome in outcomes)
    note = f"TEST_SEED={SEED}: {dict(kinds)}, commands: {dict(seen)}"
    assert len(outcomes) == REQUESTS, note
    assert set(kinds) == {"answer", "CancelledError", "StoreError"}, note  # all three must occur
    assert len(seen) == 6, note
    answered = {number: outcome for number, outcome in enumerate(outcomes) if isinstance(outcome, list)}
    admitted = {number for number, (mine, everybodys) in answered.items() if mine.allowed and everybodys.allowed}
    assert len(answered) > REQUESTS / 4, note
    assert 0 < len(admitted) < len(answered), note
    for number, (mine, everybodys) in answered.items():
        left = QUOTA + number - (cost(number) if number in admitted else 0)
        assert (mine.limit, mine.remaining) == (QUOTA + number, left), note
        assert everybodys.limit == EVERYBODY.limit.quota, note
        assert units[number] == (cost(number) if number in admitted else 0), (number, note)
    for number in set(range(REQUESTS)) - set(answered):  # a request without decisions was charged once or not at all
        assert units[number] in {0, cost(number)}, (number, outcomes[number], note)
    assert total == sum(units) <= EVERYBODY.limit.quota, note
    lost = sum(cost(number) for number in range(REQUESTS) if number not in answered)
    assert 0 <= total - sum(map(cost, admitted)) <= lost, note


def test_store_errors_name_their_cause(redis_server: RedisServer) -> None:
    outcomes, _, _, _ = asyncio.run(main(redis_server.port))
    said = {str(outcome) for outcome in outcomes if isinstance(outcome, StoreError)}
    assert "no answer within 0.2 seconds" in said
    assert "ResponseError: made up" in said
    assert any(one.startswith("the connection was lost") for one in said)
