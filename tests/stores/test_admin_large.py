"""Checks that `keys` leaves a server with many keys four fifths of its time, and that `top` finds the right clients."""

import os
import time
from collections.abc import Callable
from contextlib import closing
from random import Random

import pytest
from redis import Redis

from ratelimit_mw import GCRA, Charge, FixedWindow, MemoryStore, SlidingWindowCounter, TokenBucket, admin
from ratelimit_mw.core.verdict import verdict_of
from ratelimit_mw.engine.offenders import ThreadReporter
from ratelimit_mw.engine.pulse import ThreadPulse
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis import RedisStore
from redis_servers import RedisServer

IS_PROOF = os.environ.get("TEST_PROFILE") == "proof"
COUNT = 1_000_000 if IS_PROOF else 5_000
FULL = FixedWindow(1, 36_000)
LIMITS = [SlidingWindowCounter(100, 36_000), FixedWindow(100, 36_000), GCRA(100, 36_000), TokenBucket(100, 36_000)]
OPEN = {"config|resetstat", "info", "hello", "client|setinfo", "script|load"}  # not part of the listing


@pytest.mark.parametrize("limited", [True, False])
def test_keys_uses_at_most_a_fifth_of_the_server_time(
    redis_server: RedisServer, record_property: Callable[[str, object], None], *, limited: bool
) -> None:
    if IS_PROOF and not limited:
        pytest.skip("the listing of all buckets has no bound in time")
    settings = Settings(limits="1/minute", store=redis_server.url, plain_keys=True)
    with closing(RedisStore(redis_server.url, timeout=60)) as store:
        for start in range(0, COUNT, 500):  # one of 1,000 buckets refuses
            kinds = [LIMITS[number % 4] if number % 1000 else FULL for number in range(start, start + 500)]
            store.take([Charge(f"{{ip={start + at}}}:default", limit) for at, limit in enumerate(kinds)])
    with Redis.from_url(redis_server.url) as client:
        client.config_resetstat()
        cpu, began = cpu_seconds(client), time.monotonic()
        listed = admin.keys(settings, limited=limited)
        elapsed = time.monotonic() - began
        cpu = cpu_seconds(client) - cpu
        stats = client.info("commandstats")
    assert listed.seen == 1.0
    expected = {f"ip={number}" for number in range(0, COUNT, 1000 if limited else 1)}
    assert {one.key for one in listed.keys} == expected
    calls = {name.removeprefix("cmdstat_"): one for name, one in stats.items()}
    inner = {"get", "mget", "time", *(["scan"] if limited else [])}  # the time of the scripts includes these
    busy = sum(one["usec"] for name, one in calls.items() if name not in OPEN | inner) / 1e6
    figures = f"{COUNT} keys: {elapsed:.1f} s, the server was busy for {busy:.2f} s, of which {cpu:.2f} s were CPU time"
    record_property("listing", figures)
    assert busy <= 0.2 * elapsed, figures


def cpu_seconds(client: Redis) -> float:
    """Return the CPU time of the server. Other work on the machine extends its busy time, but not its CPU time."""
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def test_top_lists_clients_with_one_percent_of_the_refusals(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty clients have 1 % of the refusals each, and each other client has one. The process reports ten times."""
    refusals, remembered, often = (1_000_000 if IS_PROOF else 20_000), 100, [f"often-{number}" for number in range(20)]
    names = often * (refusals // 100) + [f"once-{number}" for number in range(refusals * 8 // 10)]
    Random(1).shuffle(names)  # noqa: S311  # a fixed order
    limit, memory = FixedWindow(1, 3600), MemoryStore()
    charge = Charge("{a}:default", limit)
    decisions = [memory.take([charge]), memory.take([charge])][1]
    monkeypatch.setattr(ThreadPulse, "start", lambda _: None)  # the test calls flush()
    settings = Settings(limits="1/hour", store=redis_server.url, store_timeout=60, plain_keys=True)
    held = 0
    with closing(RedisStore(redis_server.url, timeout=60)) as store:
        reporter = ThreadReporter(store, remembered)
        for number, name in enumerate(names, 1):
            reporter.add(verdict_of([Charge(f"{{ip={name}}}:default", limit)], decisions))
            if not number % 1000:
                held = max(held, len(reporter._refusals._table))
            if not number % (refusals // 10):
                reporter.flush()
    clients = admin.top(settings, most=20).clients
    assert {one.key for one in clients} == {f"ip={name}" for name in often}
    assert all(refusals * 0.008 <= one.refused <= refusals * 0.01 for one in clients)
    assert remembered <= held <= 2 * remembered
