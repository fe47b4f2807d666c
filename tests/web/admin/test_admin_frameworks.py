"""`flask ratelimit` and `manage.py ratelimit`: the commands for operators, with the limits on views."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from django.core.management import call_command
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Blueprint, Flask, request
from flask.views import MethodView
from httpx import ASGITransport, AsyncClient
from rest_framework.response import Response
from rest_framework.views import APIView

from ratelimit_mw import admin
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.django import Throttle
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.django.management.commands.ratelimit import Command
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import endpoint_limits as marks
from ratelimit_mw.flask import exempt as flask_exempt
from ratelimit_mw.flask import limit as flask_limit

pytestmark = pytest.mark.one_redis

LOGIN = ["--request", "POST /login/7", "--ip", "192.0.2.7"]
LATE = (
    "app.config['RATELIMIT_MW'] was written after RateLimiter(app) had read it, so it has no effect; write it before, "
    "or create RateLimiter() first and call its init_app(app) last"
)
DETAIL = "3/3600s using fixed_window"


@pytest.fixture
def app(redis_url: str) -> Iterator[Flask]:
    app = Flask("shop")
    limiter = RateLimiter(app, limits="50/minute", key="ip", store=redis_url, store_timeout=5.0, remember_refused=10)

    @app.post("/login/<int:number>")
    @limiter.limit("3/hour using fixed_window", name="login")
    def login(number: int) -> str:
        return "in"

    @app.post("/search")
    @limiter.limit("3/hour using fixed_window")
    def search() -> str:
        return "found"

    @app.get("/")
    def index() -> str:
        return "index"

    yield app
    app.extensions["ratelimit_mw"].close()


def found(text: str) -> list[tuple[str, str, int]]:
    return [(one["rule"], one["limit"], one["remaining"]) for one in json.loads(text)["buckets"]]


def test_flask_commands_find_the_limits_of_a_view(app: Flask) -> None:
    run = app.test_cli_runner().invoke
    client = app.test_client()
    codes = [client.post("/login/7", environ_overrides={"REMOTE_ADDR": "192.0.2.7"}).status_code for _ in range(5)]
    assert codes == [200, 200, 200, 429, 429]
    done = run(args=["ratelimit", "peek", *LOGIN, "--json"])
    assert (done.exit_code, found(done.output)) == (0, [("@login", DETAIL, 0)])
    done = run(args=["ratelimit", "keys", "--limited", "--json"])
    assert [(one["rule"], one["limit"]) for one in json.loads(done.output)["keys"]] == [("@login", DETAIL)]
    app.extensions["ratelimit_mw"].gate.reporter.flush()
    done = run(args=["ratelimit", "top", "--json"])
    assert [(one["rule"], one["refused"]) for one in json.loads(done.output)["clients"]] == [("@login", 2)]
    done = run(args=["ratelimit", "reset", *LOGIN, "--yes"])
    assert (done.exit_code, done.output.split(";")[0]) == (0, "1 bucket forgotten")
    done = run(args=["ratelimit", "peek", *LOGIN, "--json"])
    assert found(done.output) == [("@login", DETAIL, 3)]


def interrupted(_: float) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        ("@login", ["@login", "login"]),
        ("@search()", ["@search()", "search()", "@search", "search"]),
    ],
)
def test_flask_tail_finds_a_limit_by_each_of_its_names(
    app: Flask, stored: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ratelimit_mw.admin.commands.time", SimpleNamespace(sleep=interrupted)
    )  # ends tail once it has shown the refusals so far
    client = app.test_client()
    for target in ("/login/7", "/search"):
        codes = [client.post(target, environ_overrides={"REMOTE_ADDR": "192.0.2.7"}).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
    app.extensions["ratelimit_mw"].gate.reporter.flush()
    for name in names:
        done = app.test_cli_runner().invoke(args=["ratelimit", "tail", "--rule", name, "--most", "1", "--json"])
        assert (done.exit_code, done.stderr, json.loads(done.stdout)["rule"]) == (0, "", stored)


def test_flask_runs_callables_in_the_context_of_the_described_request(redis_url: str) -> None:
    app = Flask("shop")
    limiter = RateLimiter(app, limits="50/minute", key="ip", store=redis_url, store_timeout=5.0)

    def account(_: Any) -> str | None:
        name = request.headers.get("X-Account")
        return name and f"{name} {request.method} {request.path} {request.remote_addr} {request.view_args}"

    @app.post("/login/<int:number>")
    @limiter.limit("3/hour using fixed_window", name="login", key=account)
    @limiter.limit("7/hour using fixed_window", name="address", key="ip")
    def login(number: int) -> str:
        return "in"

    run = app.test_cli_runner().invoke
    told = {"headers": {"X-Account": "ann"}, "environ_overrides": {"REMOTE_ADDR": "192.0.2.7"}}
    assert [app.test_client().post("/login/7", **told).status_code for _ in range(4)] == [200, 200, 200, 429]
    both = {("@login", DETAIL, 0), ("@address", "7/3600s using fixed_window", 4)}
    done = run(args=["ratelimit", "peek", *LOGIN, "--header", "X-Account: ann", "--json"])
    assert (done.exit_code, done.stderr, set(found(done.stdout))) == (0, "", both)

    done = run(args=["ratelimit", "peek", *LOGIN, "--json"])
    assert (done.exit_code, found(done.stdout)) == (1, [("@address", "7/3600s using fixed_window", 4)])
    assert done.stderr.startswith("ratelimit_mw: the request has no value for the key ")
    assert " of login; " in done.stderr
    done = run(args=["ratelimit", "reset", *LOGIN, "--yes"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert " of login; " in done.stderr
    done = run(args=["ratelimit", "peek", *LOGIN, "--header", "X-Account: ann", "--json"])
    assert set(found(done.stdout)) == both
    app.extensions["ratelimit_mw"].close()


def test_flask_peek_finds_the_default_limits_of_other_paths(app: Flask) -> None:
    for target in ("/", "/no-such-page"):
        done = app.test_cli_runner().invoke(
            args=["ratelimit", "peek", "--request", target, "--ip", "192.0.2.7", "--json"]
        )
        assert found(done.output) == [("default", "50/60s using sliding_window_counter", 50)]


def test_flask_command_shows_help_and_fails_on_wrong_arguments(app: Flask) -> None:
    run = app.test_cli_runner().invoke
    assert "{peek,reset,keys,top,tail}" not in run(args=["--help"]).output
    done = run(args=["ratelimit", "--help"])
    assert done.exit_code == 0
    assert "flask ratelimit" in done.output
    assert run(args=["ratelimit", "peek", "--request", "nothing"]).exit_code == 1
    assert run(args=["ratelimit"]).exit_code == 2


def test_flask_check_reports_unenforced_decorators_and_late_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_unchecked", {})
    monkeypatch.setattr(marks, "_limited_apps", set())

    def checked(*, strict: bool, late: bool = False) -> tuple[int, list[str]]:
        app = Flask("shop")
        RateLimiter(app, limits="50/minute", strict=strict)
        if late:
            app.config["RATELIMIT_MW"] = {"limits": "5/minute"}
        done = app.test_cli_runner().invoke(args=["ratelimit", "check"])
        return done.exit_code, done.output.splitlines()

    assert checked(strict=True) == (0, ["shop: no mistakes, no warnings"])
    name = f"{__name__}.{test_flask_check_reports_unenforced_decorators_and_late_config.__name__}.<locals>.search"

    @flask_limit("3/hour")
    def search() -> str:
        return "found"

    @flask_exempt
    def hidden() -> str:
        return "free"

    code, lines = checked(strict=False, late=True)
    assert (code, lines[0]) == (0, "shop: no mistakes, 3 warnings")
    assert [line.split(": ")[0] for line in lines[1:]] == [
        f"  @exempt on {name.replace('search', 'hidden')}",
        f"  @limit on {name}",
        f"  {LATE}",
    ]
    code, lines = checked(strict=True)
    assert (code, lines[0]) == (1, "shop: 1 mistake, 1 warning")
    assert lines[1] == (
        f"  @limit on {name}: nothing enforces it, because it is not on a view or blueprint of an app with a "
        "RateLimiter; register a route or blueprint with it, put it below a decorator that hides it, or remove it"
    )
    del search, hidden


def test_flask_check_warns_of_the_messages_option() -> None:
    app = Flask("shop")
    RateLimiter(app, limits="50/minute", messages="1/second")
    text = (
        "messages: a limiter under WSGI does not see messages of websockets, so they are not limited; limit them in "
        "the app, and remove this option"
    )
    output = app.test_cli_runner().invoke(args=["ratelimit", "check"]).output
    assert output == f"shop: no mistakes, 1 warning\n  {text}\n"


COSTS_NOTHING = "@limit {}: a limit with cost = 0 is never charged and never refuses; give it a cost of at least 1"
CHOSEN = (
    "@limit {}: its key, header:x, is written by the client, which can use a new one for each request; add a limit "
    "with another key"
)
SHARED = (
    "@limit {}: all clients without header:y share one bucket of its limit, so one of them can use it up for the "
    "others; set the key to header:y | ip, or set missing_key to exempt or deny"
)


@pytest.mark.parametrize("strict", [False, True])
def test_flask_check_reports_the_problems_that_first_requests_log(
    strict: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(marks, "_unchecked", {})
    monkeypatch.setattr(marks, "_limited_apps", set())

    class View(MethodView):
        decorators: ClassVar[Any] = [flask_limit("9/minute", key="ip", final=False)]

        @flask_limit("5/minute", key="header:y", name="view", final=False)
        def get(self) -> str:
            return "got"

    app, outer, inner = Flask("shop"), Blueprint("outer", __name__), Blueprint("inner", __name__)
    rule = {"path": "/pro", "limits": {"pro": "5/minute"}, "tier": "ip"}
    RateLimiter(app, limits="50/minute", key="ip", default_tier="pro", strict=strict, rules=[rule])
    app.get("/free")(flask_limit("5/minute", cost=0)(lambda: "free"))
    app.add_url_rule("/tiers", "tiers", flask_limit({"basic": "5/minute"}, tier="ip")(lambda: "by tier"))
    app.add_url_rule("/pro", view_func=View.as_view("view"))
    inner.add_url_rule("/in", "page", lambda: "inside")
    flask_limit("5/minute", key="header:x", name="all")(outer).register_blueprint(inner)
    app.register_blueprint(outer)
    app.register_blueprint(outer, name="again", url_prefix="/again")

    weak = [COSTS_NOTHING.format("GET_free"), CHOSEN.format("all")]
    unknown = "limits on tiers: default_tier: got 'pro', expected one of basic"
    run = app.test_cli_runner().invoke
    for _ in range(2):
        done = run(args=["ratelimit", "check"])
        first, *lines = done.output.splitlines()
        assert sorted(lines) == sorted(f"  {text}" for text in [*weak, unknown, SHARED.format("view")])
        counts = "3 mistakes, 1 warning" if strict else "no mistakes, 4 warnings"
        assert (first, done.exit_code) == (f"shop: {counts}", int(strict))
    assert caplog.messages == []

    client, keys = app.test_client(), {"X": "1", "Y": "1"}
    paths = ("/free", "/pro", "/in", "/again/in", "/free")
    assert [client.get(path, headers=keys).status_code for path in paths] == [200] * 5
    logged = [text.removeprefix("ratelimit_mw: ") for text in caplog.messages]
    assert sorted(logged) == sorted([*weak, SHARED.format("view")])
    assert client.get("/tiers").status_code == 500


def ruled_shop(rules: list[Any], **settings: Any) -> Flask:
    app = Flask("shop")
    app.add_url_rule("/login", "login", str, methods=["POST"])
    app.add_url_rule("/users/<int:number>/", "user", str)
    app.add_url_rule("/files/<path:name>", "file", str)
    RateLimiter(app, limits="50/minute", rules=[{"limits": "5/minute", **rule} for rule in rules], **settings)
    return app


NO_ROUTE = (
    "  rules[{}] ({}): no route has the path {}, so the rule limits only requests that are answered with 404; correct "
    "the path, if this is not meant"
)
IDLE_METHODS = (
    "  rules[1] (PUT_login): it has methods = ['PUT'], and the routes with its path have POST, so it limits "
    "nothing; name methods of the routes, or leave methods out"
)
MISSPELLED = "  rules[{}] ({}): no route has the path {}; did you mean {}?"


def test_flask_check_compares_rules_with_routes() -> None:
    """Under `strict` a misspelled path is an error. A path without a route is only a warning: it may be intended."""

    def warnings(rules: list[Any], *, errors: int = 0, **settings: Any) -> list[str]:
        done = ruled_shop(rules, **settings).test_cli_runner().invoke(args=["ratelimit", "check"])
        assert done.exit_code == (errors > 0)
        assert done.output.startswith(f"shop: {errors or 'no'} mistake")
        return done.output.splitlines()[1:]

    known = ["/login", "/login/", "/users/7", "/users/7/", "/files/a/b", "/static/app.css"]
    known += ["/users/{name}", "/{a}/{b}", "/files/{a}/{b}", "/{rest:path}"]
    assert warnings([{"path": path, "name": f"r{number}"} for number, path in enumerate(known)]) == []
    assert warnings(
        [
            {"path": ["/log-in", "/login"]},
            {"path": "/lost/{rest:path}"},
            {"path": "/user/{name}"},
            {"path": "/users/{id:uuid}"},
        ]
    ) == [
        MISSPELLED.format(0, "log-in_login", "/log-in", "/login"),
        NO_ROUTE.format(1, "lost_rest_path", "/lost/{rest:path}"),
        MISSPELLED.format(2, "user_name", "/user/{name}", "/users/{x:int}"),
        MISSPELLED.format(3, "users_id_uuid", "/users/{id:uuid}", "/users/{x:int}"),
    ]
    assert warnings([{"path": "/log-in"}], ignore_case=True) == []
    assert warnings(
        [{"path": "/static/app.css"}, {"path": ["/admin", "/sign-in"]}, {"path": "/users/me"}], strict=True
    ) == [NO_ROUTE.format(1, "admin_sign-in", "/admin or /sign-in"), NO_ROUTE.format(2, "users_me", "/users/me")]
    assert warnings([{"path": "/log-in"}, {"path": "/login", "methods": ["PUT"]}], errors=2, strict=True) == [
        MISSPELLED.format(0, "log-in", "/log-in", "/login"),
        IDLE_METHODS,
    ]


@pytest.mark.promise(9)
def test_first_flask_request_reports_rules_without_a_route(caplog: pytest.LogCaptureFixture) -> None:
    app = ruled_shop([{"path": "/admin"}, {"path": "/log-in"}])
    statuses = [app.test_client().post("/login").status_code for _ in range(2)]
    told = [record.getMessage().removeprefix("ratelimit_mw: ") for record in caplog.records]
    assert (statuses, told) == (
        [200, 200],
        [NO_ROUTE.format(0, "admin", "/admin").strip(), MISSPELLED.format(1, "log-in", "/log-in", "/login").strip()],
    )
    strict = ruled_shop([{"path": "/log-in"}], strict=True).test_client()
    assert [strict.post("/login").status_code for _ in range(2)] == [500, 500]


def test_flask_keys_command_fails_with_a_memory_store() -> None:
    app = Flask("shop")
    RateLimiter(app, limits="50/minute")
    done = app.test_cli_runner().invoke(args=["ratelimit", "keys"])
    assert done.exit_code == 2
    assert "cannot be read from another process" in done.output + done.stderr


def test_flask_program_runs_the_ratelimit_command(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "shop.py").write_text(
        "from flask import Flask\nfrom ratelimit_mw.flask import RateLimiter\napp = Flask('shop')\n"
        f"RateLimiter(app, limits='5/hour', store={redis_url!r}, store_timeout=5.0)\n"
    )
    words = [sys.executable, "-m", "flask", "--app", "shop", "ratelimit", "peek", *LOGIN, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert found(done.stdout) == [("default", "5/3600s using sliding_window_counter", 5)]


@django_limit("3/hour using fixed_window", name="login")
def login(request: Any, number: int) -> HttpResponse:
    return HttpResponse("in")


DETAIL_OF_BURST = "2/3600s using fixed_window"


class Burst(Throttle):
    limits = "2/hour using fixed_window"
    key = "header:x-key+route"


class Reports(APIView):
    throttle_classes: Any = (Burst,)

    def get(self, request: Any) -> Response:
        return Response("report")


class Uploads(Reports):
    throttle_classes = (Throttle, Throttle)
    throttle_scope = "uploads"


urlpatterns = [
    path("login/<int:number>", login),
    path("reports", Reports.as_view()),
    path("uploads", Uploads.as_view()),
]


async def shop(request: Any) -> str:
    """A key callable that must be awaited."""
    return "12"


def options(redis_url: str, **settings: Any) -> Any:
    policy = {"limits": "50/minute", "key": "ip", "store": redis_url, "store_timeout": 5.0, **settings}
    return override_settings(
        ROOT_URLCONF=__name__, RATELIMIT_MW=policy, MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"]
    )


def manage(*words: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    try:
        call_command(Command(), *words, stdout=out, stderr=err)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def test_django_commands_find_the_limits_of_a_view(redis_url: str) -> None:
    with options(redis_url):
        client = Client(REMOTE_ADDR="192.0.2.7")
        assert [client.post("/login/7").status_code for _ in range(4)] == [200, 200, 200, 429]
        code, out, _ = manage("peek", *LOGIN, "--json")
        assert (code, found(out)) == (0, [("@login", DETAIL, 0)])
        code, out, _ = manage("keys", "--limited", "--json")
        assert [one["rule"] for one in json.loads(out)["keys"]] == ["@login"]
        code, out, _ = manage("reset", *LOGIN, "--yes")
        assert (code, out.split(";")[0]) == (0, "1 bucket forgotten")
        assert Client(REMOTE_ADDR="192.0.2.8").post("/login/7").status_code == 200
        assert found(manage("peek", *LOGIN, "--json")[1]) == [("@login", DETAIL, 3)]
        code, out, _ = manage("peek", "--request", "/elsewhere", "--ip", "192.0.2.7", "--json")
        assert found(out) == [("default", "50/60s using sliding_window_counter", 50)]
        assert manage("peek", "--request", "nothing")[0] == 1


def ann(get_response: Any) -> Any:
    """A middleware that authenticates a user by primary key and name, as Django's own does."""

    def known(request: Any) -> Any:
        request.user = SimpleNamespace(is_authenticated=True, pk=7, username="ann")
        return get_response(request)

    return known


def test_django_commands_say_that_the_key_is_the_primary_key(redis_url: str) -> None:
    middleware = [f"{__name__}.ann", "ratelimit_mw.django.RateLimitMiddleware"]
    described = ["--request", "/none", "--ip", "192.0.2.7", "--user"]
    with (
        options(redis_url, key="user | ip", limits="2/hour"),
        override_settings(MIDDLEWARE=middleware),
    ):
        client = Client()
        assert [client.get("/none").status_code for _ in range(3)] == [404, 404, 429]
        code, out, err = manage("reset", *described, "ann", "--yes")
        assert (code, out.split(";")[0]) == (0, "0 buckets forgotten")
        assert err.startswith(
            "no such bucket exists: nothing is counted for user=ann, which this request has for the key 'user | ip' of "
            "default; `user` is the first of identity, pk,"
        )
        assert err.endswith("in Django the primary key\n")
        assert client.get("/none").status_code == 429
        assert manage("reset", *described, "7", "--yes")[1].split(";")[0] == "1 bucket forgotten"
        assert Client().get("/none").status_code == 404  # the other process remembers the refusal for a second


def test_django_peek_passes_a_django_request_to_callables(redis_url: str) -> None:
    def is_seventh(request: Any) -> bool:
        raw = request.raw
        return bool(
            (raw.resolver_match.kwargs["number"], raw.GET["a"], raw.META["REMOTE_ADDR"], raw.headers.get("X-Key"))
            == (7, "b c", "192.0.2.7", "one,two")
            and (request.user, raw.user.is_authenticated, request.route) == ("ann", True, "/login/<int:number>")
        )

    def tenant(request: Any) -> str | None:
        return f"{request.raw.path} {request.raw.user.is_anonymous}"

    rules = [
        {
            "name": "seventh",
            "path": "/login/{n}",
            "limits": "4/hour using fixed_window",
            "when": is_seventh,
            "key": tenant,
        },
    ]
    words = ("peek", "--request", "POST /login/7?a=b%20c", "--ip", "192.0.2.7", "--user", "ann", "--json")
    with options(redis_url, rules=rules, plain_keys=True):
        code, out, err = manage(*words, "--header", "X-Key: one", "--header", "X-Key: two")
        assert (code, err, set(found(out))) == (
            0,
            "",
            {("seventh", "4/3600s using fixed_window", 4), ("@login", DETAIL, 3)},
        )
        assert any("/login/7" in one["key"] for one in json.loads(out)["buckets"])
        assert found(manage(*words)[1]) == [("@login", DETAIL, 3)]


def until_admitted(client: Client) -> int:
    """Return the first status of the reports that is not 429. This process caches a refusal for a second."""
    end = time.monotonic() + 60
    while (status := client.get("/reports").status_code) == 429 and time.monotonic() < end:
        time.sleep(0.05)
    return status


def test_django_reset_of_a_key_admits_a_client_refused_by_a_throttle(redis_url: str) -> None:
    with options(redis_url):
        client, other = (Client(headers={"X-Key": name}) for name in ("a", "b"))
        assert [client.get("/reports").status_code for _ in range(3)] == [200, 200, 429]
        assert [other.get("/reports").status_code for _ in range(3)] == [200, 200, 429]
        described = ("--request", "/reports", "--ip", "127.0.0.1", "--header", "X-Key: a")
        code, out, _ = manage("peek", *described, "--json")
        assert (code, found(out)) == (
            0,
            [("default", "50/60s using sliding_window_counter", 44), (f"@{__name__}.Burst()", DETAIL_OF_BURST, 0)],
        )
        code, out, _ = manage("keys", "--limited", "--rule", f"{__name__}.Burst", "--json")
        (first, second) = json.loads(out)["keys"]
        assert (first["rule"], first["limit"]) == (f"@{__name__}.Burst()", DETAIL_OF_BURST)
        code, out, _ = manage("reset", "--key", first["key"], "--yes")
        assert (code, out.split(";")[0]) == (0, "1 bucket forgotten")
        assert [one["key"] for one in json.loads(manage("keys", "--limited", "--json")[1])["keys"]] == [second["key"]]
        assert manage("reset", "--key", second["key"], "--yes")[0] == 0
        assert (manage("reset", "--all", "--yes")[0], manage("keys", "--json")[1]) == (
            0,
            '{"keys": [\n], "seen": 1.0}\n',
        )
        for one in (client, other):
            assert until_admitted(one) == 200


def test_django_commands_find_the_throttles_of_a_request(redis_url: str) -> None:
    described = ("--request", "/reports", "--ip", "127.0.0.1", "--header", "X-Key: a")
    with options(redis_url):
        client, other = (Client(headers={"X-Key": name}) for name in ("a", "b"))
        for one in (client, other):
            assert [one.get("/reports").status_code for _ in range(3)] == [200, 200, 429]
        code, out, _ = manage("reset", *described, "--yes")
        assert (code, out.split(";")[0]) == (0, "2 buckets forgotten")
        after = {(one["rule"], one["remaining"]) for one in json.loads(manage("keys", "--json")[1])["keys"]}
        assert after == {(f"@{__name__}.Burst()", 0)}  # of the other client
        assert found(manage("peek", *described, "--json")[1])[1] == (f"@{__name__}.Burst()", DETAIL_OF_BURST, 2)
        code, _, err = manage("reset", "--request", "/reports", "--ip", "127.0.0.1", "--yes")
        assert code == 1
        assert "the request has no value for the key 'header:x-key+route' of Burst;" in err


def test_django_peek_finds_scoped_throttles_unless_the_client_is_safelisted(redis_url: str) -> None:
    words = ("--request", "/uploads", "--ip", "192.0.2.7", "--user", "7", "--json")
    with options(redis_url), override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {"uploads": "20/day"}}):
        assert found(manage("peek", *words)[1]) == [
            ("default", "50/60s using sliding_window_counter", 50),
            ("@uploads()", "20/86400s using sliding_window_counter", 20),
        ]
    with options(redis_url, safelist=["192.0.2.7"]):
        assert found(manage("peek", *words)[1]) == []
    with options(redis_url), override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": {}}):
        code, out, err = manage("peek", *words)
        assert (code, out) == (1, "")
        assert "DEFAULT_THROTTLE_RATES: got no rate for 'uploads'" in err


def test_reset_of_a_key_admits_a_client_refused_by_a_fastapi_dependency(redis_url: str) -> None:
    policy: dict[str, Any] = {"limits": "50/minute", "key": "ip", "store": redis_url, "store_timeout": 5.0}
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit("2/hour using fixed_window", name="home"))])
    async def home() -> str:
        return "home"

    async def run() -> None:
        transport = ASGITransport(RateLimitMiddleware(app, **policy), client=("192.0.2.7", 5))
        async with AsyncClient(transport=transport, base_url="http://shop") as client:
            assert [(await client.get("/")).status_code for _ in range(3)] == [200, 200, 429]
            (limited,) = (await asyncio.to_thread(admin.keys, policy, limited=True)).keys
            assert limited.rule == "@home"
            after = await asyncio.to_thread(admin.reset_key, policy, limited.key, rule="home")
            assert [one.remaining for one in after.buckets] == [2]
            for _ in range(1200):  # this process caches a refusal for a second
                if (status := (await client.get("/")).status_code) == 200:
                    break
                await asyncio.sleep(0.05)
            assert status == 200

    asyncio.run(run())


def test_django_program_runs_the_ratelimit_command(tmp_path: Path, redis_url: str) -> None:
    policy = {"limits": "5/hour", "key": "ip", "store": redis_url, "store_timeout": 5.0}
    lines = ["INSTALLED_APPS = ['ratelimit_mw.django']", "ROOT_URLCONF = 'site_settings'", "urlpatterns = []"]
    (tmp_path / "site_settings.py").write_text("\n".join([*lines, f"RATELIMIT_MW = {policy!r}", ""]))
    words = [sys.executable, "-m", "django", "ratelimit", "peek", *LOGIN, "--json"]
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "site_settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert found(done.stdout) == [("default", "5/3600s using sliding_window_counter", 5)]


def test_django_peek_accepts_an_async_key(redis_url: str) -> None:
    with options(redis_url, key=shop):
        code, out, _ = manage("peek", "--request", "/elsewhere", "--ip", "192.0.2.7", "--json")
        assert (code, found(out)) == (0, [("default", "50/60s using sliding_window_counter", 50)])


def test_django_top_fails_with_a_memory_store_and_without_settings() -> None:
    with options("memory://"):
        code, out, err = manage("top")
        assert (code, out) == (2, "")
        assert "cannot be read from another process" in err
    with override_settings(RATELIMIT_MW=None):
        code, out, err = manage("top")
        assert (code, out) == (1, "")
        assert "RATELIMIT_MW" in err
