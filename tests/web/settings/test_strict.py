"""With `strict = true`, startup warnings about settings that limit less than intended become errors."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import ConfigError, MemoryStore, asgi, wsgi
from ratelimit_mw.engine import gate
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.settings import Settings
from ratelimit_mw.starlette import limit
from web.asgi_talk import HTTP, LIFESPAN, SHUTDOWN, STARTUP, App200, talk
from web.django_site import OURS, wsgi_site
from web.frameworks import test_django_checks as checks
from web.wsgi_talk import Server, hello, read


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    monkeypatch.setattr("sys.argv", ["pytest"])


ALL = {"path": "/{rest:path}", "limits": "9/hour", "name": "all"}
ONE = {"path": "/login", "limits": "5/hour", "name": "login"}
PENALTY = "3 refusals per minute: 1 hour"

ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"rules": [ALL, ONE]}, "rules[1] (login) can never match: rules[0] (all)"),
    ({"key": "header:x"}, "rule default: its key, header:x, is written by the client"),
    ({"limits": {"a": "5/hour", "b": "9/hour"}, "tier": "cookie:t"}, "rule default: its tier, cookie:t, is"),
    ({"rules": [{**ONE, "penalty": PENALTY, "shadow": True}]}, "rule login: a shadow rule refuses no request, so"),
    ({"rules": [{**ONE, "limits": {"limit": "5/hour", "key": "all"}, "penalty": PENALTY}]},
     "rule login: its penalty never acts: it counts refusals by limits with the key"),
    ({"rules": [{**ONE, "limits": [], "count_status": [401]}]}, "rule login: settle and count_status have no effect"),
    ({"tier": "user", "default_tier": "pro"}, "tier, default_tier: there are no limits by tier"),
    ({"default_tier": "pro", "rules": [ONE]}, "default_tier: there are no limits by tier"),
    ({"rules": [ONE, {"path": "/{rest:path}", "exempt": True, "name": "free"}]},
     "limits: rules[1] (free) exempts every path, so the default limits never apply; give that rule"),
    ({"rules": [{"path": "/{rest:path}", "limits": [], "name": "free"}]},
     "limits: rules[0] (free) exempts every path, so the default limits never apply; give that rule"),
    ({"queue": 5}, "queue: no limit here has concurrency slots"),
]  # fmt: skip
FREE: dict[str, Any] = {"path": "/{rest:path}", "exempt": True}
ONLY_WARNED: list[dict[str, Any]] = [
    {"limits": "5/minute; 9/minute"},
    {"limits": {"limit": "5/minute using gcra", "max_delay": 2.0}, "max_waiting": 0},
    {"rules": [{**ONE, "penalty": PENALTY, "key": "all"}]},
]


def over_asgi(**settings: Any) -> None:
    _ = asgi.RateLimitMiddleware(App200(), **settings)


def over_wsgi(**settings: Any) -> None:
    _ = wsgi.RateLimitMiddleware(hello, **settings)


BOTH = pytest.mark.parametrize("serve", [over_asgi, over_wsgi], ids=["asgi", "wsgi"])


@BOTH
@pytest.mark.promise(9)
@pytest.mark.parametrize(("settings", "begins"), ERRORS, ids=[begins[:40] for _, begins in ERRORS])
def test_settings_that_limit_less_than_intended_are_errors(
    serve: Any, settings: dict[str, Any], begins: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = {"limits": "9/hour", "store": MemoryStore(), **settings}
    serve(**own)
    assert [message[: len(begins) + 14] for message in caplog.messages] == [f"ratelimit_mw: {begins}"]
    caplog.clear()
    with pytest.raises(ConfigError) as caught:
        serve(**own, strict=True)
    assert [problem[: len(begins)] for problem in caught.value.problems] == [begins]
    assert caplog.messages == []


def test_message_limits_with_a_forgeable_key_are_an_error() -> None:
    rule = {**ONE, "messages": {"limit": "9/second", "key": "header:x"}}
    with pytest.raises(ConfigError, match=r"^rule login/messages: its key, header:x, is written by the client"):
        over_asgi(limits="9/hour", messages="9/second", rules=[rule], strict=True)


@BOTH
@pytest.mark.parametrize("settings", ONLY_WARNED)
def test_settings_that_do_not_limit_less_stay_warnings(
    serve: Any, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    serve(**{"limits": "9/hour", "store": MemoryStore(), **settings, "strict": True})
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@BOTH
@pytest.mark.promise(9)
def test_the_memory_store_with_several_workers_is_an_error(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    with pytest.raises(ConfigError, match=r"store: memory:// counts in one process, and there are 3: "):
        serve(limits="9/hour", strict=True)
    serve(limits="9/hour", store=MemoryStore(), strict=True)


@BOTH
def test_one_error_lists_all_findings(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    with pytest.raises(ConfigError) as caught:
        serve(limits="9/hour", key="header:x", rules=[ALL, ONE], strict=True)
    assert [problem.split(" ")[0] for problem in caught.value.problems] == [
        "rules[1]",
        "rule",
        "rule",
        "rule",
        "store:",
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"limits": []},
        {"rules": [{**FREE, "methods": ["GET"]}]},
        {"rules": [{**FREE, "host": "example.com"}]},
        {"rules": [{**FREE, "preflight": True}]},
        {"rules": [{**FREE, "when": lambda request: request.method == "GET"}]},
        {"rules": [{**FREE, "final": False}]},
        {"rules": [{"path": "/{rest:path}", "limits": [], "concurrent": 5}]},
        {"rules": [{**FREE, "path": "/static/{rest:path}"}]},
    ],
)
def test_an_exempt_rule_that_disables_no_default_limit_is_accepted(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    over_wsgi(**{"limits": "9/hour", "rules": [FREE], **settings, "strict": True})
    assert caplog.messages == []


@pytest.mark.parametrize("value", ["yes", "true", "1"])
def test_strict_can_be_set_in_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATELIMIT_MW_STRICT", value)
    with pytest.raises(ConfigError, match="is written by the client"):
        over_asgi(limits="9/hour", key="header:x")
    over_asgi(limits="9/hour", key="header:x", strict=False)


def test_strict_can_be_set_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('limits = "9/hour"\nkey = "header:x"\nstrict = true\n', "utf-8")
    with pytest.raises(ConfigError, match="is written by the client"):
        wsgi.RateLimitMiddleware(hello, Settings.load(file))


def test_findings_from_the_first_request_stay_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """An untrusted proxy and a WSGI server's processes show only at the first request, so they remain warnings."""
    app = wsgi.RateLimitMiddleware(hello, limits="9/hour", strict=True)
    read(Server(HTTP_X_FORWARDED_FOR="203.0.113.9", **{"wsgi.multiprocess": True}).ask(app))
    assert [message.split(":")[1] for message in caplog.messages] == [" store", " trusted_proxies"]


# limits on endpoints that nothing enforces


@limit("5/minute")
async def limited(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


async def bare(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


limit("5/minute")(bare)  # as `@limit` above `@app.get`: the route has the function without its limit
UNHEEDED = (
    "/bare has no limit: its route was registered before `limit` wrapped bare; put `limit` below the decorator that "
    "registers the route"
)


def app_of(*, strict: bool) -> Starlette:
    layer = Middleware(asgi.RateLimitMiddleware, limits="9/hour", strict=strict)
    return Starlette(routes=[Route("/bare", bare)], middleware=[layer])


def started(app: Any) -> list[Any]:
    """Return the messages that the app sends to the server in its lifespan."""
    said: list[Any] = []
    given = [STARTUP, SHUTDOWN]

    async def send(message: Any) -> None:
        said.append(message)

    async def receive() -> Any:
        return given.pop(0)

    with suppress(ConfigError):  # Starlette sends a message and raises the error, too
        asyncio.run(app(dict(LIFESPAN), receive, send))
    return said


@pytest.mark.promise(9)
def test_a_limit_above_the_route_decorator_fails_the_startup(caplog: pytest.LogCaptureFixture) -> None:
    assert started(app_of(strict=False))[0] == {"type": "lifespan.startup.complete"}
    assert caplog.messages == [f"ratelimit_mw: {UNHEEDED}"]
    app = app_of(strict=True)
    assert started(app)[0] == {"type": "lifespan.startup.failed", "message": f"ratelimit_mw: {UNHEEDED}"}
    with pytest.raises(ConfigError, match="/bare has no limit"):  # if the server goes on, every request fails
        talk(app, HTTP, path="/bare")


@pytest.mark.promise(9)
def test_endpoint_limits_need_a_middleware_or_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATELIMIT_MW_STRICT", "true")

    @limit("5/minute")
    async def alone(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.url.path)

    @limit("5/minute", store="memory://")
    async def told(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.url.path)

    app = Starlette(routes=[Route("/alone", alone), Route("/told", told)])
    for _ in range(2):
        with pytest.raises(ConfigError, match="limits on endpoints count in this process alone"):
            talk(app, HTTP, path="/alone")
    assert talk(app, HTTP, path="/told").sent[0]["status"] == 200


def flask_app() -> Flask:
    app = Flask(__name__)
    app.add_url_rule("/login", "login", flask_limit("1/minute")(lambda: "in"))
    return app


@pytest.mark.promise(9)
@pytest.mark.parametrize("by", ["config", "settings", "environment"])
def test_a_flask_app_without_an_initialized_limiter_responds_500(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = flask_app()
    if by == "environment":
        monkeypatch.setenv("RATELIMIT_MW_STRICT", "true")
    else:
        own: dict[str, Any] = {"limits": "9/hour", "strict": True}
        app.config["RATELIMIT_MW"] = own if by == "config" else Settings(**own)
    statuses = [app.test_client().get("/login").status_code for _ in range(3)]
    assert statuses == [500, 500, 500]
    RateLimiter(other := flask_app(), limits="9/hour")
    app.view_functions.clear()
    assert other.test_client().get("/login").status_code == 200


@pytest.mark.promise(9)
def test_a_limit_hidden_from_flask_by_a_decorator_is_an_error() -> None:
    app = Flask(__name__)
    app.testing = True
    RateLimiter(app, limits="9/hour", strict=True)
    inner: Any = flask_limit("1/minute")(lambda: "in")
    app.add_url_rule("/login", "login", lambda: inner())  # noqa: PLW0108  # it hides the limit
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"@limit on .*: nothing enforces it"):
            app.test_client().get("/login")


def test_a_strict_flask_app_does_not_fail_other_apps() -> None:
    strict, other = Flask("strict"), Flask("other")
    strict.testing = other.testing = True
    RateLimiter(strict, limits="9/hour", strict=True)
    RateLimiter(other, limits="9/hour")
    hidden: Any = flask_limit("1/minute")(lambda: "in")
    strict.add_url_rule("/", "home", lambda: hidden())  # noqa: PLW0108  # it hides the limit
    other.add_url_rule("/", "home", lambda: "hello")
    assert other.test_client().get("/").status_code == 200
    with pytest.raises(ConfigError, match=r"@limit on .*: nothing enforces it"):
        strict.test_client().get("/")
    assert other.test_client().get("/").status_code == 200


@pytest.mark.promise(9)
def test_a_django_project_without_the_middleware_fails_checks_and_requests(tmp_path: Path) -> None:
    strict = 'RATELIMIT_MW = {"limits": "9/minute", "key": "ip", "strict": True}'
    done = checks.manage(checks.project(tmp_path, strict, urls=checks.MARKED), "check")
    assert done.returncode == 1
    assert [kind for kind, _ in checks.told(done)] == ["W001", "W001"]
    # Django imports the URLs, and the limits on their views, in the first request
    code = "import served; from django.test import Client; Client().get('/'); Client().get('/')"
    served = checks.manage(checks.project(tmp_path, strict, urls=checks.MARKED, installed=()), "shell", "-c", code)
    assert "ConfigError: 1 limits on views" in served.stderr


def test_other_django_checks_also_fail_a_strict_project(tmp_path: Path) -> None:
    strict = 'RATELIMIT_MW = {"limits": "9/minute", "key": "user", "strict": True}'
    done = checks.manage(checks.project(tmp_path, strict, OURS, urls=checks.HIDDEN), "check")
    assert done.returncode == 1
    assert [kind for kind, _ in checks.told(done)] == ["W002", "W003"]


def test_django_settings_that_limit_less_than_intended_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    own = {"limits": "9/minute", "key": "header:x"}
    wsgi_site([], own)
    assert "is written by the client" in caplog.text
    with pytest.raises(ConfigError, match="RATELIMIT_MW: rule default: its key"):
        wsgi_site([], {**own, "strict": True})


@pytest.mark.parametrize("strict", [False, True])
def test_a_timeout_that_looks_like_milliseconds_is_a_warning(strict: bool, caplog: pytest.LogCaptureFixture) -> None:
    gate.Gate(Settings(limits="5/minute", store_timeout=5.0, strict=strict))
    assert caplog.messages == []
    gate.Gate(Settings(limits="5/minute", store_timeout=50, strict=strict))
    (message,) = caplog.messages
    assert message == (
        "ratelimit_mw: store_timeout: got 50, which is in seconds: while the store does not answer, a request waits "
        "that long; write milliseconds as a fraction, such as 0.05 for 50 milliseconds"
    )


def test_a_folder_for_metrics_without_metrics_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gate.Gate(Settings(limits="5/minute", metrics_folder=str(tmp_path), strict=True))
    assert caplog.messages == [
        "ratelimit_mw: metrics_folder has no effect without metrics; set metrics = true, or remove it"
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        ("key", {"limits": "5/minute", "key": "header:X_Api_Key | ip"}),
        ("tier", {"limits": {"a": "5/minute"}, "tier": "header:X_Api_Key"}),
        ("limits[0].key", {"limits": [{"limit": "5/minute", "key": "ip+header:X_Api_Key"}]}),
        ("rules[0].key", {"limits": [], "rules": [{"path": "/", "limits": "1/minute", "key": "header:X_Api_Key"}]}),
        ("safelist[0].header", {"limits": "5/minute", "safelist": [{"header": "X_Api_Key", "value": "v"}]}),
        ("blocklist[0].header", {"limits": "5/minute", "blocklist": [{"header": "X_Api_Key", "value": "v"}]}),
    ],
)
def test_a_header_name_with_an_underscore_is_an_error(place: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**settings)
    assert str(caught.value) == (
        f"{place}: got the header 'X_Api_Key', expected a name without '_', which WSGI cannot tell from '-': "
        "'X-Api-Key'"
    )
