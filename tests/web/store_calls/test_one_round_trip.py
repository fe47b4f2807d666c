"""Tests that a request sends one command to Redis for all its limits and keys, and is charged nothing if refused."""

import re
from collections.abc import Mapping
from typing import Any

import http_sf
import pytest

from redis_servers import RedisServer
from web.serving import Serving, over_asgi, over_wsgi

pytestmark = [pytest.mark.promise(1), pytest.mark.promise(2)]

THREE: Mapping[str, Any] = {  # three limits on three keys
    "app_limits": [{"limit": "50/hour", "key": "route", "name": "route"}],
    "limits": [
        {"limit": "40/hour using token_bucket", "key": "ip", "name": "client"},
        {"limit": "3/hour", "key": "all", "name": "all"},
    ],
    "store_timeout": 2.0,  # seconds; so that a busy machine does not cause local decisions
}
CALLED_BY_SCRIPT = ("get", "set", "time", "pexpire")  # called by the Lua script


@pytest.fixture(params=[over_asgi, over_wsgi], ids=["asgi", "wsgi"])
def serving(request: pytest.FixtureRequest) -> Serving:
    chosen: Serving = request.param
    return chosen


def left(field: str) -> dict[Any, Any]:
    """Return the `r` parameters of a RateLimit field, by name."""
    found: Any = http_sf.parse(field.encode("ascii"), tltype="list")
    return {name: parameters["r"] for name, parameters in found}


def commands(server: RedisServer) -> dict[str, int]:
    """Return how often clients sent each command since RESETSTAT, without the commands of this test."""
    found = re.findall(r"cmdstat_([a-z|]+):calls=([0-9]+)", server.ask("INFO commandstats"))
    ours = (*CALLED_BY_SCRIPT, "config", "config|resetstat", "quit")
    return {name: int(count) for name, count in found if name not in ours}


def test_three_limits_on_three_keys_cost_one_evalsha_and_a_refusal_charges_none(
    serving: Serving, redis_server: RedisServer
) -> None:
    with serving(store=redis_server.url, **THREE) as send:
        for number in range(3):
            assert left(send(f"192.0.2.{number}")[2]) == {"client": 39, "route": 49 - number}
        assert redis_server.ask("CONFIG RESETSTAT") == "+OK"
        for number in range(5):  # each request is from another client, with no refusal in the deny cache
            status, _, field = send(f"192.0.2.{9 + number}")
            assert (status, left(field)) == (429, {"all": 0, "route": 47, "client": 40})
        assert commands(redis_server) == {"evalsha": 5}
