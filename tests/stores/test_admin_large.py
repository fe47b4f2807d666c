"""`keys` reads a large store, and leaves its server four fifths of the time."""

import os
import time
from collections.abc import Callable
from contextlib import closing

import pytest
from redis import Redis

from ratelimit_mw import Charge, FixedWindow, SlidingWindowCounter, admin
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis import RedisStore
from redis_servers import RedisServer

IS_PROOF = os.environ.get("TEST_PROFILE") == "proof"
COUNT = 1_000_000 if IS_PROOF else 5_000
LIMITS = [FixedWindow(1, 36_000), SlidingWindowCounter(100, 36_000)]
OPEN = {"config|resetstat", "info", "hello", "client|setinfo", "script|load"}  # not of the listing


@pytest.mark.parametrize("limited", [True, False])
def test_the_server_keeps_four_fifths_of_its_time(
    redis_server: RedisServer, record_property: Callable[[str, object], None], *, limited: bool
) -> None:
    if IS_PROOF and not limited:
        pytest.skip("the listing of all buckets has no bound in time")
    settings = Settings(limits="1/minute", store=redis_server.url, plain_keys=True)
    with closing(RedisStore(redis_server.url, timeout=60)) as store:
        for start in range(0, COUNT, 500):  # one of 1,000 buckets refuses
            kinds = [LIMITS[0] if number % 1000 == 0 else LIMITS[1] for number in range(start, start + 500)]
            store.take([Charge(f"{{ip={start + at}}}:default", limit) for at, limit in enumerate(kinds)])
    with Redis.from_url(redis_server.url) as client:
        client.config_resetstat()
        began = time.monotonic()
        listed = admin.keys(settings, limited=limited)
        elapsed = time.monotonic() - began
        stats = client.info("commandstats")
    assert listed.seen == 1.0
    expected = {f"ip={number}" for number in range(0, COUNT, 1000 if limited else 1)}
    assert {one.key for one in listed.keys} == expected
    calls = {name.removeprefix("cmdstat_"): one for name, one in stats.items()}
    inner = {"get", "time"}  # called by the scripts, whose time includes them
    busy = sum(one["usec"] for name, one in calls.items() if name not in OPEN | inner) / 1e6
    figures = f"{COUNT} keys: {elapsed:.1f} s, the server was busy for {busy:.2f} s"
    record_property("listing", figures)
    assert busy <= 0.2 * elapsed, figures
