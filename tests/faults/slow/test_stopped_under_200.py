"""Measures the latency that stopping Redis adds to 200 concurrent requests, at first and later.

The test reports the figures. It checks only that no request takes longer than the timeout and some slack.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

import pytest

from faults.load import SLACK, Load, Seen
from faults.servers import leaves_nothing
from redis_servers import RedisServer

pytestmark = pytest.mark.promise(8)

DEFAULT_TIMEOUT = 0.05  # seconds
AT_ONCE = 200
PAUSE = 0.2  # seconds between the requests of a worker, so that the machine has time for all of them
PHASES = {"healthy": 2.0, "the first second": 1.0, "the next": 1.0, "later": 3.0}  # seconds; stopped after the first


def figures(seen: Sequence[Seen]) -> tuple[float, float]:
    """Return the median and the 99th percentile of the latency, in milliseconds."""
    took = [1000 * (one.ended - one.begun) for one in seen]
    return median(took), quantiles(took, n=100, method="inclusive")[98]


@pytest.mark.parametrize("mode", ["allow", "local"])
def test_stopped_server_delays_200_concurrent_requests_by_at_most_the_timeout(
    mode: str, served: type[Load], redis_server: RedisServer, tell: Callable[[str], None]
) -> None:
    settings = {"limits": "1000000/hour", "on_store_error": mode, "store_timeout": DEFAULT_TIMEOUT}
    begun: list[float] = []
    with served(AT_ONCE, PAUSE, store=redis_server.url, **settings) as load:
        load.goes_on()
        for phase, seconds in PHASES.items():
            if phase == "the first second":
                redis_server.pause()
            begun.append(time.monotonic())
            time.sleep(seconds)
        over = time.monotonic()
        redis_server.resume()
        load.recovers()
    assert not load.raised
    assert not load.left
    assert {one.status for one in load.seen} == {200}
    assert {one.source for one in load.seen} == {"store", {"allow": "allowed_on_error"}.get(mode, mode)}
    assert max(one.ended - one.begun for one in load.seen) < DEFAULT_TIMEOUT + SLACK
    for phase, since, until in zip(PHASES, begun, [*begun[1:], over], strict=True):
        among = [one for one in load.seen if since <= one.begun < until]
        middle, highest = figures(among)
        tell(f"{phase}: median {middle:.1f} ms, 99th percentile {highest:.1f} ms of {len(among)} requests")
    leaves_nothing(redis_server)
