"""Decisions from the deny cache or from a lease are like those of the store, except for their source."""

from typing import Any

import pytest

from ratelimit_mw import Verdict
from redis_servers import RedisServer
from web.serving import Serving, over_asgi, over_wsgi
from web.store_calls.test_one_round_trip import commands

PATIENT = 5.0  # seconds for the store; a busy machine must not cause local decisions


@pytest.fixture(params=[over_asgi, over_wsgi], ids=["asgi", "wsgi"])
def serving(request: pytest.FixtureRequest) -> Serving:
    chosen: Serving = request.param
    return chosen


@pytest.mark.promise(4)
def test_cached_refusals_match_those_of_the_store(serving: Serving, redis_server: RedisServer) -> None:
    seen: list[Verdict] = []
    redis_server.ask("CONFIG RESETSTAT")

    def refused(_: Any, verdict: Verdict) -> str:
        seen.append(verdict)
        return ""

    with serving(limits="2/hour", store=redis_server.url, store_timeout=PATIENT, on_refused=refused) as send:
        answers = [send() for _ in range(6)]
    assert [status for status, *_ in answers] == [200, 200, 429, 429, 429, 429]
    assert [verdict.source for verdict in seen] == ["store", "remembered", "remembered", "remembered"]
    assert {field for status, _, field in answers if status == 429} <= {
        f'"default";r=0;t={seconds}' for seconds in range(3590, 3601)
    }
    waits = [verdict.retry_after for verdict in seen]
    assert waits == sorted(waits, reverse=True)
    assert commands(redis_server)["evalsha"] == 3


@pytest.mark.promise(3)
@pytest.mark.one_redis
def test_leased_limit_needs_few_store_calls_and_keeps_the_quota(serving: Serving, redis_server: RedisServer) -> None:
    redis_server.ask("CONFIG RESETSTAT")
    hot = {"limit": "900/hour using fixed_window", "key": "all", "lease": 100, "lease_time": 600.0}
    with serving(limits=[], app_limits=[hot], store=redis_server.url, store_timeout=PATIENT) as send:
        answers = [send() for _ in range(102)]
        assert [(status, source) for status, source, _ in answers] == [
            (200, "store"),
            *[(200, "lease")] * 100,
            (200, "store"),
        ]
        assert commands(redis_server)["evalsha"] <= 4  # under asyncio a request and its lease may go in one call
    assert redis_server.ask("DBSIZE") == ":1"
    with serving(limits=[], app_limits=[{**hot, "lease": 0}], store=redis_server.url, store_timeout=PATIENT) as send:
        statuses = [send(f"192.0.2.{number % 200}")[0] for number in range(799)]
    assert statuses == [200] * 798 + [429]
