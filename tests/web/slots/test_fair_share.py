"""`fair_share`: while others wait for slots that all have in common, a client gets no more than its share."""

from typing import Any

import pytest
from flask import Flask

from ratelimit_mw import Charge, Concurrency, Limiter, MemoryStore
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.rules.plan import make_plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock
from web.faces import FACES
from web.plain_request import PlainRequest
from web.scenario import Step

HOG, OTHER, THIRD = "192.0.2.1", "192.0.2.2", "192.0.2.3"
FAIR: dict[str, Any] = {"limits": [], "concurrent": 4, "key": "all", "fair_share": "ip"}


@pytest.mark.parametrize("face", FACES)
def test_each_integration_leaves_free_slots_to_a_client_that_waits(face: str) -> None:
    store, seen = MemoryStore(clock=Clock()), list[Charge]()
    send = FACES[face]({**FAIR, "store": store, "on_decision": lambda one: seen.extend(one.verdict.charges)})
    assert send(Step(client=HOG)).status == 200
    held = [store.take(seen[:1])[0].at for _ in range(4)]  # by requests that are in progress elsewhere
    assert [send(Step(client=client)).status for client in (HOG, OTHER)] == [429, 429]
    store.settle([Charge(seen[0].key, seen[0].limit, -1, at=held[0])])
    assert [send(Step(client=client)).status for client in (HOG, OTHER, HOG)] == [429, 200, 200]


def test_flask_view_shares_its_slots_fairly() -> None:
    app, seen, store = Flask(__name__), list[Charge](), MemoryStore(clock=Clock())
    limiter = RateLimiter(app, limits=[], store=store, on_decision=lambda one: seen.extend(one.verdict.charges))

    @app.get("/")
    @limiter.limit([], concurrent=2, key="all", fair_share="ip")
    def view() -> str:
        return "done"

    def ask(client: str) -> int:
        return app.test_client().get("/", environ_base={"REMOTE_ADDR": client}).status_code

    assert ask(HOG) == 200
    held = [store.take(seen[:1])[0].at for _ in range(2)]
    assert ask(OTHER) == 429
    store.settle([Charge(seen[0].key, seen[0].limit, -1, at=held[0])])
    assert [ask(HOG), ask(OTHER)] == [429, 200]


@pytest.mark.parametrize(
    ("options", "holders"),
    [
        ({"fair_share": "header:x-key"}, 2),  # those without it are one holder
        ({"fair_share": "header:x-key | ip"}, 3),
        ({"fair_share": "ip", "rules": [{"path": "/", "concurrent": 4, "fair_share": "header:x-key"}]}, 2),
        ({"fair_share": lambda request: request.client}, 3),
        ({"fair_share": "ip", "key": "header:x-pool", "missing_key": "shared"}, 3),
        ({"fair_share": "ip", "plain_keys": True}, 3),
        ({"fair_share": "ip", "app_limits": [{"limit": Concurrency(9), "key": "all"}], "key": "ip"}, 3),
    ],
)
def test_key_selects_the_holder(options: dict[str, Any], holders: int) -> None:
    rules, numbers, buckets = RuleSet(Settings(**{**FAIR, **options})), set[int](), set[tuple[str, str]]()
    requests = [
        PlainRequest(client=HOG, headers={"x-key": "a"}),
        PlainRequest(client=OTHER),
        PlainRequest(client=THIRD),
    ]
    for request in requests:
        match = rules.match(request, ())
        assert match is not None
        results = {call: call(request) for call in match.callables}
        charges = make_plan(match, request, results).charges
        limits = [(one.key, one.limit) for one in charges if one.limit.script[0] == "fair_slots"]
        ((key, limit),) = limits
        assert isinstance(limit, Concurrency)
        numbers.add(limit.holder_number)
        buckets.add((key, limit.bucket))
    assert (len(numbers), len(buckets)) == (holders, 1)


def test_limiter_takes_slots_for_a_holder() -> None:
    limiter = Limiter(MemoryStore(clock=Clock()))
    hog, other = Concurrency(3, holder="hog"), Concurrency(3, holder="other")
    with limiter.slot(hog, "mail"), limiter.slot(hog, "mail"):
        with limiter.slot(hog, "mail"):
            assert not limiter.hit(other, "mail").allowed
        assert [limiter.hit(one, "mail").allowed for one in (hog, other)] == [False, True]
