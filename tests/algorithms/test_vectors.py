"""Replays tables of steps on every store, in Python and Lua. Their decisions were worked out by hand."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from msgspec.structs import replace

from own_store import DictStore
from ratelimit_mw import Charge, Decision, Limit, MemoryStore, parse
from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.algorithms.bucket import DelayableLimit
from ratelimit_mw.core.limit import State
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock

START = 1_000_000_000  # seconds; the times of steps are relative to it
FILES = sorted((Path(__file__).parents[1] / "vectors").glob("*.json"))
TABLES = {file.stem: json.loads(file.read_text()) for file in FILES}
CASES = [pytest.param(case, id=f"{name}: {case['about']}") for name, table in TABLES.items() for case in table["cases"]]

assert set(TABLES) == set(SCRIPTED)  # a new algorithm needs a table

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(5)]
each_case = pytest.mark.parametrize("case", CASES)


def limit_of(written: "str | dict[str, Any]") -> Limit:
    """Return a limit from its notation, or from its fields if the notation cannot express one of them."""
    if isinstance(written, str):
        return parse(written)[0]
    options = {"using": "token_bucket", **written}
    return SCRIPTED[options.pop("using")](**options)


@pytest.mark.parametrize("name", TABLES)
def test_each_table_has_limits_of_its_algorithm_only(name: str) -> None:
    assert {limit_of(case["limit"]).algorithm for case in TABLES[name]["cases"]} == {name}


def expected(row: list[Any], of: int, limit: Limit, now: int) -> Decision:
    allowed, remaining, *times, delay = row
    retry_after, next_after, reset_after = [math.inf if time == "never" else time for time in times]
    at = now + round(reset_after * 1e6) if isinstance(limit, DelayableLimit) else now
    return Decision(allowed, of, remaining, retry_after, next_after, reset_after, delay, at)


def replay(case: dict[str, Any], store: Store, clock: Clock) -> None:
    limit = limit_of(case["limit"])
    given = [0]  # `at` of each step's decision, from 1
    for number, (at, verb, cost, *row) in enumerate(case["steps"], 1):
        clock.now = START + at
        if verb in {"take", "peek"}:
            charge = Charge("k", limit, cost, case.get("max_delay"))
            (got,) = getattr(store, verb)([charge])
            now = round((START + at) * 1e6)
            right = expected(row, case["of"], limit, now)
            right = replace(right, at=right.at + case.get("names", {}).get(str(number), 0))
            assert (number, got) == (number, right)
            given.append(got.at)
            continue
        given.append(0)
        if verb == "settle":
            store.settle([Charge("k", limit, cost, at=given[row[0]])])
        else:
            assert verb == "reset"
            store.reset([Charge("k", limit)])


@each_case
def test_memory_store_decides_as_the_tables(case: dict[str, Any]) -> None:
    clock = Clock()
    replay(case, MemoryStore(clock=clock), clock)


class PicklingStore(DictStore):
    """Keeps what `pickle` restores of each state."""

    def _write(self, charge: Charge, state: State, now: int) -> None:
        super()._write(charge, pickle.loads(pickle.dumps(state)), now)  # noqa: S301  # made here


@each_case
def test_store_of_pickled_states_decides_as_the_tables(case: dict[str, Any]) -> None:
    clock = Clock()
    replay(case, PicklingStore(clock), clock)


@each_case
def test_redis_store_decides_as_the_tables(case: dict[str, Any], redis_url: str) -> None:
    clock = Clock()
    store = RedisStore(redis_url, clock=clock, timeout=5)
    replay(case, store, clock)
    store.close()


@each_case
def test_fakeredis_store_decides_as_the_tables(case: dict[str, Any]) -> None:
    clock = Clock()
    with fakeredis.FakeRedis() as client:
        replay(case, RedisStore(client, clock=clock, timeout=5), clock)
