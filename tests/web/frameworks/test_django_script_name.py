"""ASGI middleware around Django with `FORCE_SCRIPT_NAME`, for which Django serves a view at two paths."""

from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path

from ratelimit_mw import ConfigError, asgi, wsgi
from ratelimit_mw.testing import RecordingStore
from web.django_ask import hello, settings, under_asgi
from web.faces import _over_httpx
from web.scenario import Step


def asgi_limited(rules: Any, **more: Any) -> Any:
    app: Any = ASGIHandler()  # its messages are dicts, not all mutable mappings
    return asgi.RateLimitMiddleware(app, limits=[], rules=rules, **more)


def missed(path: str, other: str) -> str:
    return (
        f"rules[0] (login): Django has FORCE_SCRIPT_NAME = '/app', so it serves {other} as it does {path}, and the "
        f"rule does not match {other}; add it to the rule's paths, or use ratelimit_mw.django, whose middleware reads "
        "a path as Django does"
    )


@pytest.mark.parametrize(
    ("script", "rule", "messages"),
    [
        ("/app", {"path": "/login"}, [missed("/login", "/app/login")]),
        ("/app/", {"path": "/app/login/{id}"}, [missed("/app/login/{id}", "/login/{id}")]),
        ("/app", {"path": ["/login", "/a"]}, [missed("/login", "/app/login"), missed("/a", "/app/a")]),
        ("/app", {"path": "/apples"}, [missed("/apples", "/app/apples")]),
        ("/app", {"path": ["/login", "/app/login"]}, []),
        ("/app", {"path": "/{rest:path}"}, []),
        ("/app", {"path": "/login", "exempt": True}, []),
        (None, {"path": "/login"}, []),
    ],
)
def test_rules_that_miss_one_of_the_two_paths_are_reported(
    script: str | None, rule: dict[str, Any], messages: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    rules = [{"name": "login", **({} if "exempt" in rule else {"limits": "1/minute"}), **rule}]
    with override_settings(FORCE_SCRIPT_NAME=script, ROOT_URLCONF=(), MIDDLEWARE=[]):
        served = asgi_limited(rules), wsgi.RateLimitMiddleware(WSGIHandler(), limits=[], rules=rules)
        assert len(served) == 2  # under WSGI, only the path below SCRIPT_NAME is served
        assert [text.removeprefix("ratelimit_mw: ") for text in caplog.messages] == messages
        if messages:
            with pytest.raises(ConfigError) as error:
                asgi_limited(rules, strict=True)
            assert list(error.value.problems) == messages


def test_only_an_app_of_django_has_a_script_name(caplog: pytest.LogCaptureFixture) -> None:
    async def app(*_: Any) -> None: ...

    with override_settings(FORCE_SCRIPT_NAME="/app"):
        served = asgi.RateLimitMiddleware(app, limits=[], rules=[{"path": "/login", "limits": "1/minute"}])
    assert (served.app, caplog.messages) == (app, [])


def test_the_middleware_of_django_limits_both_paths(store: RecordingStore) -> None:
    rules = [{"path": "/login", "limits": "2/minute"}]
    ask = under_asgi([path("login", hello)], settings(store, rules=rules), FORCE_SCRIPT_NAME="/app")
    assert [ask(where).status for where in ("/login", "/app/login", "/app/login")] == [200, 200, 429]


def test_a_rule_with_both_paths_limits_them_in_one_bucket() -> None:
    own = {"FORCE_SCRIPT_NAME": "/app", "ROOT_URLCONF": (path("login", lambda _: HttpResponse()),), "MIDDLEWARE": []}
    with override_settings(**own):
        ask = _over_httpx(asgi_limited([{"path": ["/login", "/app/login"], "limits": "2/minute"}]))
        assert [ask(Step(path=where)).status for where in ("/login", "/app/login", "/login")] == [200, 200, 429]
