"""Startup checks report each doubtful setting once, with the fix."""

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import AsyncLimiter, Concurrency, ConfigError, Limiter, MemoryStore, asgi, flask, starlette, wsgi
from ratelimit_mw.checks.workers import configured_workers, warn_once_of_workers
from ratelimit_mw.engine import gate
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.rules import deployment_checks as advice
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import HTTP, LIFESPAN, SHUTDOWN, STARTUP, App200, talk
from web.django_site import asgi_site, wsgi_site
from web.faces import _hello
from web.plain_request import PlainRequest
from web.wsgi_talk import Server, hello, read

Ask = Callable[..., None]
BY = "using sliding_window_counter"


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    monkeypatch.delenv("GUNICORN_CMD_ARGS", raising=False)
    monkeypatch.setattr("sys.argv", ["pytest"])


def over_asgi(**settings: Any) -> Ask:
    app = asgi.RateLimitMiddleware(App200(), **{"store": MemoryStore(clock=Clock()), **settings})

    def ask(client: str | None = "192.0.2.1", **headers: str) -> None:
        lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        talk(app, HTTP, client=client and (client, 50000), headers=lines)

    return ask


def over_wsgi(**settings: Any) -> Ask:
    app = wsgi.RateLimitMiddleware(hello, **{"store": MemoryStore(clock=Clock()), **settings})

    def ask(client: str | None = "192.0.2.1", **headers: str) -> None:
        environ = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        read(Server(REMOTE_ADDR=client or "", **environ).ask(app))

    return ask


BOTH = pytest.mark.parametrize("serve", [over_asgi, over_wsgi], ids=["asgi", "wsgi"])


def check(caplog: pytest.LogCaptureFixture, *messages: str) -> None:
    """Check that this package logged exactly these messages, in order, as warnings."""
    assert caplog.messages == [f"ratelimit_mw: {message}" for message in messages]
    assert {(record.name, record.levelno) for record in caplog.records} <= {("ratelimit_mw", logging.WARNING)}


# messages of websockets

UNSEEN = (
    "{}messages: {} does not see messages of websockets, so they are not limited; limit them in the app, and remove "
    "this option"
)


def unseen(serve: Any, settings: Mapping[str, Any]) -> list[str]:
    """Return the warnings about `messages` if nothing limits the messages of websockets."""
    if serve is over_asgi:
        return []
    places = ["" if settings.get("messages") else None]
    places += [f"rules[{index}] ({rule['name']})." if rule.get("messages") else None
               for index, rule in enumerate(settings.get("rules", ()))]  # fmt: skip
    return [UNSEEN.format(place, "a limiter under WSGI") for place in places if place is not None]


def over_flask(**settings: Any) -> Ask:
    app = Flask(__name__)
    RateLimiter(app, settings)

    def ask() -> None:
        app.test_client().get("/")

    return ask


def over_django(kind: Any) -> Any:
    return lambda **settings: kind([], settings)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("serve", "observer"),
    [
        (over_wsgi, "a limiter under WSGI"),
        (over_flask, "a limiter under WSGI"),
        (over_django(wsgi_site), "the middleware of Django"),
        (over_django(asgi_site), "the middleware of Django"),
    ],
    ids=["wsgi", "flask", "django", "django under asgi"],
)
def test_limits_on_websocket_messages_without_effect_are_reported(
    serve: Any, observer: str, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rules = [{"path": "/a", "limits": [], "messages": [], "name": "a"}, {**ONE, "messages": "1/second"}]
    settings = {"limits": "5/minute", "messages": "1/minute", "rules": rules}
    texts = [UNSEEN.format("", observer), UNSEEN.format("rules[1] (login).", observer)]
    if strict:
        with pytest.raises(ConfigError) as caught:
            serve(**settings, strict=True)
        assert [re.sub("^RATELIMIT_MW(: |\\.)", "", problem) for problem in caught.value.problems] == texts
        return
    serve(**settings)
    check(caplog, *texts)


# rules that never match


def never(index: int, name: str, first: int, other: str) -> str:
    return (
        f"rules[{index}] ({name}) can never match: rules[{first}] ({other}) is final and matches all of its requests; "
        "put it before that one, or set final = false there"
    )


ALL = {"path": "/{rest:path}", "limits": "9/hour", "name": "all"}
ONE = {"path": "/login", "limits": "5/hour", "name": "login"}


@BOTH
@pytest.mark.parametrize(
    ("rules", "warned"),
    [
        ([ALL, ONE], [(1, "login", 0, "all")]),
        ([ALL, ONE, {**ONE, "name": "again"}], [(1, "login", 0, "all"), (2, "again", 0, "all")]),
        ([ONE, {**ONE, "name": "again"}], [(1, "again", 0, "login")]),
        ([{**ALL, "methods": ["GET"]}, {**ONE, "methods": ["HEAD", "GET"]}], [(1, "login", 0, "all")]),
        ([{**ALL, "host": "*.a.test"}, {**ONE, "host": "*.a.test"}], [(1, "login", 0, "all")]),
        ([{**ALL, "exempt": True, "limits": None}, ONE], [(1, "login", 0, "all")]),
        ([ONE, ALL], []),
        ([{**ALL, "final": False}, ONE], []),
        ([{**ALL, "shadow": True}, ONE], []),
        ([{**ALL, "when": lambda _: True}, ONE], []),
        ([{**ALL, "methods": ["GET"]}, ONE], []),
        ([{**ALL, "methods": ["GET"]}, {**ONE, "methods": ["POST"]}], []),
        ([{**ALL, "host": "a.test"}, ONE], []),
        ([{**ALL, "preflight": True}, ONE], []),
        ([ALL, {**ONE, "preflight": True}], []),
    ],
)
def test_rules_that_never_match_are_reported(
    serve: Any, rules: list[dict[str, Any]], warned: list[tuple[Any, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(limits=[], rules=[{key: value for key, value in rule.items() if value is not None} for rule in rules])
    ask()
    ask()
    check(caplog, *(never(*one) for one in warned))


@BOTH
@pytest.mark.parametrize(("ignore_case", "warned"), [(False, []), (True, [never(1, "upper", 0, "login")])])
def test_rules_that_differ_only_in_case_are_reported_with_ignore_case(
    serve: Any, ignore_case: bool, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    rules = [ONE, {**ONE, "path": "/LOGIN", "name": "upper"}]
    serve(limits=[], rules=rules, ignore_case=ignore_case)()
    check(caplog, *warned)


# limits that never act


def idle(rule: str, limit: str, other: str) -> str:
    return f"rule {rule}: {limit} never refuses what {other} admits; remove it, or make it the smaller one"


@BOTH
@pytest.mark.parametrize(
    ("limits", "warned"),
    [
        ("5/minute; 9/minute", [(f"9/60s {BY}", f"5/60s {BY}")]),
        ("9/minute; 5/minute", [(f"9/60s {BY}", f"5/60s {BY}")]),
        ("5/minute; 300/hour", []),
        ("5/minute; 320/hour", [(f"320/3600s {BY}", f"5/60s {BY}")]),
        ("5/minute; 319/hour", []),
        ("1/minute; 64/hour", [(f"64/3600s {BY}", f"1/60s {BY}")]),
        ("1/minute; 63/hour", []),
        ("5/hour; 5/minute", [(f"5/60s {BY}", f"5/3600s {BY}")]),
        ("5/minute; 5/hour", [(f"5/60s {BY}", f"5/3600s {BY}")]),
        ("5/minute burst 5 using gcra; 9/minute using gcra", [("9/60s using gcra", "5/60s using gcra")]),
        (
            [{"limit": "5/minute using smooth", "name": "slow"}, "9/minute using smooth"],
            [("9/60s using smooth", "5/60s using smooth")],
        ),
        ([{"limit": "5/minute warmup 9 using smooth", "name": "slow"}, "9/minute warmup 9 using smooth"], []),
        (["5/minute", {"limit": "9/minute", "key": "all"}], []),
        (["5/minute", {"limit": "9/minute", "cost": 2}], []),
        ([{"limit": "5/minute", "shadow": True}, "9/minute"], []),
        (["5/minute", {"limit": "9/minute", "shadow": True}], [(f"9/60s {BY}", f"5/60s {BY}")]),
        ("5/minute", []),
        ([], []),
    ],
)
def test_limits_that_never_refuse_are_reported(
    serve: Any, limits: Any, warned: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(limits=limits)
    ask()
    ask()
    check(caplog, *(idle("default", *one) for one in warned))


# settings on slots


NOTHING_SHARED = "each of its values has slots of its own; give the slots a key in common, such as 'all'"
NO_QUEUE = "queue_timeout: no limit here has a queue; set queue, or remove it"


def no_slots(words: str, them: str) -> str:
    return f"{words}: no limit here has concurrency slots; set concurrent, or remove {them}"


@BOTH
@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"queue": 5}, [no_slots("queue", "it")]),
        (
            {"queue": 5, "queue_timeout": 1, "slot_lifetime": 20, "slot_retry": 2},
            [no_slots("queue, queue_timeout, slot_lifetime, slot_retry", "them")],
        ),
        ({"queue": 5, "concurrent": 1}, []),
        ({"slot_retry": 2, "rules": [{"path": "/", "concurrent": 1}]}, []),
        ({"slot_lifetime": 20, "app_limits": [Concurrency(2)]}, []),
        ({"concurrent": 1, "queue_timeout": 3}, [NO_QUEUE]),
        ({"concurrent": 1, "queue_timeout": 3, "queue": 1}, []),
        ({"concurrent": 1, "queue_timeout": 3, "shadow": True, "queue": 1}, []),
        ({"queue_timeout": 3, "rules": [{"path": "/", "concurrent": 1, "queue": 2}]}, []),
        ({"rules": [{"path": "/", "concurrent": 1, "queue_timeout": 2}]},
         ["rule root: its queue_timeout has no effect without a queue; set queue, or remove it"]),
        ({"queue": 3, "rules": [{"path": "/", "concurrent": 1, "queue_timeout": 2}]}, []),
        ({"fair_share": "ip"}, [no_slots("fair_share", "it")]),
        ({"fair_share": "ip", "key": "ip", "concurrent": 1}, [f"fair_share: {NOTHING_SHARED}"]),
        ({"fair_share": "ip", "key": "all", "concurrent": 1}, []),
        ({"fair_share": "ip", "app_limits": [{"limit": Concurrency(9), "key": "all"}]}, []),
        ({"rules": [{"path": "/", "concurrent": 1, "key": "ip", "fair_share": "ip"}]},
         [f"rule root: its fair_share has no effect: {NOTHING_SHARED}"]),
        ({"slot_retry": 2, "latency_goal": 0.25}, []),
        ({"queue": 0, "queue_timeout": 5, "slot_lifetime": 15, "slot_retry": 1}, []),  # the defaults
    ],
)  # fmt: skip
def test_slot_settings_without_effect_are_reported(
    serve: Any, settings: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    serve(limits="5/minute", **settings)
    check(caplog, *warned)


def test_slot_settings_that_flask_views_may_use_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    RateLimiter(Flask(__name__), limits="5/minute", queue=5, slot_retry=2)
    check(caplog)


# keys and tiers that clients can forge


def forgeable(rule: str, key: str) -> str:
    return (
        f"rule {rule}: its key, {key}, is written by the client, which can use a new one for each request; "
        "add a limit with another key, or app_limits"
    )


def forgeable_messages(rule: str, key: str) -> str:
    return forgeable(rule, key).removesuffix(", or app_limits")


def shared(place: str, key: str, of: str = "rule") -> str:
    return (
        f"{of} {place}: all clients without {key} share one bucket of its limit, so one of them can use it up for the "
        f"others; set the key to {key} | ip, or set missing_key to exempt or deny"
    )


def forgeable_tier(rule: str, key: str) -> str:
    return f"rule {rule}: its tier, {key}, is written by the client, which can choose any tier"


def idle_part(place: str, part: str, key: str, fix: str, certain: str = "ip") -> str:
    return (
        f"{place}: {part} has no effect in the key {key}, because nearly every request has {certain}; remove it, or "
        f"write {fix}"
    )


ZERO = "rule {}: a limit with cost = 0 is never charged and never refuses; give it a cost of at least 1"
HEADER = {"limits": "9/hour", "key": "header:X-Key"}
TIERS = {"limits": {"free": "5/hour", "pro": "9/hour"}, "key": "ip"}
RULE = {"path": "/a", "limits": "5/hour", "name": "a"}
BANS = {**RULE, "key": "ip", "penalty": "3 refusals per minute: 1 hour"}


@BOTH
@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (HEADER, [forgeable("default", "header:X-Key")]),
        ({**HEADER, "key": "cookie:sid|header:x"}, [forgeable("default", "cookie:sid | header:x")]),
        ({**HEADER, "key": "cookie:sid+header:x"}, [forgeable("default", "cookie:sid+header:x")]),
        ({**HEADER, "key": "header:x|ip"}, [forgeable("default", "header:x | ip")]),
        ({**HEADER, "key": "user | header:x | ip"}, [forgeable("default", "user | header:x | ip")]),
        ({**HEADER, "key": "ip | header:x"}, [idle_part("key", "header:x", "ip | header:x", "header:x | ip")]),
        ({"limits": "9/hour", "key": "ip|user", "rules": [RULE, {**RULE, "path": "/b", "name": "b"}]},
         [idle_part("key", "user", "ip | user", "user | ip")]),
        ({"limits": "9/hour", "rules": [{**RULE, "key": "ip/48 | user | user+route | all"}]},
         [idle_part("rule a", "user | user+route", "ip/48 | user | user+route | all", "user | user+route | ip/48 | all",
                    "ip/48")]),
        ({"limits": ["99/hour", {"limit": "9/hour", "key": "all | user"}]},
         [idle_part("rule default", "user", "all | user", "user | all", "all")]),
        ({"limits": "9/hour", "key": "user | ip | all"}, []),
        ({**HEADER, "limits": ["9/hour", {"limit": "5/hour", "key": "ip"}], "key": "header:x | ip"}, []),
        ({**HEADER, "key": "header:x+ip"}, [shared("default", "header:x+ip")]),
        ({**HEADER, "key": "header:x+ip", "missing_key": "deny"}, []),
        ({**HEADER, "limits": ["9/hour", {"limit": "5/hour", "key": "ip"}]}, [shared("default", "header:X-Key")]),
        ({**HEADER, "limits": [{"limit": "9/hour", "shadow": True}, {"limit": "5/hour", "key": "ip"}]}, []),
        ({**HEADER, "limits": ["9/hour", {"limit": "5/hour", "key": "ip", "shadow": True}]},
         [forgeable("default", "header:X-Key")]),
        ({**HEADER, "limits": [{"limit": "9/hour", "key": "ip", "cost": 0}, "9/minute"]},
         [forgeable("default", "header:X-Key"), ZERO.format("default")]),
        ({"limits": [], "rules": [{**BANS, "limits": {"limit": "5/hour", "key": "header:x | ip"}}]},
         [forgeable("a", "header:x | ip")]),
        ({**HEADER, "limits": [], "app_limits": [{"limit": "99/hour", "key": "ip", "cost": 0}], "rules": [RULE]},
         [ZERO.format("app"), forgeable("a", "header:X-Key")]),
        ({**HEADER, "app_limits": [{"limit": "99/hour", "key": "ip"}]}, [shared("default", "header:X-Key")]),
        ({**HEADER, "app_limits": [{"limit": "99/hour", "key": "ip"}], "missing_key": "exempt"}, []),
        ({**HEADER, "app_limits": "99/hour"}, [forgeable("app", "header:X-Key"), forgeable("default", "header:X-Key")]),
        ({**HEADER, "key": "ip", "rules": [{**RULE, "key": "header:x"}]}, [forgeable("a", "header:x")]),
        ({**HEADER, "key": lambda request: request.header("x")}, []),
        ({**HEADER, "limits": lambda _: "9/hour"}, [forgeable("default", "header:X-Key")]),
        ({**TIERS, "tier": "header:x-tier"}, [forgeable_tier("default", "header:x-tier")]),
        ({**TIERS, "tier": "user | cookie:t"}, [forgeable_tier("default", "user | cookie:t")]),
        ({"limits": [], "messages": "9/second", "key": "cookie:sid"}, [forgeable_messages("messages", "cookie:sid")]),
        ({"limits": [], "app_limits": "9/hour",
          "rules": [{**RULE, "messages": {"limit": "9/second", "key": "header:x"}}]},
         [forgeable_messages("a/messages", "header:x")]),
        ({"limits": [], "messages": [{"limit": "9/second", "key": "cookie:sid"}, "99/second"]},
         [shared("messages", "cookie:sid")]),
        ({**TIERS, "tier": "cookie:t"}, [forgeable_tier("default", "cookie:t")]),
        ({**TIERS, "tier": "user"}, []),
        ({**TIERS, "tier": "header:t", "key": "header:k"},
         [forgeable("default", "header:k"), forgeable_tier("default", "header:t")]),
        ({**TIERS, "tier": "user", "rules": [{**RULE, "limits": {"x": "5/hour"}, "tier": "header:t"}]},
         [forgeable_tier("a", "header:t")]),
    ],
)  # fmt: skip
def test_forgeable_or_ineffective_keys_and_tiers_are_reported(
    serve: Any, settings: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(**settings)
    ask(x_key="a", x="a", k="a", cookie="sid=a")
    check(caplog, *warned, *unseen(serve, settings))


def unlimited(place: str, tier: str) -> str:
    return (
        f"{place}: clients whose tier is missing or unknown are in the first one, {tier}, which has no limits; set "
        f"default_tier, to {tier!r} if this is meant"
    )


INTERNAL: dict[str, Any] = {"limits": {"internal": [], "free": "5/hour"}, "key": "ip", "tier": "user"}


@BOTH
@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (INTERNAL, [unlimited("rule default", "internal")]),
        ({**INTERNAL, "default_tier": "internal"}, []),
        ({**INTERNAL, "default_tier": "free"}, []),
        ({**INTERNAL, "limits": {"free": "5/hour", "internal": []}}, []),
        ({**INTERNAL, "limits": {"internal": [], "default": []}}, []),
        ({**INTERNAL, "limits": {"free": "5/hour", "default": []}}, []),
        ({**INTERNAL, "limits": "5/hour", "rules": [{**RULE, "limits": INTERNAL["limits"]}]},
         [unlimited("rule a", "internal")]),
        ({**INTERNAL, "limits": [], "messages": INTERNAL["limits"]}, [unlimited("rule messages", "internal")]),
    ],
)  # fmt: skip
def test_an_unlimited_first_tier_without_default_tier_is_reported(
    serve: Any, settings: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    serve(**settings)()
    warned = [*warned, *unseen(serve, settings)]
    check(caplog, *warned)
    if warned:
        with pytest.raises(ConfigError) as caught:
            serve(**settings, strict=True)()
        assert caught.value.problems == tuple(warned)


def in_flask(mark: Any, *above: Any, **settings: Any) -> Any:
    app = Flask(__name__)
    RateLimiter(app, {"limits": [], "store": MemoryStore(clock=Clock()), "strict": True, **settings})

    def view() -> str:
        return "hello"

    for one in (mark, *above):
        view = one(view)
    app.get("/a")(view)
    return app.test_client().get


def in_starlette(mark: Any, *above: Any) -> Any:
    async def view(_: StarletteRequest) -> PlainTextResponse:
        return PlainTextResponse("hello")

    for one in (mark, *above):
        view = one(view)
    options: dict[str, Any] = {"limits": [], "store": MemoryStore(clock=Clock()), "strict": True}
    app = Starlette(routes=[Route("/a", view)], middleware=[Middleware(asgi.RateLimitMiddleware, **options)])

    def ask(path: str, headers: dict[str, str]) -> None:
        lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        talk(app, {**HTTP, "path": path, "raw_path": path.encode()}, client=("192.0.2.1", 50000), headers=lines)

    return ask


@pytest.mark.parametrize(("serve", "mark"), [(in_flask, flask.limit), (in_starlette, starlette.limit)])
def test_a_forgeable_key_on_an_endpoint_is_reported_once(
    serve: Any, mark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(mark("5/minute", key="header:X", name="a", methods=["GET", "GTE"]))
    for _ in range(3):
        ask("/a", headers={"X": "a"})
    ours = [record.getMessage() for record in caplog.records if record.name == "ratelimit_mw"]
    assert ours == [
        "ratelimit_mw: @limit a: methods has GTE, which is not a known HTTP method; did you mean GET?",
        f"ratelimit_mw: @limit{forgeable('a', 'header:X').removeprefix('rule').removesuffix(', or app_limits')}",
    ]


@pytest.mark.parametrize(("serve", "mark"), [(in_flask, flask.limit), (in_starlette, starlette.limit)])
def test_an_endpoint_bucket_shared_by_clients_without_a_key_is_reported(
    serve: Any, mark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(mark("5/minute", key="header:X", name="a"), mark("9/minute", key="ip", name="b"))
    for _ in range(2):
        ask("/a", headers={"X": "a"})
    ours = [record.getMessage() for record in caplog.records if record.name == "ratelimit_mw"]
    assert ours == [f"ratelimit_mw: {shared('a', 'header:X', '@limit')}"]


BAN: dict[str, Any] = {"penalty": "3 refusals per minute: 1 hour", "key": "ip", "name": "a"}
FOR_ALL = {"limit": "5/minute", "key": "all"}
WITH_KEY: dict[str, Any] = {"path": "/{x}", "limits": "9/minute", "key": "ip"}


@pytest.mark.parametrize(("serve", "mark"), [(in_flask, flask.limit), (in_starlette, starlette.limit)])
def test_a_forgeable_key_on_an_endpoint_is_reported_despite_a_penalty(
    serve: Any, mark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(mark({"limit": "5/minute", "key": "header:X | ip"}, **BAN))
    written = forgeable("a", "header:X | ip").removeprefix("rule a: ").removesuffix(", or app_limits")
    assert told_of_endpoint(ask, caplog) == [written]


def told_of_endpoint(ask: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
    for _ in range(2):
        ask("/a", headers={})
    ours = [record.getMessage() for record in caplog.records if record.name == "ratelimit_mw"]
    return [text.removeprefix("ratelimit_mw: @limit a: ") for text in ours]


@pytest.mark.parametrize(("serve", "mark"), [(in_flask, flask.limit), (in_starlette, starlette.limit)])
@pytest.mark.parametrize(
    ("limits", "beside", "warned"),
    [
        (FOR_ALL, [], lambda: [no_key("a", "ip").removeprefix("rule a: ")]),
        ({"limit": "5/minute", "shadow": True}, [], lambda: [ALL_SHADOW]),
        ("5/minute", [], list),
        (FOR_ALL, ["9/minute"], list),
    ],
)
def test_a_penalty_on_an_endpoint_that_never_acts_is_reported(
    serve: Any, mark: Any, limits: Any, beside: Any, warned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(mark(limits, **BAN), *(mark(one, key="ip", name="b") for one in beside))
    assert told_of_endpoint(ask, caplog) == warned()


@pytest.mark.parametrize(
    ("settings", "final", "acts"),
    [
        ({}, True, False),
        ({"rules": [WITH_KEY]}, True, True),  # its path may match the view's route
        ({"app_limits": "9/minute"}, True, True),
        ({"limits": "9/minute"}, True, False),
        ({"limits": "9/minute"}, False, True),
    ],
)
def test_a_views_penalty_is_reported_unless_a_limit_around_it_has_its_key(
    settings: dict[str, Any], final: bool, acts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ask = in_flask(flask.limit(FOR_ALL, **BAN, final=final), key="ip", **settings)
    assert told_of_endpoint(ask, caplog) == ([] if acts else [no_key("a", "ip").removeprefix("rule a: ")])


# rules and limits without effect

EVERYTHING = "exempt: it has every path, so nothing is limited; list only the exempt paths"


def exempted(index: int, name: str) -> str:
    return (
        f"rules[{index}] ({name}) can never match: exempt has all of its paths; remove the rule, or take them out of "
        "exempt"
    )


def odd(method: str, text: str) -> str:
    return f"rule login: methods has {method}, which is not a known HTTP method; {text}"


@BOTH
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("settings", "less", "more"),
    [
        ({"exempt": ["/{rest:path}"], "rules": [ONE]}, [EVERYTHING], []),
        ({"exempt": ["/health", "/login"], "rules": [{**ALL, "final": False}, ONE]}, [exempted(1, "login")], []),
        ({"exempt": ["/login"], "rules": [{**ONE, "path": ["/login", "/in"]}]}, [], []),
        ({"exempt": ["/login"], "rules": [ONE], "ignore_case": True}, [], []),
        ({"exempt": ["/{rest:path}"], "ignore_case": True}, [EVERYTHING], []),
        ({"rules": [{**ONE, "methods": ["GTE"]}]}, [odd("GTE", "did you mean GET?")], []),
        ({"rules": [{**ONE, "methods": ["ANY"]}]}, [odd("ANY", "leave out methods for all of them")], []),
        ({"rules": [{**ONE, "methods": ["WEBSOCKET"]}]}, [odd("WEBSOCKET", "a websocket begins with a GET")], []),
        ({"rules": [{**ONE, "methods": ["ZZZZ"]}]}, [], [odd("ZZZZ", "if clients do not send it, remove it")]),
        ({"rules": [{**ONE, "methods": ["PURGE", "PROPFIND", "QUERY"]}]}, [], []),
        ({"rules": [{**ONE, "cost": 0}]}, [ZERO.format("login")], []),
        ({"limits": {"limit": "9/hour", "cost": 0}}, [ZERO.format("default")], []),
        ({"rules": [{**ONE, "cost": 0, "limits": []}]}, [], []),
    ],
)
def test_rules_and_limits_without_effect_are_reported(
    serve: Any,
    strict: bool,
    settings: dict[str, Any],
    less: list[str],
    more: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = {"limits": [], "strict": strict, **settings}
    if strict and less:
        with pytest.raises(ConfigError) as error:
            serve(**made)
        assert list(error.value.problems) == less
        return
    serve(**made)
    check(caplog, *less, *more)


# options without effect

PENALTY = {**RULE, "limits": "5/hour using fixed_window", "penalty": "3 refusals per minute: 1 hour"}
WAITS = {"limit": "5/minute using gcra", "max_delay": 2.0}


def vain(rule: str, text: str) -> str:
    return f"rule {rule}: {text}"


def no_key(rule: str, key: str) -> str:
    text = (
        f"its penalty never acts: it counts refusals by limits with the key {key}, and no limit has it; "
        "give the penalty's rule the key of one of its limits"
    )
    return vain(rule, text)


BANS_ALL = "its penalty has the key all, so the refusals of one client ban all clients; give it a key for each client"
HOLDS_NOBODY = "max_waiting = 0 allows no delay, so its max_delay has no effect; remove one of them"
NOT_SETTLED = "settle and count_status have no effect: it has no limit that is settled; remove them"
SHADOW_BANS = "a shadow rule refuses no request, so its penalty has no effect; remove one of them"
ALL_SHADOW = (
    "all of its limits are shadow and refuse no request, so its penalty has no effect; remove the penalty, or shadow "
    "from one of the limits"
)
SHADOWED: dict[str, Any] = {"limit": "5/hour", "shadow": True}
NOT_FINAL = {"path": "/{rest:path}", "limits": "9/hour", "key": "ip", "name": "b", "final": False}
BANS_BY_IP = {**PENALTY, "key": "ip", "limits": {"limit": "5/hour", "key": "all"}}


@BOTH
@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"rules": [PENALTY]}, []),
        ({"rules": [{**PENALTY, "shadow": True}]}, [vain("a", SHADOW_BANS)]),
        ({"rules": [{**RULE, "shadow": True}]}, []),
        ({"rules": [{**PENALTY, "limits": SHADOWED}]}, [vain("a", ALL_SHADOW)]),
        ({"rules": [{**PENALTY, "limits": {"x": SHADOWED, "y": []}, "tier": "user"}]}, [vain("a", ALL_SHADOW)]),
        ({"rules": [{**PENALTY, "limits": SHADOWED, "final": False}], "limits": []}, [vain("a", ALL_SHADOW)]),
        ({"rules": [{**PENALTY, "limits": SHADOWED, "final": False}]}, []),
        ({"rules": [{**PENALTY, "limits": SHADOWED}], "app_limits": "9/day"}, []),
        ({"rules": [{**PENALTY, "limits": SHADOWED}], "app_limits": lambda _: "9/day"}, []),
        ({"rules": [{**PENALTY, "limits": [SHADOWED, "9/minute"]}]}, []),
        ({"rules": [{**PENALTY, "limits": SHADOWED, "concurrent": 2}]}, []),
        ({"penalty": PENALTY["penalty"], "limits": SHADOWED}, []),
        ({"rules": [{**PENALTY, "key": "all"}]}, [vain("a", BANS_ALL)]),
        ({"rules": [{**PENALTY, "limits": {"limit": "5/hour", "key": "all"}}]}, [no_key("a", "user | ip")]),
        ({"rules": [{**PENALTY, "limits": [{"limit": "5/hour", "key": "all"}, "5/minute"]}]}, []),
        ({"rules": [{**PENALTY, "key": "ip", "limits": {"limit": "5/hour", "key": "user | ip/48"}}]}, []),
        ({"rules": [{**PENALTY, "key": "ip", "limits": {"limit": "5/hour", "key": "user + ip"}}]}, [no_key("a", "ip")]),
        ({"rules": [{**PENALTY, "key": "ip", "limits": {"limit": "5/hour", "key": "user"}}],
          "app_limits": "9/day"}, []),
        ({"rules": [{**PENALTY, "key": "ip", "limits": {"limit": "5/hour", "key": "user"}, "final": False}]}, []),
        ({"rules": [NOT_FINAL, BANS_BY_IP]}, []),
        ({"rules": [BANS_BY_IP, NOT_FINAL]}, [no_key("a", "ip")]),
        ({"rules": [{**NOT_FINAL, "path": "/b", "final": True}, BANS_BY_IP]}, [no_key("a", "ip")]),
        ({"rules": [{**NOT_FINAL, "key": "all"}, BANS_BY_IP]}, [no_key("a", "ip")]),
        ({"rules": [{**NOT_FINAL, "key": "all", "limits": lambda _: "5/hour"}, BANS_BY_IP]}, []),
        ({"rules": [NOT_FINAL, {**PENALTY, "limits": SHADOWED}]}, []),
        ({"rules": [{**PENALTY, "key": "user", "limits": lambda _: "5/hour"}]}, []),
        ({"penalty": PENALTY["penalty"]}, []),
        ({"penalty": PENALTY["penalty"], "limits": []}, []),
        ({"penalty": PENALTY["penalty"], "limits": {"limit": "5/hour", "key": "all"}}, [no_key("app", "user | ip")]),
        ({"rules": [{**RULE, "limits": [], "count_status": [401]}]}, [vain("a", NOT_SETTLED)]),
        ({"rules": [{**RULE, "limits": {"limit": "5/hour", "settle": False}, "count_status": [401]}]},
         [vain("a", NOT_SETTLED)]),
        ({"rules": [{**RULE, "limits": [], "concurrent": 3, "count_status": [401]}]}, [vain("a", NOT_SETTLED)]),
        ({"rules": [{**RULE, "count_status": [401]}]}, []),
        ({"rules": [{**RULE, "limits": []}], "count_status": [401]}, []),
        ({"limits": WAITS, "max_waiting": 0}, [vain("default", HOLDS_NOBODY)]),
        ({"limits": WAITS, "max_waiting": 1}, []),
        ({"limits": WAITS}, []),
        ({"max_waiting": 0}, []),
        ({"limits": lambda _: "5/hour", "max_waiting": 0}, []),
    ],
)  # fmt: skip
def test_options_without_effect_are_reported(
    serve: Any, settings: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    serve(**{"limits": "9/hour", **settings})()
    check(caplog, *warned)


# several processes

SEVERAL = (
    "store: memory:// counts in one process, and there are {}: clients get that many times "
    "the limits; set store to sqlite:///FOLDER/limits.db, a file that they share, or to a redis:// URL"
)


@pytest.mark.parametrize(
    ("environ", "arguments", "workers"),
    [
        ({}, [], 1),
        ({}, ["uvicorn", "app:app"], 1),
        ({}, ["/usr/bin/uvicorn", "app:app", "--workers", "4"], 4),
        ({}, ["/x/uvicorn/__main__.py", "--workers=4"], 4),
        ({}, ["gunicorn", "-w", "3", "app:app"], 3),
        ({}, ["gunicorn", "-w3", "app:app"], 3),
        ({}, ["gunicorn", "--workers", "1"], 1),
        ({}, ["hypercorn", "-w", "2"], 2),
        ({}, ["granian", "--workers", "2"], 2),
        ({"GRANIAN_WORKERS": "4"}, ["/usr/bin/granian", "app:app"], 4),
        ({"GRANIAN_WORKERS": "4"}, ["granian", "--workers", "2"], 2),
        ({"GRANIAN_WORKERS": "4"}, ["uvicorn", "app:app"], 1),
        ({"UVICORN_WORKERS": "4"}, ["uvicorn", "app:app"], 4),
        ({"UVICORN_WORKERS": "4", "WEB_CONCURRENCY": "6"}, ["uvicorn", "app:app"], 4),
        ({"UVICORN_WORKERS": "4"}, ["uvicorn", "--workers", "2"], 2),
        ({"UVICORN_WORKERS": "4"}, ["granian", "app:app"], 1),
        ({"WEB_CONCURRENCY": "6"}, ["uvicorn", "--workers", "2", "--reload"], 1),
        ({}, ["fastapi", "run", "--workers", "5", "--reload"], 1),
        ({}, ["gunicorn", "-w", "3", "--reload"], 3),
        ({}, ["fastapi", "run", "--workers", "5"], 5),
        ({}, ["gunicorn", "-w", "0"], 1),
        ({}, ["gunicorn", "-w", "many"], 1),
        ({}, ["gunicorn", "-w"], 1),
        ({}, ["gunicorn", "-wx3"], 1),
        ({}, ["gunicorn", "--worker-class", "4"], 1),
        ({}, ["manage.py", "-w", "4"], 1),
        ({"WEB_CONCURRENCY": "6"}, ["anything"], 6),
        ({"WEB_CONCURRENCY": "6"}, ["gunicorn", "-w", "2"], 2),
        ({"WEB_CONCURRENCY": "1"}, ["gunicorn"], 1),
        ({"WEB_CONCURRENCY": ""}, ["gunicorn"], 1),
        ({"WEB_CONCURRENCY": "-3"}, ["gunicorn"], 1),
        ({"WEB_CONCURRENCY": "many"}, ["gunicorn"], 1),
        ({"GUNICORN_CMD_ARGS": "-w 4"}, ["/usr/bin/gunicorn", "app:app"], 4),
        ({"GUNICORN_CMD_ARGS": "-w4 --bind '[::]:80'"}, ["gunicorn"], 4),
        ({"GUNICORN_CMD_ARGS": "--bind=x --workers 4"}, ["gunicorn"], 4),
        ({"GUNICORN_CMD_ARGS": "--workers=4"}, ["/x/gunicorn/__main__.py"], 4),
        ({"GUNICORN_CMD_ARGS": "--workers=4", "WEB_CONCURRENCY": "6"}, ["gunicorn"], 4),
        ({"GUNICORN_CMD_ARGS": "--workers=4"}, ["gunicorn", "-w", "2"], 2),
        ({"GUNICORN_CMD_ARGS": "--bind=x", "WEB_CONCURRENCY": "6"}, ["gunicorn"], 6),
        ({"GUNICORN_CMD_ARGS": "-w 4 'x"}, ["gunicorn"], 1),
        ({"GUNICORN_CMD_ARGS": "-w 4"}, ["uvicorn", "app:app"], 1),
    ],
)
def test_the_configured_number_of_workers_is_detected(
    environ: Mapping[str, str], arguments: list[str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", environ)
    monkeypatch.setattr("sys.argv", arguments)
    assert configured_workers() == workers


@pytest.mark.parametrize(
    ("store", "warned"), [("memory://", [SEVERAL.format(3)]), ("redis://localhost:1/0", []), (None, [])]
)
@pytest.mark.parametrize("middleware", [asgi.RateLimitMiddleware, wsgi.RateLimitMiddleware])
@pytest.mark.parametrize("by", ["environment", "command line"])
def test_the_memory_store_with_several_workers_is_reported(
    by: str,
    middleware: Any,
    store: Any,
    warned: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if by == "environment":
        monkeypatch.setenv("WEB_CONCURRENCY", "3")
    else:
        monkeypatch.setattr("sys.argv", ["/usr/bin/gunicorn", "-w", "3"])
    app = hello if middleware is wsgi.RateLimitMiddleware else App200()
    _ = middleware(app, limits="9/hour", store=store or MemoryStore())
    check(caplog, *warned)


FORGEABLE = (
    "forwarded-allow-ips: with {!r}, uvicorn takes the address in X-Forwarded-For from every client, so a client can "
    "claim any address, and a new one for each request; list the addresses of your proxies there, or leave it out, and "
    "set trusted_proxies"
)


@pytest.mark.parametrize(
    ("environ", "arguments", "trusted"),
    [
        ({}, ["uvicorn", "app:app", "--forwarded-allow-ips", "*"], "*"),
        ({}, ["uvicorn", "app:app", "--forwarded-allow-ips=10.0.0.1, 0.0.0.0/0"], "0.0.0.0/0"),
        ({"FORWARDED_ALLOW_IPS": "*"}, ["uvicorn", "app:app"], "*"),
        ({"UVICORN_FORWARDED_ALLOW_IPS": "::/0"}, ["uvicorn", "app:app"], "::/0"),
        ({"GUNICORN_CMD_ARGS": "--forwarded-allow-ips '*'"}, ["gunicorn", "app:app"], "*"),
        ({}, ["uvicorn", "app:app"], None),
        ({}, ["uvicorn", "app:app", "--forwarded-allow-ips", "10.0.0.1,10.1.0.0/16"], None),
        ({"FORWARDED_ALLOW_IPS": "*"}, ["uvicorn", "app:app", "--forwarded-allow-ips", "10.0.0.1"], None),
        ({"FORWARDED_ALLOW_IPS": "*"}, ["uvicorn", "app:app", "--no-proxy-headers"], None),
    ],
)
def test_a_uvicorn_that_trusts_every_client_is_reported(
    environ: Mapping[str, str],
    arguments: list[str],
    trusted: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("os.environ", dict(environ))
    monkeypatch.setattr("sys.argv", arguments)
    given: dict[str, Any] = {"limits": "9/hour", "store": MemoryStore()}
    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)  # such as under gunicorn without uvicorn's workers
    _ = asgi.RateLimitMiddleware(App200(), **given, strict=True)
    monkeypatch.setitem(sys.modules, "uvicorn", ModuleType("uvicorn"))
    _ = asgi.RateLimitMiddleware(App200(), **given)
    check(caplog, *([] if trusted is None else [FORGEABLE.format(trusted)]))
    if trusted is not None:
        with pytest.raises(ConfigError, match=r"^forwarded-allow-ips: with "):
            asgi.RateLimitMiddleware(App200(), **given, strict=True)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("workers", "given", "warned"),
    [
        ("3", [], [SEVERAL.format(3)]),
        ("3", ["memory://"], [SEVERAL.format(3)]),
        ("3", [MemoryStore()], []),
        ("3", ["redis://localhost:1/0"], []),
        ("1", [], []),
    ],
)
def test_a_limiter_in_memory_with_several_workers_is_reported_once(
    workers: str,
    given: Sequence[Any],
    warned: list[str],
    kind: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_once_of_workers.cache_clear()
    monkeypatch.setenv("WEB_CONCURRENCY", workers)
    for _ in range(2):
        kind(*given)
    check(caplog, *warned)


@pytest.mark.parametrize(("several", "warned"), [(True, [SEVERAL.format("several")]), (False, [])])
def test_the_memory_store_under_a_multiprocess_wsgi_server_is_reported(
    several: bool, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = wsgi.RateLimitMiddleware(hello, limits="9/hour")
    for _ in range(3):
        read(Server(**{"wsgi.multiprocess": several}).ask(app))
    check(caplog, *warned)


def test_the_memory_store_with_several_processes_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    app = wsgi.RateLimitMiddleware(hello, limits="9/hour")
    read(Server(**{"wsgi.multiprocess": True}).ask(app))
    check(caplog, SEVERAL.format(3))


def test_a_custom_store_with_several_processes_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = wsgi.RateLimitMiddleware(hello, limits="9/hour", store=RecordingStore(clock=Clock()))
    read(Server(**{"wsgi.multiprocess": True}).ask(app))
    check(caplog)


# a proxy whose header is not read


def unproxied(name: str, client: str = "192.0.2.1", header: str = "x-forwarded-for", fix: str = "") -> str:
    more = "" if name == header else f", and set proxy_header = {name!r} if it writes that header itself"
    return (
        f"trusted_proxies: {client} sends {name}, but is not trusted, so all clients behind it are counted as one, "
        "also on safelist and blocklist; "
        f"if it is your proxy, {fix or f'put {client!r} into trusted_proxies'}{more}"
    )


def misread(name: str, client: str, header: str) -> str:
    return (
        f"proxy_header: {client} sends {name}, but no {header}, so all clients behind it are counted as one, "
        f"and one that writes {header} itself can claim any address; "
        f"if it is your proxy, and it writes that header itself, set proxy_header = {name!r}"
    )


def too_few(count: int, present: int, header: str = "x-forwarded-for") -> str:
    return (
        f"trusted_proxies: got {count} proxies, but the {header} of 127.0.0.1 has fewer addresses, {present}, so "
        "all clients behind it are counted as one, and one that writes the header itself can claim any address; if "
        f"these are all your proxies, set trusted_proxies = {present}"
    )


def in_front(header: str = "x-forwarded-for") -> str:
    return (
        f"trusted_proxies: in the {header} of 127.0.0.1, the address of a client has another one to its left, so "
        "either a client wrote the header itself, or one of your proxies is missing in trusted_proxies, and all "
        "clients behind it are counted as one; compare trusted_proxies with your own list of proxies"
    )


UNIX = unproxied("x-forwarded-for", "a unix socket", fix="put 'unix:' into trusted_proxies")
NAMED = unproxied("x-forwarded-for", "localhost", fix="set trusted_proxies = 1")


@BOTH
@pytest.mark.parametrize(
    ("requests", "warned"),
    [
        ([{"x_forwarded_for": "203.0.113.9"}] * 3, [unproxied("x-forwarded-for")]),
        ([{"forwarded": "for=203.0.113.9"}] * 3, [unproxied("forwarded")]),
        ([{"forwarded": "for=203.0.113.9", "x_forwarded_for": "203.0.113.9"}] * 3, [unproxied("x-forwarded-for")]),
        ([{}, {"x_forwarded_for": ""}, {}], [unproxied("x-forwarded-for")]),
        ([{"x_real_ip": "203.0.113.9"}] * 2, [unproxied("x-real-ip")]),
        ([{"cf_connecting_ip": "203.0.113.9"}], [unproxied("cf-connecting-ip")]),
        ([{"true_client_ip": "203.0.113.9"}], [unproxied("true-client-ip")]),
        ([{"x_forwarded_host": "x"}], []),
        ([{"client": "203.0.113.9", "x_forwarded_for": "203.0.113.9"}] * 2, []),
        ([{"client": "203.0.113.9", "x_forwarded_for": "198.51.100.1, 203.0.113.9, 10.0.0.1"}] * 2, []),
        ([{"client": "203.0.113.9", "x_forwarded_for": "203.0.113.9", "x_real_ip": "10.0.0.1"}] * 2, []),
        ([{"client": "203.0.113.9", "forwarded": 'for="203.0.113.9:80"'}] * 2, []),
        ([{"client": "::1", "x_forwarded_for": "203.0.113.9"}] * 2, [unproxied("x-forwarded-for", "::1")]),
        ([{"client": "1.1.1.1", "x_forwarded_for": "11.1.1.1"}] * 99, []),
        ([{"client": "1.1.1.1", "x_forwarded_for": "11.1.1.1"}] * 101, [unproxied("x-forwarded-for", "1.1.1.1")]),
        ([{"client": None, "x_forwarded_for": "203.0.113.9"}] * 2, [UNIX]),
        ([{"client": "localhost", "x_forwarded_for": "203.0.113.9"}] * 2, [NAMED]),
    ],
)
def test_untrusted_proxies_are_reported(
    serve: Any, requests: list[dict[str, str]], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(limits="999/hour", key="user | ip | all")
    for request in requests:
        ask(**request)
    check(caplog, *warned)


LOCAL = "127.0.0.1"
OUTER = in_front()


@BOTH
@pytest.mark.parametrize(
    ("trusted", "header", "request_", "warned"),
    [
        (["10.0.0.0/8"], "x-forwarded-for", {"x_forwarded_for": "1.1.1.1"}, [unproxied("x-forwarded-for", LOCAL)]),
        (["10.0.0.0/8"], "x-real-ip", {"x_real_ip": "1.1.1.1"}, [unproxied("x-real-ip", LOCAL, "x-real-ip")]),
        (["10.0.0.0/8"], "x-real-ip", {"forwarded": "for=1.1.1.1"}, [unproxied("forwarded", LOCAL, "x-real-ip")]),
        (["10.0.0.0/8"], "x-forwarded-for", {}, []),
        (["127.0.0.0/8"], "x-forwarded-for", {"x_forwarded_for": "1.1.1.1", "x_real_ip": "1.1.1.1"}, []),
        (["127.0.0.0/8"], "x-forwarded-for", {}, []),
        (["127.0.0.0/8"], "X-Forwarded-Fro", {"x_forwarded_for": "1.1.1.1"},
         [misread("x-forwarded-for", LOCAL, "x-forwarded-fro")]),
        (["127.0.0.0/8"], "forwarded", {"x_forwarded_for": "1.1.1.1"},
         [misread("x-forwarded-for", LOCAL, "forwarded")]),
        (1, "forwarded", {"x_forwarded_for": "1.1.1.1"}, [misread("x-forwarded-for", LOCAL, "forwarded")]),
        (1, "x-forwarded-for", {"x_forwarded_for": "1.1.1.1"}, []),
        (["unix:"], "x-forwarded-for", {"x_real_ip": "1.1.1.1", "client": None},
         [misread("x-real-ip", "a unix socket", "x-forwarded-for")]),
        # a proxy in front of those in the settings, or a client that writes the header: its address is not named
        (["127.0.0.0/8"], "x-forwarded-for", {"x_forwarded_for": "1.1.1.1, 10.0.0.8"}, [OUTER]),
        (["127.0.0.0/8"], "x-forwarded-for", {"x_forwarded_for": "1.1.1.1, 10.0.0.8, 127.0.0.2"}, [OUTER]),
        (["127.0.0.0/8"], "x-forwarded-for", {"x_forwarded_for": "1.1.1.1, 8.8.8.8"}, []),  # a client may write this
        (["127.0.0.0/8"], "x-forwarded-for", {"x_forwarded_for": "10.0.0.8, 10.0.0.8"}, []),
        (["127.0.0.0/8"], "x-forwarded-for", {"x_forwarded_for": "unknown, 10.0.0.8"}, []),
        (["127.0.0.0/8"], "x-forwarded-for", {"x_forwarded_for": "127.0.0.3, 127.0.0.2"}, []),
        (["127.0.0.0/8"], "forwarded", {"forwarded": "for=1.1.1.1, for=10.0.0.8"},
         [in_front("forwarded")]),
        (["127.0.0.0/8"], "x-real-ip", {"x_real_ip": "1.1.1.1, 10.0.0.8"}, []),
        (1, "x-forwarded-for", {"x_forwarded_for": "1.1.1.1, 10.0.0.8"}, [OUTER]),
        (2, "x-forwarded-for", {"x_forwarded_for": "1.1.1.1, 10.0.0.8"}, []),
        (2, "x-forwarded-for", {"x_forwarded_for": "2.2.2.2, 1.1.1.1, 10.0.0.8"}, []),  # the client wrote 2.2.2.2
        # fewer proxies than in the settings
        (2, "x-forwarded-for", {"x_forwarded_for": "1.1.1.1"}, [too_few(2, 1)]),
        (3, "forwarded", {"forwarded": "for=1.1.1.1, for=10.0.0.8"}, [too_few(3, 2, "forwarded")]),
        (2, "x-forwarded-for", {"x_forwarded_for": ""}, []),
        (2, "x-forwarded-for", {"x_forwarded_for": "127.0.0.1"}, []),  # the server has read the header already
        (2, "x-forwarded-for", {}, []),
    ],
)  # fmt: skip
def test_proxies_that_do_not_match_the_settings_are_reported(
    serve: Any,
    trusted: Any,
    header: str,
    request_: dict[str, str],
    warned: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    ask = serve(limits="9/hour", key="ip | all", trusted_proxies=trusted, proxy_header=header)
    for _ in range(3):
        ask(**{"client": LOCAL, **request_})
    check(caplog, *warned)


@BOTH
@pytest.mark.parametrize(("count", "warned"), [(99, []), (101, [OUTER])])
def test_an_outer_public_proxy_is_reported_after_a_hundred_requests(
    serve: Any, count: int, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(limits="999/hour", trusted_proxies=[LOCAL])
    for _ in range(count):
        ask(client=LOCAL, x_forwarded_for="11.1.1.1, 1.1.1.1")
    check(caplog, *warned)


def test_nested_gates_report_an_untrusted_proxy_once(caplog: pytest.LogCaptureFixture) -> None:
    outer = gate.Gate(Settings(limits="9/hour", store=MemoryStore()))
    inner = outer.nested
    request = PlainRequest(client=LOCAL, headers={"x-forwarded-for": "1.1.1.1"})
    for one in (outer, inner, outer, inner):
        one.admit(request)
    check(caplog, unproxied("x-forwarded-for", LOCAL))


UNREAD = (
    "proxy_header: x-real-ip is never read, because trusted_proxies is empty, so clients are counted by the socket's "
    "address; put your proxies into trusted_proxies, or remove proxy_header"
)


@BOTH
@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"proxy_header": "x-real-ip"}, [UNREAD]),
        ({"proxy_header": "X-Forwarded-For"}, []),
        ({"proxy_header": "x-real-ip", "trusted_proxies": ["10.0.0.0/8"]}, []),
    ],
)
def test_a_proxy_header_that_is_never_read_is_reported(
    serve: Any, settings: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    serve(limits="9/hour", **settings)()
    check(caplog, *warned)
    if warned:
        with pytest.raises(ConfigError) as caught:
            serve(limits="9/hour", strict=True, **settings)
        assert caught.value.problems == (UNREAD,)


def test_nested_gates_report_an_unread_proxy_header_once(caplog: pytest.LogCaptureFixture) -> None:
    made = gate.Gate(Settings(limits="9/hour", store=MemoryStore(), proxy_header="x-real-ip"))
    assert made.nested.settings.limits == []
    check(caplog, UNREAD)


@BOTH
@pytest.mark.parametrize(("before", "warned"), [(0, 1), (998, 1), (999, 1), (1000, 0), (1099, 0)])
def test_the_proxy_check_ends_after_a_thousand_requests_without_a_header(
    serve: Any, before: int, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    ask = serve(limits="9/hour")
    for _ in range(before):
        ask()
    for _ in range(3):
        ask(x_forwarded_for="203.0.113.9")
    check(caplog, *[unproxied("x-forwarded-for")] * warned)


@pytest.mark.promise(8)
@pytest.mark.parametrize("headers", [{"x_forwarded_for": "203.0.113.9"}, {}], ids=["seen", "given up"])
def test_two_threads_can_check_for_proxies_at_the_same_time(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While one request is examined, a request in another thread is examined too, and ends the check."""
    ask = over_wsgi(limits="9/hour")
    examine, depth = advice.ProxyHeaderCheck.examine, iter(range(10))

    def slow(self: advice.ProxyHeaderCheck, *request: Any) -> None:
        if next(depth) == 0:
            ask(**headers)
        examine(self, *request)

    monkeypatch.setattr(advice, "_MAX_REQUESTS", 1)
    monkeypatch.setattr(advice.ProxyHeaderCheck, "examine", slow)
    ask()
    check(caplog, *[unproxied("x-forwarded-for")] * len(headers))


# CORS

INSIDE = (
    "CORSMiddleware is inside RateLimitMiddleware, so browsers cannot read a refusal; put it outside: with Starlette "
    "and FastAPI, add it after RateLimitMiddleware"
)
HIDDEN = (
    "CORSMiddleware does not expose the rate limit headers to scripts; give it "
    "expose_headers=['RateLimit', 'RateLimit-Policy', 'Retry-After']"
)
OURS = Middleware(asgi.RateLimitMiddleware, limits="9/hour")
COMPLETE = "lifespan.startup.complete"
EXPOSE = ["RateLimit", "RateLimit-Policy", "Retry-After"]


def cors(**more: Any) -> Middleware:
    return Middleware(CORSMiddleware, allow_origins=["*"], **more)


@pytest.mark.parametrize(
    ("middleware", "warned"),
    [
        ([cors(expose_headers=EXPOSE), OURS], []),
        ([cors(expose_headers=["ratelimit"]), OURS], []),
        ([cors(expose_headers=["*"]), OURS], []),
        ([cors(expose_headers=EXPOSE), Middleware(GZipMiddleware), OURS], []),
        ([cors(), OURS], [HIDDEN]),
        ([cors(expose_headers=["X-Other"]), OURS], [HIDDEN]),
        ([OURS, cors(expose_headers=EXPOSE)], [INSIDE]),
        ([OURS, Middleware(GZipMiddleware), cors(expose_headers=EXPOSE)], [INSIDE]),
        ([OURS], []),
        ([Middleware(GZipMiddleware), OURS], []),
    ],
)
def test_misplaced_or_incomplete_cors_middleware_is_reported(
    middleware: list[Middleware], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = Starlette(routes=[Route("/", _hello)], middleware=middleware)
    assert talk(app, LIFESPAN, STARTUP, SHUTDOWN).types == [COMPLETE, "lifespan.shutdown.complete"]
    assert [talk(app, HTTP).sent[0]["status"] for _ in range(2)] == [200, 200]
    ours = [message for message in caplog.messages if message.startswith("ratelimit_mw: ")]
    assert ours == [f"ratelimit_mw: {message}" for message in warned]


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("legacy", ["X-RateLimit-Remaining", "X-RateLimit-Limit", "X-RateLimit-Reset", "Retry-After"]),
        ("draft-6", ["RateLimit-Remaining", "RateLimit-Limit", "RateLimit-Reset", "RateLimit-Policy", "Retry-After"]),
        ("draft-7", EXPOSE),
        ("none", ["Retry-After"]),
    ],
)
def test_the_headers_to_expose_are_those_of_the_style(
    style: Any, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    ours = Middleware(asgi.RateLimitMiddleware, limits="9/hour", headers=style)
    for exposed, warned in ((["X-Other"], True), (names, False)):
        caplog.clear()
        app = Starlette(routes=[Route("/", _hello)], middleware=[cors(expose_headers=exposed), ours])
        talk(app, LIFESPAN, STARTUP, SHUTDOWN)
        sent = talk(app, HTTP).sent[0]["headers"]
        check(caplog, *[HIDDEN.replace(str(EXPOSE), str(names))] * warned)
        fields = {name.decode() for name, _ in sent if b"ratelimit" in name}
        assert fields == {name.lower() for name in names[:-1]}


def test_cors_middleware_directly_inside_the_limiter_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    _ = asgi.RateLimitMiddleware(CORSMiddleware(App200()), limits="9/hour")
    check(caplog, INSIDE)
    caplog.clear()
    app = CORSMiddleware(asgi.RateLimitMiddleware(App200(), limits="9/hour"), allow_origins=["*"])
    talk(app, HTTP)
    check(caplog)


def test_cors_middleware_of_a_wrapped_starlette_app_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    _ = asgi.RateLimitMiddleware(Starlette(middleware=[cors(expose_headers=EXPOSE)]), limits="9/hour")
    check(caplog, INSIDE)


# AuthenticationMiddleware


class Backend(AuthenticationBackend):
    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
        return AuthCredentials(), SimpleUser(conn.headers["x-name"])


class OwnAuthentication(AuthenticationMiddleware):
    pass


AUTHENTICATION = Middleware(AuthenticationMiddleware, backend=Backend())
LATE = (
    "AuthenticationMiddleware is inside RateLimitMiddleware, so no user is known where the key, {}, is read, and no "
    "client is counted by its user; put AuthenticationMiddleware outside (with Starlette and FastAPI, add it after "
    "RateLimitMiddleware), or leave user out of the key"
)


@pytest.mark.parametrize("start", ["lifespan", "request"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("settings", "inside", "key"),
    [
        ({}, AUTHENTICATION, "user | ip"),
        ({"key": "user"}, AUTHENTICATION, "user"),
        ({"key": "ip", "tier": "user", "default_tier": "a", "limits": {"a": "9/hour"}}, AUTHENTICATION, "user"),
        ({"key": "ip", "rules": [{**ONE, "key": "route+user"}]}, AUTHENTICATION, "route+user"),
        ({}, Middleware(OwnAuthentication, backend=Backend()), "user | ip"),
        ({"key": "ip"}, AUTHENTICATION, None),
        ({"limits": []}, AUTHENTICATION, None),
        ({}, Middleware(GZipMiddleware), None),
    ],
)
def test_authentication_inside_the_limiter_is_reported_if_a_key_needs_it(
    settings: dict[str, Any], inside: Any, key: str | None, strict: bool, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours = Middleware(asgi.RateLimitMiddleware, **{"limits": "9/hour", "strict": strict, **settings})
    app = Starlette(routes=[Route("/", _hello)], middleware=[ours, Middleware(GZipMiddleware), inside])
    if key and strict:
        with pytest.raises(ConfigError) as caught:
            talk(app, LIFESPAN, STARTUP) if start == "lifespan" else talk(app, HTTP)
        assert caught.value.problems == (LATE.format(key),)
        return
    talk(app, LIFESPAN, STARTUP, SHUTDOWN) if start == "lifespan" else talk(app, HTTP, headers=[(b"x-name", b"ann")])
    found = [message for message in caplog.messages if "AuthenticationMiddleware" in message]
    assert found == [f"ratelimit_mw: {LATE.format(key)}"] * bool(key)


def test_authentication_outside_the_limiter_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = Starlette(routes=[Route("/", _hello)], middleware=[AUTHENTICATION, OURS])
    talk(app, LIFESPAN, STARTUP, SHUTDOWN)
    check(caplog)


def test_authentication_of_a_wrapped_starlette_app_is_an_error_if_strict(caplog: pytest.LogCaptureFixture) -> None:
    inside = Starlette(routes=[Route("/", _hello)], middleware=[AUTHENTICATION])
    with pytest.raises(ConfigError) as caught:
        asgi.RateLimitMiddleware(inside, limits="9/hour", strict=True)
    assert caught.value.problems == (LATE.format("user | ip"),)
    check(caplog)


def test_an_app_that_contains_itself_causes_no_endless_loop(caplog: pytest.LogCaptureFixture) -> None:
    app = App200()
    app.app = app  # type: ignore[attr-defined]  # App200 has no such attribute
    _ = asgi.RateLimitMiddleware(app, limits="9/hour")
    check(caplog)


def test_scopes_without_a_starlette_app_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = App200({"type": "lifespan.startup.complete"})
    for outer in (None, object(), 5):
        talk(asgi.RateLimitMiddleware(app, limits="9/hour"), LIFESPAN, STARTUP, app=outer)
    check(caplog)


@BOTH
def test_correct_settings_are_not_reported(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    ask = serve(limits="9/hour; 50/day", app_limits="99/minute", rules=[ONE, {**ALL, "final": False}])
    ask()
    check(caplog)


def test_a_middleware_reports_a_forgeable_key_once(caplog: pytest.LogCaptureFixture) -> None:
    made = asgi.RateLimitMiddleware(App200(), limits="9/hour", key="header:x")
    assert isinstance(made._gate, gate.AsyncGate)
    check(caplog, forgeable("default", "header:x"))
