"""Runs the page on flask-limiter beside flask-limiter: both programs, and what its tables say of each."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from flask import Blueprint, Flask, abort, request
from werkzeug.test import Client

from ratelimit_mw import ConfigError
from ratelimit_mw.flask import RateLimiter
from redis_servers import RedisServer
from test_docs import ROOT, blocks

PAGE = ROOT / "docs/how-to/migrate-from-flask-limiter.md"
Call = tuple[str, str, dict[str, str]]
Build = Callable[..., tuple[Flask, Any]]


@pytest.fixture(scope="module", autouse=True)
def _peer() -> Iterator[None]:
    """Forget the package at the end: settings are read differently while it is imported."""
    importlib.import_module("flask_limiter")
    yield
    del sys.modules["flask_limiter"]


def peer(**options: Any) -> tuple[Flask, Any]:
    app, limiter = Flask("shop"), importlib.import_module("flask_limiter")
    by_address = importlib.import_module("flask_limiter.util").get_remote_address
    return app, limiter.Limiter(by_address, app=app, storage_uri="memory://", **options)


def own(**options: Any) -> tuple[Flask, Any]:
    app = Flask("shop")
    return app, RateLimiter(app, **{"limits": [], "key": "ip", "store": "memory://", **options})


def statuses(app: Any, *paths: str, **environ: str) -> list[int]:
    found = []
    for path in paths:
        with Client(app).get(path, environ_overrides={"REMOTE_ADDR": "192.0.2.1", **environ}) as answer:
            found.append(answer.status_code)
    return found


CALLS: list[Call] = [
    *[("POST", "/login", {})] * 6,
    *[("GET", "/api/search", {"X-Api-Key": "key-1"})] * 61,
    ("GET", "/api/search", {}),
    *[("GET", "/export?all=1", {})] * 9,
    *[("GET", "/export", {})] * 11,
    *[("GET", "/health", {})] * 101,
]


@pytest.mark.one_redis
@pytest.mark.parametrize("address", ["192.0.2.1", "10.0.0.1"])
def test_programs_before_and_after_give_the_same_responses(address: str, redis_server: RedisServer) -> None:
    answers = []
    for block in blocks(PAGE)[1:3]:
        assert block.language in ("{code}", "python")
        redis_server.ask("FLUSHALL")
        names: dict[str, Any] = {"__name__": "shop"}
        exec(compile(block.text.replace("redis://localhost:6379/0", redis_server.url), str(PAGE), "exec"), names)  # noqa: S102  # the point of this test
        client = Client(names["app"])
        found = [
            client.open(path, method=method, headers=headers, environ_overrides={"REMOTE_ADDR": address})
            for method, path, headers in CALLS
        ]
        answers.append([(one.status_code, one.get_data(as_text=True)) for one in found])
    assert answers[0] == answers[1]
    assert {status for status, _ in answers[0]} == ({200} if address.startswith("10.") else {200, 429})


MARKS = ("", "limit", "also", "exempt")  # on three nested blueprints, the outermost first, and on the view


def admitted(build: Build, keep_outer: str, marks: Sequence[str]) -> int:
    app, limiter = build()
    blueprints = [Blueprint(name, name) for name in "abc"]
    targets: list[Any] = [*blueprints, lambda: "hello"]
    for index, (mark, quota) in enumerate(zip(marks, (3, 4, 5, 6), strict=True)):
        if mark == "exempt":
            targets[index] = limiter.exempt(targets[index]) or targets[index]
        elif mark:
            options = {keep_outer: False} if mark == "also" else {}
            targets[index] = limiter.limit(f"{quota}/minute", **options)(targets[index]) or targets[index]
    blueprints[2].add_url_rule("/", "home", targets[3])
    blueprints[1].register_blueprint(blueprints[2])
    blueprints[0].register_blueprint(blueprints[1])
    app.register_blueprint(blueprints[0])
    return statuses(app, *["/"] * 9).count(200)


def differs(marks: Sequence[str]) -> bool:
    """Return whether the page says that these marks have another effect here."""
    outer, middle, nearest, _ = (mark in ("limit", "also") for mark in marks)
    if marks[3] == "exempt":  # on a view of a limited blueprint
        return nearest or (not marks[2] and (middle or outer))
    # the nearest blueprint has no limit, or one beside others; the one around it has one that replaces others
    return marks[3] != "limit" and marks[2] in ("", "also") and marks[1] == "limit" and outer


def test_limits_and_exemptions_of_nested_blueprints_differ_only_as_the_page_says() -> None:
    for marks in [*product(MARKS, repeat=4)][::3]:  # each mark in each place, with each of its neighbours
        there = admitted(lambda: peer(default_limits=["8/minute"]), "override_defaults", marks)
        here = admitted(lambda: own(limits="8/minute"), "final", marks)
        assert (there != here) == differs(marks), (marks, there, here)


def test_limit_and_exempt_on_one_view_are_exempt_there_and_an_error_here() -> None:
    app, limiter = peer()
    app.add_url_rule("/", "home", limiter.exempt(limiter.limit("1/minute")(lambda: "hello")))
    assert statuses(app, "/", "/") == [200, 200]
    _, limiter = own()
    with pytest.raises(ConfigError, match="got @limit and @exempt, expected one of them"):
        limiter.exempt(limiter.limit("1/minute")(lambda: "hello"))


def login() -> str:
    if request.args.get("password") != "right":
        abort(401)
    return "welcome"


def test_settle_does_what_deduct_when_does() -> None:
    right, wrong = "/login?password=right", "/login"
    calls = [right, right, right, wrong, right, wrong, right, wrong]
    for build, options in (
        (peer, {"deduct_when": lambda response: response.status_code == 401}),
        (own, {"settle": lambda _, response: int(response.status == 401)}),
        (own, {"count_status": [401]}),
    ):
        app, limiter = build()
        app.add_url_rule("/login", view_func=limiter.limit("2/minute", **options)(login))
        assert statuses(app, *calls) == [200, 200, 200, 401, 200, 401, 429, 429]


@pytest.mark.parametrize(
    ("quota", "cost", "fits"), [(100_000, 1_000, True), (100_001, 1, False), (100_000, 1_001, False)]
)
def test_a_moving_window_may_be_larger_there(quota: int, cost: int, *, fits: bool) -> None:
    app, limiter = peer(strategy="moving-window")
    app.add_url_rule("/", "home", limiter.limit(f"{quota}/hour", cost=cost)(lambda: "hello"))
    assert statuses(app, "/") == [200]
    for algorithm in ("sliding_window_log", "sliding_window_counter"):
        app, limiter = own()
        try:
            app.add_url_rule("/", "home", limiter.limit(f"{quota}/hour using {algorithm}", cost=cost)(lambda: "hello"))
        except ConfigError:
            assert (algorithm, fits) == ("sliding_window_log", False)
        else:
            assert fits or algorithm == "sliding_window_counter"
            assert statuses(app, "/") == [200]


def test_the_error_of_a_handler_describes_the_limit_in_both() -> None:
    described = []

    def slow_down(error: Any) -> tuple[str, int]:
        described.append(error.description)
        return "slow down", 429

    for build in (peer, own):
        app, limiter = build()
        app.add_url_rule("/", "home", limiter.limit("1/minute")(lambda: "hello"))
        app.register_error_handler(429, slow_down)
        assert statuses(app, "/", "/") == [200, 429]
    assert described == ["1 per 1 minute", "1/60s using sliding_window_counter"]


def test_default_limits_are_for_each_endpoint_there_and_with_the_key_route_here() -> None:
    expected = {"there": [200, 200, 429], "by endpoint": [200, 200, 429], "here": [200, 429, 429]}
    for name, (app, _) in {
        "there": peer(default_limits=["1/minute"]),
        "by endpoint": own(limits="1/minute", key="ip+route"),
        "here": own(limits="1/minute"),
    }.items():
        for path in ("a", "b"):
            app.add_url_rule(f"/{path}", path, lambda: "hello")
        assert statuses(app, "/a", "/b", "/a") == expected[name]


def test_paths_without_a_route_and_static_files_are_limited_only_here() -> None:
    for (app, _), expected in (
        (peer(application_limits=["1/minute"]), [404] * 4),
        (own(app_limits="1/minute"), [404, 429, 429, 429]),
    ):
        assert statuses(app, "/none", "/none", "/static/a", "/static/a") == expected
    app, _ = own(limits="1/minute", exempt=["/static/{file:path}"])
    assert statuses(app, *["/static/a"] * 3) == [404] * 3


def test_a_refused_request_charges_the_limits_before_there_and_nothing_here() -> None:
    """The second limit refuses; the first one, of 3, is left for the other view."""
    for (app, limiter), names, last in (
        (peer(), ("shared_limit", "scope"), 429),
        (own(), ("limit", "name"), 200),
    ):
        decorate, word = getattr(limiter, names[0]), names[1]
        app.add_url_rule("/a", "a", decorate("2/minute", **{word: "inner"})(lambda: "hello"))
        both = decorate("4/minute", **{word: "outer"})(decorate("2/minute", **{word: "b"})(lambda: "hello"))
        app.add_url_rule("/b", "b", both)
        app.add_url_rule("/c", "c", decorate("4/minute", **{word: "outer"})(lambda: "hello"))
        assert statuses(app, *["/b"] * 6) == [200, 200, 429, 429, 429, 429]
        assert statuses(app, "/c") == [last]
