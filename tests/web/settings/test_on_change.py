"""Tests the setting `on_change`: old and new settings on one store, in each framework, and with each other feature."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import MemoryStore, admin
from ratelimit_mw.admin.target import DescribedRequest
from ratelimit_mw.algorithms.takeover import OnChange
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.replay import replay
from ratelimit_mw.settings import Settings
from replay.replayed import combined
from web.faces import FACES
from web.scenario import Send, Step

TEN = "10/hour using fixed_window"
TWENTY = "20/hour using token_bucket"
PATIENT = 5.0  # seconds
GATES: list[Gate] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while GATES:
        GATES.pop().close()


def passing(send: Send, most: int = 30, **step: Any) -> int:
    """Return how many requests pass until one is refused, at most `most`."""
    for number in range(most):
        if send(Step(**step)).status == 429:
            return number
    return most


@pytest.mark.parametrize("face", FACES)
def test_each_framework_takes_over_units_of_a_changed_limit(face: str) -> None:
    """The short way of ASGI and WSGI, too: nothing but the limit is another one."""
    store = MemoryStore()
    old, new, fresh = (
        FACES[face]({"limits": limits, "store": store, "on_change": on_change})
        for limits, on_change in ((TEN, "used"), (TWENTY, "used"), (TWENTY, "fresh"))
    )
    assert (passing(old, 4), passing(new), passing(old), passing(fresh)) == (4, 16, 0, 20)


@pytest.fixture(params=["redis", "file"])
def url(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> str:
    """The URL of a store that processes share."""
    return redis_url if request.param == "redis" else f"sqlite:///{tmp_path}/limits.db"


@pytest.mark.parametrize("faces", [("starlette", "flask"), ("wsgi", "fastapi")])
def test_old_and_new_processes_share_a_store(url: str, faces: Sequence[str]) -> None:
    common = {"store": url, "store_timeout": PATIENT, "on_change": "used", "on_store_error": "deny"}
    old, new = (FACES[face]({**common, "limits": limits}) for face, limits in zip(faces, (TEN, TWENTY), strict=True))
    assert (passing(old, 4), passing(new, 3), passing(old, 2), passing(new), passing(old)) == (4, 3, 2, 11, 0)


class App:
    """A gate over a store. `left`: the units that are left of each limit of a rule, in order."""

    def __init__(self, store: Any, limits: Any, on_change: OnChange = "used", **settings: Any) -> None:
        rule = {"name": "api", "path": "/", "limits": limits, **settings.pop("rule", {})}
        self.settings = Settings(
            limits=[], rules=[rule], store=store, on_change=on_change, store_timeout=PATIENT, **settings
        )
        self.gate = Gate(self.settings)
        GATES.append(self.gate)

    def send(self, number: int = 1, ip: str = "192.0.2.7", **words: Any) -> list[int]:
        """Send requests, and return the units left of each limit, as the last one shows them."""
        left: list[int] = []
        for _ in range(number):
            request = DescribedRequest("GET /", ip, **words).request()
            verdict = self.gate.admit(request)
            for end in request.on_end or ():
                end(None)
            assert verdict is not None
            left = [decision.remaining if verdict.allowed else -1 for decision in verdict.decisions]
        return left


def test_limits_of_a_rule_are_told_apart_by_name_or_place() -> None:
    store = MemoryStore()
    hour, day, month = "10/hour", "20/day using fixed_window", "50/month using fixed_window"
    assert App(store, [hour, day]).send(3) == [7, 17]
    assert App(store, ["40/hour", "100/day using fixed_window", month]).send() == [36, 96, 49]
    assert App(store, [month, hour]).send() == [45, 5]  # of the first and the second place, whatever their windows


def test_a_name_keeps_a_limit_apart_wherever_it_stands() -> None:
    store = MemoryStore()
    hour, day = {"limit": "10/hour", "name": "hourly"}, {"limit": "20/day using gcra", "name": "daily"}
    assert App(store, [hour, day]).send(3) == [7, 17]
    assert App(store, ["5/minute", {**day, "limit": "90/day using gcra"}, hour]).send() == [4, 86, 6]


def test_rules_and_tiers_are_apart() -> None:
    store = MemoryStore()
    tiers = {"free": "5/hour", "pro": "50/hour"}
    options: dict[str, Any] = {"tier": "header:x-plan", "rule": {"key": "ip"}}
    assert App(store, tiers, **options).send(2, headers=["X-Plan: pro"]) == [48]
    changed = App(store, {"free": "6/hour", "pro": "60/hour"}, **options)
    assert changed.send(headers=["X-Plan: free"]) == [5]
    assert changed.send(headers=["X-Plan: pro"]) == [57]
    assert App(store, "10/hour", rule={"name": "other", "key": "ip"}).send() == [9]


def per_customer(request: Any) -> str:
    plan: str = request.headers["x-plan"]
    return f"{plan}/hour"


def test_limits_of_a_callable_take_over_units_when_a_client_gets_others() -> None:
    app = App(MemoryStore(), per_customer)
    assert app.send(3, headers=["X-Plan: 10"]) == [7]
    assert app.send(headers=["X-Plan: 100"]) == [96]


def test_share_is_that_of_the_quota() -> None:
    store = MemoryStore()
    assert App(store, "100/hour using gcra", "share").send(60) == [40]
    assert App(store, "200/hour using fixed_window", "share").send() == [79]


def test_a_ban_and_its_refusals_are_taken_over() -> None:
    store = MemoryStore()
    banned = App(store, "1/hour", rule={"penalty": "3 refusals per hour: 1 hour"})
    assert [banned.send() for _ in range(3)] == [[0, 3], [-1, -1], [-1, -1]]
    changed = App(store, "50/hour", rule={"penalty": "4 refusals per hour: 2 hours"})
    assert changed.send() == [48, 2]
    banned.send(3)
    assert changed.send() == [-1, -1]  # the ban of the other limit


def test_slots_are_those_of_requests_in_progress_whatever_their_number() -> None:
    store = MemoryStore()
    old, new = (App(store, "90/hour", rule={"concurrent": number}) for number in (1, 3))
    request = DescribedRequest("GET /", "192.0.2.7").request()
    assert old.gate.admit(request) is not None
    assert new.send() == [88, 1]
    for end in request.on_end or ():
        end(None)
    assert new.send() == [87, 2]


def test_operators_find_list_and_reset_the_buckets_of_either_limit(url: str) -> None:
    old, new = (App(url, [first, "90/day"], plain_keys=True) for first in (TEN, TWENTY))
    old.send(10)
    described = {"request": "GET /", "ip": "192.0.2.7"}
    shown = [(one.limit, one.remaining) for one in admin.peek(new.settings, **described).buckets]
    assert shown == [("20/3600s using token_bucket", 10), ("90/86400s using sliding_window_counter", 80)]
    assert sorted((one.rule, one.remaining) for one in admin.keys(new.settings).keys) == [("api", 10), ("api", 80)]
    limited = [[one.remaining for one in admin.keys(app.settings, limited=True).keys] for app in (old, new)]
    assert limited == [[0], []]
    admin.reset(new.settings, **described)
    assert [one.remaining for one in admin.peek(old.settings, **described).buckets] == [10, 90]


def test_a_remembered_refusal_is_that_of_one_limit(url: str) -> None:
    old, new = App(url, TEN), App(url, TWENTY)
    assert old.send(12) == [-1]
    assert old.send() == [-1]
    assert new.send() == [9]


def test_leased_units_are_charged_and_refunded_under_the_limit_that_took_them(url: str) -> None:
    lease = {"limit": TEN, "lease": 5}
    old, new = App(url, lease), App(url, {**lease, "limit": TWENTY})
    old.send()
    old.gate.close()  # refunds what is left of its lease
    GATES.remove(old.gate)
    assert new.send()[0] in (18, 14)
    new.gate.close()
    GATES.remove(new.gate)
    assert App(url, TEN).send() == [7]


def test_a_replay_decides_as_the_app_with_one_version_of_the_settings(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text("".join(combined(at, "192.0.2.1") for at in range(0, 60, 2)))
    reports = [
        replay({"limits": "10/minute; 25/hour using gcra", "on_change": on_change}, log)
        for on_change in ("fresh", "used", "share")
    ]
    assert [report.refused for report in reports] == [reports[0].refused] * 3
    assert reports[0].refused > 0
