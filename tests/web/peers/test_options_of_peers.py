"""Tests that an option of another rate limiter raises an error that names the equivalent of this package."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from flask import Flask

from ratelimit_mw import AsyncLimiter, ConfigError, Limiter, MemoryStore, asgi, wsgi
from ratelimit_mw.core.validation import _EQUIVALENTS
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.service import service
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import LimitOptions
from ratelimit_mw.settings.options import Options
from ratelimit_mw.settings.rule import EndpointLimitOptions, Rule, RuleOptions
from ratelimit_mw.starlette import limit
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from web.asgi_talk import App200
from web.wsgi_talk import hello

TOP = [
    ("default_limits", "limits"),
    ("key_func", "key"),
    ("rate", "limits"),
    ("strategy", "limits"),
    ("storage_uri", "store"),
    ("key_prefix", "store"),
    ("headers_enabled", "headers"),
    ("application_limits", "app_limits"),
    ("swallow_errors", "on_store_error"),
    ("windowMs", "limits"),
    ("keyGenerator", "key"),
    ("max", "limits"),
    ("whitelist", "safelist"),
    ("trust_proxy", "trusted_proxies"),
    ("RATE", "limits"),
    ("burst", "limits"),
    ("enable", "enabled"),
]
FACES: dict[str, Callable[..., Any]] = {
    "Settings": Settings,
    "mapping": lambda **words: Settings.of(words, {}),
    "asgi": lambda **words: asgi.RateLimitMiddleware(App200(), **words),
    "wsgi": lambda **words: wsgi.RateLimitMiddleware(hello, **words),
    "flask": lambda **words: RateLimiter(Flask(__name__), **words),
}
MARKS: dict[str, Callable[..., Any]] = {
    "limit": limit,
    "flask_limit": flask_limit,
    "django_limit": django_limit,
    "RateLimit": RateLimit,
    "Rule": lambda limits, **words: Rule(path="/", limits=limits, **words),
    "table": lambda limits, **words: Settings(limits=[], rules=[{"path": "/", "limits": limits, **words}]),
}


def problem_of(call: Callable[..., Any], *arguments: Any, **words: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **words)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(("word", "ours"), TOP)
@pytest.mark.parametrize("face", FACES.values(), ids=FACES)
def test_a_setting_of_another_limiter_raises_an_error_with_the_equivalent(face: Any, word: str, ours: str) -> None:
    problem = problem_of(face, **{"limits": "9/hour", word: "x"})
    assert problem.startswith(f"unknown setting `{word}`: here it is `{ours}`: ")


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("key_func", "`key`: text such as 'ip' or 'user | ip', or a callable of the request"),
        ("exempt_when", "`when`: a callable of the request that returns False where the rule does not apply"),
        ("deduct_when", "`count_status`: the statuses of the responses that are charged, such as [401, '4xx']"),
        ("method", "`methods`: a list such as ['GET', 'POST']"),
        ("group", "`name`: limits of the same name share a bucket"),
        ("override_defaults", "`final`: if false, the limits around it apply as well"),
        ("per_method", "`methods`: a list such as ['GET', 'POST']"),
        ("strategy", "`limits`: the algorithm is part of the text: '100/minute using sliding_window_log'"),
    ],
)
@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
def test_an_endpoint_option_of_another_limiter_raises_with_the_equivalent(mark: Any, word: str, answer: str) -> None:
    assert problem_of(mark, "9/hour", **{word: "x"}).endswith(f"unknown setting `{word}`: here it is {answer}")


def test_the_error_describes_where_the_equivalent_setting_belongs() -> None:
    problem = problem_of(django_limit, "9/hour", storage_uri="redis://x")
    assert problem.endswith("or a store; it goes into the settings of the middleware")
    problem = problem_of(asgi.RateLimitMiddleware, App200(), limits="9/hour", exempt_when=lambda _: True)
    assert problem.endswith("; it goes into a rule: [[rules]]")
    problem = problem_of(Settings, limits=[{"limit": "9/hour", "burst": 20}])
    assert problem == (
        "limits[0]: unknown setting `burst`: here it is `limit`: the burst is part of the text: "
        "'100/minute burst 20 using gcra'"
    )


def test_an_environment_variable_of_another_limiter_raises_with_the_equivalent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATELIMIT_MW_STORAGE_URI", "redis://x")
    problem = problem_of(asgi.RateLimitMiddleware, App200(), limits="9/hour")
    assert problem.startswith("RATELIMIT_MW_STORAGE_URI: unknown setting `storage_uri`: here it is `store`: a URL")


ELSEWHERE: list[tuple[Callable[..., Any], str, str]] = [
    (
        partial(Limiter().limit, "9/hour"),
        "per_method",
        "into `limit` of ratelimit_mw.fastapi, starlette, flask or django",
    ),
    (
        partial(Limiter().limit, "9/hour"),
        "exempt_when",
        "into `limit` of ratelimit_mw.fastapi, starlette, flask or django",
    ),
    (Limiter, "app", "into RateLimiter(app) of ratelimit_mw.flask, or call app.add_middleware(RateLimitMiddleware)"),
    (
        AsyncLimiter,
        "app",
        "into RateLimiter(app) of ratelimit_mw.flask, or call app.add_middleware(RateLimitMiddleware)",
    ),
    (partial(RedisStore, "redis://x"), "key_prefix", "into `prefix`"),
    (partial(AsyncRedisStore, "redis://x"), "socket_timeout", "into `timeout`"),
    (RedisStore, "host", "first, as a URL: redis://USER:PASSWORD@HOST:6379/0"),
    (MemoryStore, "maxsize", "into `max_keys`"),
    (service, "limits", "into `settings`, a mapping such as {'limits': ...}"),
]


@pytest.mark.parametrize(("call", "word", "place"), ELSEWHERE, ids=[word for _, word, _ in ELSEWHERE])
def test_the_error_describes_where_an_argument_of_another_limiter_belongs(call: Any, word: str, place: str) -> None:
    assert problem_of(call, **{word: "x"}).startswith(f"unknown setting `{word}` here: it goes {place}")


@pytest.mark.parametrize(
    ("call", "word", "near"),
    [(MemoryStore, "max_key", "max_keys"), (partial(SQLiteStore, "/run/app/x.db"), "dny_cache", "deny_cache")],
)
def test_a_misspelled_store_argument_raises_with_the_right_name(call: Any, word: str, near: str) -> None:
    assert problem_of(call, **{word: 1}) == f"unknown setting `{word}`: did you mean `{near}`?"


@pytest.mark.parametrize("kind", [Settings, Rule])
def test_an_unknown_keyword_raises_with_the_known_or_the_nearest_name(kind: Any) -> None:
    assert problem_of(kind, limits="9/hour", xyzzy=1).startswith("unknown setting `xyzzy`; there are ")
    assert problem_of(kind, limits="9/hour", kye="ip") == "unknown setting `kye`: did you mean `key`?"


def test_equivalents_map_unknown_names_to_existing_options() -> None:
    tables = (Options, RuleOptions, EndpointLimitOptions, LimitOptions)
    ours = {word for table in tables for word in table.__annotations__}
    assert {here for here, _ in _EQUIVALENTS.values()} <= ours
    assert set(_EQUIVALENTS) & (set(Options.__annotations__) | set(RuleOptions.__annotations__)) == set()
