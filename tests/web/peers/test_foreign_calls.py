"""Tests that a call written for another rate limiter raises one ConfigError, which names the right option."""

import sys
from pathlib import PurePath
from typing import Any

import pytest
from django.core.handlers.exception import convert_exception_to_response
from fastapi import FastAPI
from flask import Flask

from ratelimit_mw import AsyncLimiter, ConfigError, Limiter, asgi, starlette, wsgi
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.django import RateLimitMiddleware as DjangoMiddleware
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.rule import Rule
from web.asgi_talk import HTTP, App200, talk
from web.django_site import wsgi_site
from web.wsgi_talk import hello


def problems_of(call: Any, *arguments: Any, **words: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **words)
    return list(caught.value.problems)


def get_remote_address(request: Any) -> str:
    return str(request)


# Flask's RateLimiter


def served(app: Flask) -> list[int]:
    app.add_url_rule("/", "home", lambda: "home")
    return [app.test_client().get("/").status_code for _ in range(3)]


def test_flask_accepts_the_app_as_a_keyword() -> None:
    app = Flask(__name__)
    RateLimiter(app=app, limits="2/minute", strict=True)
    assert served(app) == [200, 200, 429]


def test_flask_accepts_the_settings_as_a_keyword() -> None:
    app = Flask(__name__)
    RateLimiter(app, settings={"limits": "2/minute"})
    assert served(app) == [200, 200, 429]


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ({"nonsense": 1}, ["unknown setting `nonsense`; there are limits"]),
        ({"limits": "bogus"}, ["limits: 'bogus': "]),
        ({"default_limits": ["1/minute"], "key_func": get_remote_address},
         ["unknown setting `default_limits`: here it is `limits`", "unknown setting `key_func`: here it is `key`"]),
        ({"nonsense": 1, "limits": "bogus"}, ["unknown setting `nonsense`", "limits: 'bogus': "]),
        ({"settings": {"limits": "bogus"}}, ["limits: 'bogus': "]),
        ({"settings": Settings(limits="1/minute"), "queue": -1}, ["queue: "]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("with_app", [False, True])
def test_flask_settings_are_checked_at_construction(words: dict[str, Any], begins: list[str], with_app: bool) -> None:
    more = {"app": Flask(__name__)} if with_app else {}
    missing = with_app and not {"limits", "settings"} & words.keys()
    begins = [*begins, *["limits: required, such as '100/minute'; "] * missing]
    problems = problems_of(RateLimiter, **more, **words)
    assert [problem[: len(start)] for problem, start in zip(problems, begins, strict=True)] == begins


def test_incomplete_flask_settings_are_accepted_until_init_app() -> None:
    limiter = RateLimiter(limits={"free": "2/minute", "pro": "9/minute"}, queue=5)
    app = Flask(__name__)
    app.config["RATELIMIT_MW"] = {"tier": "header:x-plan", "concurrent": 3}
    limiter.init_app(app)
    assert served(app) == [200, 200, 429]
    RateLimiter(default_tier="pro")
    RateLimiter()


@pytest.mark.parametrize(
    ("found", "begins"),
    [
        (get_remote_address,
         "app: got get_remote_address, expected a Flask app; a callable that gives the key goes into `key`"),
        ({"limits": "1/minute"},
         "app: got a mapping, expected a Flask app; settings come second: RateLimiter(app, settings)"),
        ("1/minute", "app: got '1/minute', expected a Flask app: RateLimiter(app, limits='100/minute')"),
    ],
)  # fmt: skip
def test_an_app_argument_of_a_wrong_type_raises_a_config_error(found: Any, begins: str) -> None:
    assert problems_of(RateLimiter, found, limits="1/minute") == [begins]
    assert problems_of(RateLimiter(limits="1/minute").init_app, found) == [begins]


@pytest.mark.parametrize(
    "face",
    [
        lambda settings: asgi.RateLimitMiddleware(App200(), settings),
        lambda settings: wsgi.RateLimitMiddleware(hello, settings),
        lambda settings: RateLimiter(Flask(__name__), settings),
        lambda settings: RateLimiter(None, settings),
    ],
    ids=["asgi", "wsgi", "flask", "flask later"],
)
def test_limits_in_place_of_the_settings_suggest_the_limits_keyword(face: Any) -> None:
    (problem,) = problems_of(face, "1/minute")
    assert problem == (
        "settings: got '1/minute', expected Settings or a mapping; limits='1/minute' sets limits; "
        "Settings.load(path) reads a file"
    )


@pytest.mark.parametrize("kind", [Settings, Rule])
def test_settings_by_position_raise_a_config_error(kind: Any) -> None:
    name = kind.__name__
    assert problems_of(kind, {"limits": "1/minute"}) == [
        f"got dict by position, expected keyword arguments: {name}(limits='100/minute'), or {name}(**mapping)"
    ]


@pytest.mark.parametrize(("found", "shown"), [("s.toml", "'s.toml'"), (PurePath("a/s.json"), "PurePosixPath")])
def test_a_file_in_place_of_the_settings_suggests_settings_load(found: Any, shown: str) -> None:
    assert problems_of(asgi.RateLimitMiddleware, App200(), found) == [
        f"settings: got {shown}, expected Settings or a mapping; Settings.load({str(found)!r}) reads a file"
    ]


# wrong options and arguments

LIMITS = {
    "starlette": starlette.limit,
    "flask": flask_limit,
    "django": django_limit,
    "fastapi": RateLimit,
    "route": lambda *given, **words: starlette.RateLimit(App200(), *given, **words),
}
IN_CALLS = [Limiter().limit, AsyncLimiter().limit]


IN_A_TABLE = "into the table of a limit, such as {limit = '10/second using gcra', max_delay = 2}"
ON_ENDPOINTS = (
    "name, methods, when, key, cost, tier, default_tier, settle, count_status, penalty, on_store_error, shadow, final"
)


@pytest.mark.parametrize("name", LIMITS)
def test_options_that_endpoints_do_not_support_raise_config_errors(name: str) -> None:
    slots = (
        "concurrent, queue, queue_timeout, fair_share, " if name in ("flask", "django") else ""
    )  # other integrations do not see the end of a request
    assert problems_of(LIMITS[name], "1/minute", path="/x", xyzzy=1, headers="none", max_delay=1, host="a.test") == [
        "unknown setting `path` here: it goes into the route: the limit applies where its endpoint is routed",
        f"unknown setting `xyzzy`; there are {ON_ENDPOINTS}, {slots}limits",
        "unknown setting `headers` here: it goes into the settings of the middleware",
        f"unknown setting `max_delay` here: it goes {IN_A_TABLE}",
        "unknown setting `host` here: it goes into a rule of the middleware's settings",
    ]


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_options_of_django_ratelimit_and_fastapi_limiter_get_suggestions(limit: Any) -> None:
    problems = problems_of(limit, key="ip", rate="5/m", method="POST")
    assert [problem[:52] for problem in problems] == [
        "unknown setting `rate`: here it is `limits`: text su",
        "unknown setting `method`: here it is `methods`: a li",
    ]
    problems = problems_of(limit, times=1, seconds=60)
    assert [problem[:48] for problem in problems] == [
        "unknown setting `times`: here it is `limits`: te",
        "unknown setting `seconds`: here it is `limits`: ",
    ]
    assert problems_of(limit, key="ip") == ["limits: required, such as '100/minute'"]
    for given, last in ((("1/minute", "ip"), "'ip'"), (("ip", "5/m"), "'5/m'")):
        (problem,) = problems_of(limit, *given)
        rate = next(one for one in given if one != "ip")
        assert problem.startswith(f"got {last} by position, expected there only ")
        assert problem.endswith(f"limits: did you mean limits={rate!r}, key='ip'?")
    (problem,) = problems_of(limit, "1/minute", "5/minute")
    assert problem.endswith("limits")


def test_a_flask_limiter_call_with_key_and_app_suggests_the_key_option() -> None:
    assert problems_of(RateLimiter, get_remote_address, app=Flask(__name__)) == [
        "app: given twice, get_remote_address by position and `app=`; a callable that gives the key goes into `key`"
    ]


def test_a_fastapi_limit_without_depends_raises_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r'did you mean Depends\(RateLimit\("5/minute"\)\)\?'):
        FastAPI().get("/", dependencies=[RateLimit("1/minute")])(lambda: 1)


@pytest.mark.parametrize("limiter", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("word", "begins"),
    [
        ("key_func", "unknown setting `key_func`: here it is `key`: "),
        ("key", "unknown setting `key` here: it goes into each call: hit(limits, key); for web endpoints use "),
        ("default_limits", "unknown setting `default_limits`: here it is `limits`: "),
        ("storage_uri", "unknown setting `storage_uri`: here it is `store`: a URL such as "),
        ("headers_enabled", "unknown setting `headers_enabled`: here it is `headers`: "),
        ("stroe", "unknown setting `stroe`: did you mean `store`?"),
    ],
)
def test_unknown_options_of_a_limiter_get_suggestions(limiter: Any, word: str, begins: str) -> None:
    (problem,) = problems_of(limiter, **{word: "x"})
    assert problem.startswith(begins)


def test_key_func_on_a_limiter_suggests_a_key_in_each_call() -> None:
    (problem,) = problems_of(Limiter, key_func=get_remote_address)
    assert problem.endswith(
        "; it goes into each call: hit(limits, key); for web endpoints use `limit` of ratelimit_mw.fastapi, "
        "starlette, flask or django"
    )


@pytest.mark.parametrize("limit", IN_CALLS, ids=["threads", "asyncio"])
def test_wrong_arguments_of_the_limit_decorator_get_suggestions(limit: Any) -> None:
    (problem,) = problems_of(limit, limit_value="1/minute")
    assert problem.startswith("unknown setting `limit_value`: here it is `limits`: ")
    (problem,) = problems_of(limit, "1/minute", key_func=get_remote_address)
    assert problem == (
        "unknown setting `key_func` here: it goes into `key`, called with the function's arguments; for web "
        "endpoints use `limit` of ratelimit_mw.fastapi, starlette, flask or django"
    )
    assert problems_of(limit, "1/minute", "me") == [
        "got 'me' by position, expected there only limits: did you mean limits='1/minute', key='me'?"
    ]
    assert problems_of(limit) == ["limits: required, such as '100/minute'"]


def test_a_type_error_inside_a_checked_function_is_not_changed() -> None:
    @check_arguments()
    def function(limits: str) -> None:
        raise TypeError(limits)

    with pytest.raises(TypeError, match=r"^its own$"):
        function("its own")


# middleware for another kind of app


def django_view(request: Any) -> Any:
    return request


DJANGO_VIEW = convert_exception_to_response(django_view)


@pytest.mark.parametrize(
    ("middleware", "app", "found", "fix"),
    [
        (wsgi.RateLimitMiddleware, FastAPI(), "FastAPI is called with scope, receive, send", "asgi"),
        (wsgi.RateLimitMiddleware, DJANGO_VIEW, "django_view is called with request", "django"),
        (asgi.RateLimitMiddleware, DJANGO_VIEW, "django_view is called with request", "django"),
        (asgi.RateLimitMiddleware, Flask(__name__).wsgi_app,
         "Flask.wsgi_app is called with environ, start_response", "wsgi"),
    ],
)  # fmt: skip
def test_middleware_around_another_kind_of_app_raises_a_config_error(
    middleware: Any, app: Any, found: str, fix: str
) -> None:
    kind = "ASGI" if middleware is asgi.RateLimitMiddleware else "WSGI"
    message = f"app: {found}, and this is the middleware for {kind}; use ratelimit_mw.{fix}.RateLimitMiddleware"
    assert problems_of(middleware, app, limits="1/minute") == [message]
    assert problems_of(middleware, app) == [message]


def test_wsgi_middleware_in_django_settings_suggests_django_middleware() -> None:
    with pytest.raises(ConfigError, match=r"use ratelimit_mw\.django\.RateLimitMiddleware"):
        wsgi_site([], {"limits": "1/minute"}, ["ratelimit_mw.wsgi.RateLimitMiddleware"])


def test_wsgi_middleware_in_fastapi_suggests_asgi_middleware() -> None:
    app = FastAPI()
    app.add_middleware(wsgi.RateLimitMiddleware, limits="1/minute")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigError, match=r"use ratelimit_mw\.asgi\.RateLimitMiddleware"):
        app.build_middleware_stack()


def test_django_middleware_in_fastapi_suggests_asgi_middleware() -> None:
    app = FastAPI()
    app.add_middleware(DjangoMiddleware, limits="1/minute")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(
        ConfigError, match=r"this is the middleware for Django; use ratelimit_mw\.asgi\.RateLimitMiddle"
    ):
        app.build_middleware_stack()
    assert problems_of(DjangoMiddleware, django_view, limits="1/minute") == [
        "unknown setting `limits` here: it goes into RATELIMIT_MW of Django's settings"
    ]


ADD_THE_CLASS = (
    "got a RateLimitMiddleware object, and the app creates it: app.add_middleware(RateLimitMiddleware, "
    "limits='100/minute')"
)


def test_a_middleware_object_as_a_function_suggests_add_middleware() -> None:
    app = FastAPI()
    middleware: Any = asgi.RateLimitMiddleware(app, limits="1/minute")
    app.middleware("http")(middleware)
    for _ in range(2):
        with pytest.raises(ConfigError) as told:
            talk(app, HTTP)
        assert str(told.value) == ADD_THE_CLASS


# names in the configuration of a framework

UNREAD = [
    ("RATELIMIT_MW_LIMITS", "write `limits` into "),
    ("RATELIMIT_MW_STORAGE_URI", "write `store` into "),
    ("RATELIMIT_DEFAULT", "write `limits` into "),
    ("RATELIMIT_APPLICATION", "write `app_limits` into "),
    ("RATELIMIT_STORAGE_URI", "write `store` into "),
    ("RATELIMIT_USE_CACHE", "write `store` into "),
    ("RATELIMIT_ENABLED", "write `enabled` into "),
    ("RATE_LIMIT_MW", "write its content into "),
    ("RATELIMITMW", "write its content into "),
    ("RATE_LIMIT_MW_STORE", "write `store` into "),
    ("RATELIMIT_MV", "write its content into "),
    ("RATELIMT_MW", "write its content into "),
    ("RATELIMIT_WM_STORE_TIMEOUT", "write `store_timeout` into "),
]


@pytest.fixture
def _without_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for peer in ("flask_limiter", "django_ratelimit", "slowapi"):
        monkeypatch.delitem(sys.modules, peer, raising=False)


def flask_with(name: str, **settings: Any) -> str:
    app = Flask(__name__)
    app.config[name] = "1/minute"
    RateLimiter(app, limits="1/minute", **settings)
    return "app.config['RATELIMIT_MW']"


def django_with(name: str, **settings: Any) -> str:
    wsgi_site([], {"limits": "1/minute", **settings}, **{name: "1/minute"})
    return "RATELIMIT_MW"


CONFIGS = pytest.mark.parametrize("configured", [flask_with, django_with])


@CONFIGS
@pytest.mark.usefixtures("_without_peers")
@pytest.mark.parametrize(("name", "fix"), UNREAD)
def test_unread_configuration_names_are_logged_or_an_error_under_strict(
    configured: Any, name: str, fix: str, caplog: pytest.LogCaptureFixture
) -> None:
    setting = configured(name)
    (message,) = caplog.messages
    assert message.startswith(f"ratelimit_mw: {name} is not read here; {fix}{setting}")
    with pytest.raises(ConfigError, match=f"{name} is not read here"):
        configured(name, strict=True)


@CONFIGS
@pytest.mark.usefixtures("_without_peers")
def test_configuration_names_for_other_readers_are_not_logged(
    configured: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured("RATELIMIT_OF_MY_OWN")
    configured("RATELIMITED")
    configured("RATE_LIMIT_MAX")
    configured("RATELIMIT_MV_LIMIT_OF_MINE")
    monkeypatch.setenv("RATELIMIT_MW_JITTER", "1")
    configured("RATELIMIT_MW_JITTER")
    monkeypatch.setitem(sys.modules, "flask_limiter", sys)
    configured("RATELIMIT_DEFAULT")
    assert caplog.messages == []


# values in a Flask app's configuration that are not read

LATE = "app.config['RATELIMIT_MW'] was written after RateLimiter(app) had read it, so it has no effect; write it "
BESIDE = "app.config['RATELIMIT_MW'] is not read, because RateLimiter has a Settings object, which is complete; give it"


def late(**settings: Any) -> Flask:
    app = Flask(__name__)
    app.config["TESTING"] = True
    app.config["RATELIMIT_MW"] = {"limits": "9/minute", **settings}
    RateLimiter(app)
    return app


def replaced(*, strict: bool) -> Flask:
    app = late(strict=strict)
    app.config["RATELIMIT_MW"] = {"limits": "1/minute", "strict": strict}
    return app


def changed(*, strict: bool) -> Flask:
    app = late(strict=strict)
    app.config["RATELIMIT_MW"]["limits"] = "1/minute"
    return app


def added(*, strict: bool) -> Flask:
    app = Flask(__name__)
    app.config["TESTING"] = True
    RateLimiter(app, limits="9/minute", strict=strict)
    app.config["RATELIMIT_MW"] = {"limits": "1/minute"}
    return app


def beside(*, strict: bool) -> Flask:
    app = Flask(__name__)
    app.config["TESTING"] = True
    RateLimiter(app, Settings(limits="9/minute", strict=strict))
    app.config["RATELIMIT_MW"] = {"limits": "1/minute"}
    return app


def named(*, strict: bool) -> Flask:
    app = late(strict=strict)
    app.config["RATELIMIT_DEFAULT"] = "1/minute"
    return app


@pytest.mark.promise(9)
@pytest.mark.usefixtures("_without_peers")
@pytest.mark.parametrize(
    ("written", "text"),
    [
        (replaced, LATE),
        (changed, LATE),
        (added, LATE),
        (beside, BESIDE),
        (named, "RATELIMIT_DEFAULT is not read here; write `limits` into app.config['RATELIMIT_MW']"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_configuration_written_too_late_is_logged_once_at_the_first_request(
    written: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, strict_app = written(strict=False), written(strict=True)
    assert caplog.messages == []
    assert [app.test_client().get("/").status_code for _ in range(3)] == [404] * 3
    (message,) = caplog.messages
    assert message.startswith(f"ratelimit_mw: {text}")
    for _ in range(2):
        with pytest.raises(ConfigError) as caught:
            strict_app.test_client().get("/")
        assert str(caught.value).startswith(text)


def test_a_config_beside_a_settings_object_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app = Flask(__name__)
    app.config["RATELIMIT_MW"] = {"limits": "1/minute"}
    RateLimiter(app, Settings(limits="9/minute"))
    assert app.test_client().get("/").status_code == 404
    assert [message[: len(BESIDE) + 14] for message in caplog.messages] == [f"ratelimit_mw: {BESIDE}"]


def test_configuration_written_before_init_app_applies(caplog: pytest.LogCaptureFixture) -> None:
    limiter, app = RateLimiter(key="ip"), Flask(__name__)
    app.config["RATELIMIT_MW"] = {"limits": "1/minute"}
    limiter.init_app(app)
    app.config["RATELIMIT_MW"] = {"limits": "1/minute"}
    app.config["OTHER"] = 1
    assert [app.test_client().get("/").status_code for _ in range(2)] == [404, 429]
    assert caplog.messages == []
