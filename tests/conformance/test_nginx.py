"""Compares `leaky_bucket` with nginx's limit_req.

burst=B is burst B + 1, nodelay is no max_delay, and delay=N is at_once N.
"""

from typing import Any

import pytest

from conformance.tables import NGINX
from ratelimit_mw import Charge, LeakyBucket
from ratelimit_mw.core.limit import microseconds
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock

pytestmark = [pytest.mark.promise(2), pytest.mark.promise(3)]

ZONES = NGINX.data["multi_zone"]
CASES = {case["name"]: case for case in NGINX.data["arith_cases"] if "name" in case}
SCALES = {"r/s": 1, "r/m": 60}  # seconds

# nginx rounds rates down to thousandths of a request per second: 1r/m becomes 0.016, one request per 62.5 s. Here
# 1r/m is one request per 60 s.
DIFFERENT = {("limit_req_dry_run.t: 1r/m burst=2 then burst=0 on the same zone", 1): ("delay:62500", "delay:60000")}


def test_every_case_has_a_test() -> None:
    assert set(NGINX.cases) == {*CASES, "multi_zone", "multi_zone, nodelay", "limit_conn"}


def zone(rate: str, burst: int, *, nodelay: bool = False, delay: int = 0) -> LeakyBucket:
    """Return the limit for `limit_req_zone rate=...` and `limit_req burst=... nodelay|delay=...`."""
    quota, window = int(rate[:-3]), SCALES[rate[-3:]]
    whole_queue = (burst + 1) * window / quota
    return LeakyBucket(
        quota, window, burst=burst + 1, max_delay=0 if nodelay else whole_queue, at_once=None if nodelay else delay
    )


def outcome(store: Store, limit: LeakyBucket) -> str:
    (decision,) = store.take([Charge("k", limit)])
    if not decision.allowed:
        return "reject"
    return f"delay:{microseconds(decision.delay) // 1000}" if decision.delay else "pass"


@pytest.mark.parametrize("name", CASES)
def test_leaky_bucket_decides_as_limit_req(name: str, stores: list[Store], clock: Clock) -> None:
    case, start = CASES[name], clock.now
    limit = zone(case["rate"], case["burst"], nodelay=case.get("nodelay", False), delay=case.get("delay", 0))
    both = [DIFFERENT.get((name, number), (theirs, theirs)) for number, (_, theirs) in enumerate(case["rows"])]
    for store in stores:
        got = []
        for t_ms, theirs in case["rows"]:
            clock.now = start + t_ms / 1000
            got.append((theirs, outcome(store, limit)))
        assert got == both


@pytest.mark.parametrize(("rows", "nodelay"), [("rows", False), ("repeat_with_nodelay", True)])
def test_charges_of_two_zones_are_all_or_nothing(rows: str, nodelay: bool, stores: list[Store], clock: Clock) -> None:
    assert ZONES["zones"] == {"slow": "1r/m keyed by arg a, burst 0", "fast": "1000r/s keyed by arg b, burst 0"}
    slow, fast = zone("1r/m", 0, nodelay=nodelay), zone("1000r/s", 0, nodelay=nodelay)
    for store in stores:
        got: list[Any] = []
        for a, b, _ in ZONES[rows]:
            clock.advance(ZONES["gap_ms"] / 1000)
            charges = [Charge(key, limit) for key, limit in ((a, slow), (b, fast)) if key is not None]
            got.append([a, b, 200 if all(decision.allowed for decision in store.take(charges)) else 503])
        assert got == ZONES[rows]
