"""Tests RateLimiter, the Flask extension: the limits that RateLimiter finds in an app, and its responses."""

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, ClassVar

import pytest
from flask import Blueprint, Flask, Response, abort, g, request, request_finished, send_file
from flask.views import MethodView, View
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException, TooManyRequests
from werkzeug.test import run_wsgi_app

from ratelimit_mw import ConfigError, MemoryStore
from ratelimit_mw.core import log as notices
from ratelimit_mw.flask import RateLimiter, exempt, limit
from ratelimit_mw.flask import endpoint_limits as flask_marks
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from ratelimit_mw.wsgi import RateLimitMiddleware

REFUSED = (
    b'{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",'
    b'"title":"Request cannot be satisfied as assigned quota has been exceeded",'
    b'"status":429,"detail":"Try again in 60 seconds.","violated-policies":["default"]}'
)
OWN = [("RateLimit-Policy", '"default";q=1;w=60'), ("RateLimit", '"default";r=0;t=60')]
BY = "60s using sliding_window_counter"


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(notices, "_quiet_until", {})
    flask_marks._unchecked.clear()
    flask_marks._without_app.clear()
    flask_marks._limited_apps.clear()  # a strict app of another file may not be collected yet
    yield
    flask_marks._unchecked.clear()
    flask_marks._without_app.clear()


@pytest.fixture
def app(store: RecordingStore) -> Flask:
    """Return an app with one view, which has no limit of its own."""
    app = Flask("shop")
    app.config["RATELIMIT_MW"] = {"limits": "9/minute", "store": store, "plain_keys": True, "key": "ip"}
    app.add_url_rule("/", "home", lambda: "home")
    return app


def limited(**settings: Any) -> Flask:
    """Return an app whose view admits one request a minute."""
    app = Flask("shop")
    app.add_url_rule("/", "home", lambda: "home")
    RateLimiter(app, **{"limits": "1/minute", "store": MemoryStore(clock=Clock()), **settings})
    return app


def statuses(app: Flask, path: str, count: int, method: str = "GET") -> list[int]:
    return [app.test_client().open(path, method=method).status_code for _ in range(count)]


def taken(store: RecordingStore) -> list[list[str]]:
    """Return the charges of each request, as the name of the limit and its quota."""
    names = [
        [(charge.key.rpartition(":")[2], charge.limit.quota) for charge in charges]
        for verb, charges in store.calls
        if verb == "take"
    ]
    return [[f"{name} {quota}" for name, quota in call] for call in names]


def keeping(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def wrapper(**arguments: Any) -> Any:
        return view(**arguments)

    return wrapper


# responses


def test_refusals_equal_those_of_the_wsgi_middleware() -> None:
    app = limited()
    admitted = app.test_client().get("/")
    assert (admitted.status, admitted.data) == ("200 OK", b"home")
    assert list(admitted.headers) == [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", "4"),
        *OWN,
    ]
    refused = app.test_client().get("/")
    assert (refused.status, refused.data) == ("429 Too Many Requests", REFUSED)
    assert list(refused.headers) == [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(REFUSED))),
        ("Cache-Control", "no-store"),
        ("Retry-After", "60"),
        *OWN,
    ]
    plain = Flask("plain")
    plain.wsgi_app = RateLimitMiddleware(plain.wsgi_app, limits="1/minute", store=MemoryStore(clock=Clock()))  # type: ignore[method-assign]
    plain.test_client().get("/")
    answer = plain.test_client().get("/")
    assert (answer.data, list(answer.headers)) == (refused.data, list(refused.headers))


def test_a_refused_head_request_has_a_content_length_but_no_body() -> None:
    app = limited()
    app.test_client().head("/")
    refused = app.test_client().head("/")
    assert (refused.status_code, refused.data) == (429, b"")
    assert refused.headers["Content-Length"] == str(len(REFUSED))


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/nowhere", "GET", 404),
        ("/", "POST", 405),
        ("/slash", "GET", 308),
        ("/static/x", "GET", 404),
        ("/", "GET", 200),
    ],
)
def test_every_flask_response_is_limited_and_has_rate_limit_fields(path: str, method: str, status: int) -> None:
    app = limited()
    app.add_url_rule("/slash/", "slash", lambda: "slash")
    first, second = (app.test_client().open(path, method=method) for _ in range(2))
    assert (first.status_code, second.status_code) == (status, 429)
    assert [line for line in first.headers if line in OWN] == OWN


def test_error_responses_of_views_have_rate_limit_fields(app: Flask) -> None:
    RateLimiter(app)
    app.add_url_rule("/fails", "fails", lambda: abort(int("no number")))
    app.add_url_rule("/aborts", "aborts", lambda: abort(418))
    for path, status in (("/fails", 500), ("/aborts", 418)):
        answer = app.test_client().get(path)
        assert (answer.status_code, len(answer.headers.getlist("RateLimit"))) == (status, 1)
    app.config["PROPAGATE_EXCEPTIONS"] = True
    with pytest.raises(ValueError, match="no number"):
        app.test_client().get("/fails")


@pytest.mark.parametrize("style", ["ietf", "legacy", "both"])
def test_rate_limit_fields_of_the_app_are_kept_and_come_first(style: Any) -> None:
    app = limited(headers=style)
    own = Headers([("RateLimit", '"daily";r=8;t=80000'), ("X-RateLimit-Remaining", "77")])
    app.add_url_rule("/own", "own", lambda: Response("own", headers=own))
    answer = app.test_client().get("/own")
    ietf = ['"default";r=0;t=60'] if style != "legacy" else []
    assert answer.headers.getlist("RateLimit") == ['"daily";r=8;t=80000', *ietf]
    assert answer.headers.getlist("X-RateLimit-Remaining") == ["77"]
    assert answer.headers.getlist("X-RateLimit-Limit") == []


def test_a_response_object_shared_by_requests_gets_its_fields_once(app: Flask) -> None:
    RateLimiter(app)
    shared = Response("same", headers=[("X-Own", "1")])
    app.add_url_rule("/shared", "shared", lambda: shared)
    answers = [app.test_client().get("/shared") for _ in range(3)]
    assert [answer.headers.getlist("RateLimit") for answer in answers] == [[f'"default";r={r};t=60'] for r in (8, 7, 6)]
    assert [answer.headers.getlist("X-Own") for answer in answers] == [["1"]] * 3


@pytest.mark.promise(11)
def test_streams_and_files_pass_through_unchanged(app: Flask) -> None:
    RateLimiter(app)
    closed: list[str] = []

    def stream() -> Iterator[bytes]:
        yield b"one"
        yield b"two"

    @app.get("/stream")
    def streaming() -> Response:
        response = Response(stream())
        response.call_on_close(lambda: closed.append("stream"))
        return response

    @app.get("/file")
    def sending() -> Response:
        return send_file(BytesIO(b"content"), mimetype="text/plain")

    with app.test_client().get("/stream") as answer:
        assert [bytes(part) for part in answer.iter_encoded()] == [b"one", b"two"]
    assert closed == ["stream"]

    class Wrapper:
        def __init__(self, file: Any, _: int = 0) -> None:
            self.file = file

        def __iter__(self) -> Iterator[bytes]:
            return iter(self.file)

    server: Any = {"wsgi.file_wrapper": Wrapper}
    seen: list[Any] = []

    def start(status: str, fields: list[tuple[str, str]]) -> None:
        seen.append((status, [line for line in fields if line[0].startswith("RateLimit")]))

    with app.test_request_context("/file", environ_overrides=server) as context:
        environ = context.request.environ
    parts = app(environ, start)  # type: ignore[arg-type]  # no write()
    assert isinstance(getattr(parts, "iterable", parts), Wrapper)
    assert seen[0][0] == "200 OK"
    assert len(seen[0][1]) == 2


def test_g_holds_the_verdict_of_the_current_request(app: Flask) -> None:
    RateLimiter(app)
    left: list[Any] = []

    @app.get("/left")
    def tell() -> str:
        left.append(g.ratelimit.verdict.remaining)
        return ""

    @app.get("/free")
    @exempt
    def free() -> str:
        left.append(g.ratelimit.verdict)
        return ""

    with app.app_context():  # requests in one app context share its `g`
        for path in ("/left", "/free", "/left"):
            app.test_client().get(path)
    assert left == [8, None, 7]


# limits and exemptions on endpoints


@pytest.mark.parametrize("above", [True, False], ids=["above the route", "below the route"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_limit_applies_above_and_below_the_route_decorator(
    app: Flask, store: RecordingStore, *, above: bool, kept: bool
) -> None:
    RateLimiter(app)
    mark, route = limit("2/minute"), app.get("/login")

    def login() -> str:
        return "in"

    inner: Any = keeping(login) if kept else login
    assert (mark(route(inner)) if above else route(mark(inner))) is inner
    assert statuses(app, "/login", 3) == [200, 200, 429]
    assert statuses(app, "/", 1) == [200]
    assert taken(store) == [["@login() 2"]] * 3 + [["default 9"]]


def test_a_limit_applies_to_an_async_view(app: Flask) -> None:
    RateLimiter(app)

    @app.get("/later")
    @limit("1/minute")
    async def later() -> str:
        return "later"

    assert statuses(app, "/later", 2) == [200, 429]


@pytest.mark.usefixtures("at_first_and_settled")
def test_the_route_key_is_the_flask_rule_with_the_blueprint_prefix(app: Flask, store: RecordingStore) -> None:
    app.config["RATELIMIT_MW"] |= {"key": "route"}
    blueprint = Blueprint("api", __name__, url_prefix="/api")
    blueprint.add_url_rule("/users/<int:user>", "user", lambda user: f"user {user}")
    app.register_blueprint(blueprint)
    RateLimiter(app)
    for path in ("/api/users/1", "/api/users/2", "/api/users/x", "/"):
        app.test_client().get(path)
    keys = [charges[0].key for verb, charges in store.calls if verb == "take"]
    assert keys[0] == keys[1]
    assert [key.partition("}")[0] for key in keys[1:]] == [
        "{route=/api/users/%3Cint:user%3E",
        "{route=unmatched",
        "{route=/",
    ]


def test_unnamed_limits_have_one_bucket_per_endpoint_and_named_limits_share_one(
    app: Flask, store: RecordingStore
) -> None:
    RateLimiter(app)
    own, shared = limit("5/minute"), limit("4/minute", name="logins")
    for endpoint, mark in (("a", own), ("b", own), ("c", shared), ("d", shared)):
        app.add_url_rule(f"/{endpoint}", endpoint, mark(lambda: "ok"))
    assert [statuses(app, f"/{endpoint}", 1) for endpoint in "abcd"] == [[200]] * 4
    assert taken(store) == [["@a() 5"], ["@b() 5"], ["@logins 4"], ["@logins 4"]]


def test_limits_attached_after_the_first_request_apply(app: Flask, store: RecordingStore) -> None:
    RateLimiter(app)
    shop = Blueprint("shop", __name__)
    shop.add_url_rule("/b", "b", lambda: "ok")
    app.register_blueprint(shop)
    assert statuses(app, "/", 1) + statuses(app, "/b", 1) == [200] * 2
    limit("5/minute")(app.view_functions["home"])
    limit("4/minute")(shop)
    assert statuses(app, "/", 1) + statuses(app, "/b", 1) == [200] * 2
    assert taken(store) == [["default 9"]] * 2 + [["@home() 5"], ["@shop.b() 4"]]


def test_app_limits_and_rules_apply_in_addition_to_endpoint_limits(app: Flask, store: RecordingStore) -> None:
    app.config["RATELIMIT_MW"] |= {
        "app_limits": "8/minute",
        "rules": [{"path": "/a", "limits": "7/minute"}, {"path": "/c", "limits": "7/minute", "final": False}],
    }
    RateLimiter(app)
    for endpoint, mark in (("a", limit("5/minute")), ("b", exempt), ("c", limit("5/minute", final=False))):
        app.add_url_rule(f"/{endpoint}", endpoint, mark(lambda: "ok"))
    assert [statuses(app, f"/{endpoint}", 1) for endpoint in "abc"] == [[200]] * 3
    assert taken(store) == [["app 8", "a 7", "@a() 5"], ["app 8"], ["app 8", "c 7", "@c() 5", "default 9"]]


def test_limits_apply_to_view_classes_their_methods_and_as_view_functions(app: Flask, store: RecordingStore) -> None:
    RateLimiter(app)

    @limit("6/minute")
    class Items(MethodView):
        def get(self) -> str:
            return "get"

        @limit("5/minute")
        def post(self) -> str:
            return "post"

        @limit("4/minute", final=False)
        def put(self) -> str:
            return "put"

        @exempt
        def delete(self) -> str:
            return "delete"

    class Page(View):
        decorators: ClassVar = [limit("3/minute")]

        def dispatch_request(self) -> str:
            return "page"

    class Other(Page):
        decorators: ClassVar = []

        @limit("2/minute")
        def dispatch_request(self) -> str:
            return "other"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    app.add_url_rule("/page", view_func=Page.as_view("page"))
    app.add_url_rule("/other", view_func=Other.as_view("other"))
    app.add_url_rule("/one", view_func=limit("7/minute")(Items.as_view("one")))
    for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"):
        assert statuses(app, "/items", 1, method) == [200]
    for path in ("/page", "/other", "/one"):
        assert statuses(app, path, 1) == [200]
    items = [["@items() 6"]] * 3 + [["@items.POST() 5"], ["@items.PUT() 4", "@items() 6"]]
    assert taken(store) == [*items, ["@page() 3"], ["@other() 2"], ["@one() 7", "@one()+ 6"]]


def test_a_limit_on_get_applies_to_head_unless_head_has_its_own(app: Flask, store: RecordingStore) -> None:
    RateLimiter(app)

    class Items(MethodView):
        @limit("6/minute")
        def get(self) -> str:
            return "get"

    class Pages(Items):
        @limit("5/minute")
        def head(self) -> str:
            return ""

    for view in (Items, Pages):
        app.add_url_rule(f"/{view.__name__}", view_func=view.as_view(view.__name__))
    for name in ("Items", "Pages"):
        assert [statuses(app, f"/{name}", 1, method) for method in ("GET", "HEAD")] == [[200]] * 2
    assert taken(store) == [["@Items.GET() 6"], ["@Items.GET() 6"], ["@Pages.GET() 6"], ["@Pages.HEAD() 5"]]


def test_blueprint_limits_apply_unless_an_inner_limit_ends_the_search(app: Flask, store: RecordingStore) -> None:
    limiter = RateLimiter()
    api, admin, free, nested = (Blueprint(name, name) for name in ("api", "admin", "free", "nested"))
    assert limiter.limit("6/minute")(api) is api
    assert limiter.exempt(free) is free
    limiter.limit("3/minute", final=False)(admin)
    views: list[tuple[Blueprint, str, Any]] = [
        (api, "plain", lambda view: view),
        (api, "own", limiter.limit("5/minute")),
        (api, "beside", limiter.limit("4/minute", final=False)),
        (api, "exempt", limiter.exempt),
        (admin, "plain", lambda view: view),
        (free, "plain", lambda view: view),
        (free, "own", limiter.limit("5/minute")),
        (nested, "plain", lambda view: view),
        (nested, "exempt", limiter.exempt),
    ]
    for blueprint, name, mark in views:
        blueprint.add_url_rule(f"/{blueprint.name}/{name}", name, mark(lambda: "ok"))
    api.register_blueprint(admin)
    free.register_blueprint(nested)
    api.register_blueprint(free)
    app.register_blueprint(api)
    limiter.init_app(app)
    for blueprint, name, _ in views:
        assert statuses(app, f"/{blueprint.name}/{name}", 1) == [200]
    assert taken(store) == [
        ["@api.plain() 6"],
        ["@api.own() 5"],
        ["@api.beside() 4", "@api.beside()+ 6"],
        ["@api.admin.plain() 3", "@api.admin.plain()+ 6"],
        ["@api.free.own() 5"],
        ["@api.free.nested.plain() 6"],
    ]


def test_a_blueprint_limit_has_one_bucket_per_endpoint_unless_named(app: Flask) -> None:
    limiter = RateLimiter(app)
    each, together = Blueprint("each", "each"), Blueprint("together", "together")
    limiter.limit("1/minute")(each)
    limiter.limit("1/minute", name="together")(together)
    for blueprint in (each, together):
        for name in ("a", "b"):
            blueprint.add_url_rule(f"/{blueprint.name}/{name}", name, lambda: "ok")
        app.register_blueprint(blueprint)
    assert [statuses(app, f"/each/{name}", 2) for name in ("a", "b")] == [[200, 429], [200, 429]]
    assert [statuses(app, f"/together/{name}", 1) for name in ("a", "b")] == [[200], [429]]


async def later(_: Request) -> str:
    return "x"


def test_invalid_limits_and_targets_raise_at_decoration() -> None:
    with pytest.raises(ConfigError, match="limits: '5/minut': unknown period 'minut'"):
        limit("5/minut")
    with pytest.raises(ConfigError, match="got later, which is async"):
        RateLimiter.limit("5/minute", key=later)
    with pytest.raises(TypeError, match="a limit is attached to a function or a class; got 7"):
        limit("5/minute")(7)  # type: ignore[type-var]  # wrong on purpose


# limits and exemptions without effect


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ratelimit_mw"]


def idle(name: str) -> str:
    why = (
        "because it is not on a view or blueprint of an app with a RateLimiter; register a route or blueprint with it, "
        "put it below a decorator that hides it, or remove it"
    )
    return f"ratelimit_mw: {name}: nothing enforces it, {why}"


@pytest.mark.promise(9)
def test_unenforced_limits_are_logged_once_at_the_first_request(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    RateLimiter(app)

    @limit("5/minute")
    def helper() -> None: ...

    def hiding(view: Any) -> Any:
        return lambda: f"{view()}"

    @app.get("/hidden")
    @hiding
    @limit("5/minute")
    def hidden() -> None: ...

    @app.get("/seen")
    @limit("5/minute")
    def seen() -> str:
        return ""

    class Items(MethodView):
        @limit("5/minute")
        def get(self) -> str:
            return ""

        @limit("5/minute")
        def helper(self) -> str:
            return ""

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    lost = Blueprint("lost", "lost")
    exempt(lost)
    for _ in range(2):
        app.test_client().get("/")
    here = f"{__name__}.test_unenforced_limits_are_logged_once_at_the_first_request.<locals>"
    names = [f"{here}.{name}" for name in ("Items.helper", "helper", "hidden")]
    assert warnings(caplog) == [idle("@exempt on blueprint lost"), *(idle(f"@limit on {name}") for name in names)]


def test_a_limit_in_an_app_without_a_rate_limiter_is_logged(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    @app.get("/login")
    @limit("1/minute")
    def login() -> str:
        return ""

    assert statuses(app, "/login", 2) == [200, 200]
    name = f"{__name__}.{test_a_limit_in_an_app_without_a_rate_limiter_is_logged.__name__}.<locals>.login"
    assert warnings(caplog) == [idle(f"@limit on {name}")]


def test_a_limit_in_an_app_with_enabled_false_is_not_logged(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    app.config["RATELIMIT_MW"] |= {"enabled": False}
    RateLimiter(app)
    app.add_url_rule("/login", "login", limit("1/minute")(lambda: ""))
    assert statuses(app, "/login", 2) == [200, 200]
    assert warnings(caplog) == []


def test_a_limit_in_an_app_that_serves_later_is_not_logged(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    other = limited()
    other.add_url_rule("/login", "login", limit("1/minute")(lambda: ""))
    RateLimiter(app)
    assert statuses(app, "/", 1) == [200]
    assert statuses(other, "/login", 2) == [200, 429]
    assert warnings(caplog) == []


NO_APP = "ratelimit_mw: a RateLimiter has settings and no app, so it limits nothing; call its init_app(app)"


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("words", "warned"),
    [({"limits": "5/minute"}, [NO_APP]), ({"limits": "5/minute", "enabled": False}, []), ({}, [])],
)
def test_an_extension_without_an_app_is_logged_once_at_the_first_request(
    app: Flask, words: dict[str, Any], warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    forgotten = RateLimiter(**words)
    assert statuses(app, "/", 2) == [200, 200]
    assert warnings(caplog) == warned
    del forgotten


def test_an_extension_with_an_app_by_the_first_request_is_not_logged(
    app: Flask, caplog: pytest.LogCaptureFixture
) -> None:
    RateLimiter(key="ip").init_app(app)
    assert statuses(app, "/", 1) == [200]
    assert warnings(caplog) == []


def test_an_extension_without_an_app_is_an_error_under_strict(app: Flask) -> None:
    forgotten = RateLimiter(limits="5/minute")
    app.config["RATELIMIT_MW"] |= {"strict": True}
    app.testing = True
    with pytest.raises(ConfigError, match="a RateLimiter has settings and no app"):
        app.test_client().get("/")
    forgotten.init_app(Flask("another"))
    assert statuses(app, "/", 1) == [200]


def test_the_first_request_disconnects_the_check_for_unenforced_limits(app: Flask) -> None:
    from flask import request_started  # noqa: PLC0415  # only this test needs it

    def listens() -> bool:
        return any(ref() is flask_marks._check_enforced for ref in request_started.receivers.values())

    view = limit("1/minute")(lambda: "")
    assert listens()
    app.test_client().get("/")
    assert not listens()
    del view
    gc.collect()
    assert len(flask_marks._unchecked) == 0


# users


def test_the_user_comes_from_flask_login_or_else_from_remote_user(app: Flask, store: RecordingStore) -> None:
    from flask_login import LoginManager, UserMixin, login_user  # type: ignore[import-untyped]  # noqa: PLC0415  # untyped

    class User(UserMixin):  # type: ignore[misc]  # see above
        def __init__(self, user: str) -> None:
            self.id = user

    loaded: list[str] = []

    def load(user: str) -> User:
        loaded.append(user)
        if user == "broken":
            raise ConnectionError("down")
        return User(user)

    app.secret_key = "s"
    app.config["RATELIMIT_MW"] |= {"key": "user | ip"}
    manager = LoginManager(app)
    manager.user_loader(load)
    RateLimiter(app)

    @app.post("/login/<user>")
    @exempt
    def login(user: str) -> str:
        login_user(User(user))
        return ""

    def identities(user: str | None, **environ: str) -> str:
        client = app.test_client()
        if user:
            client.post(f"/login/{user}")
        store.calls.clear()
        assert client.get("/", environ_overrides=environ).status_code == 200
        return store.calls[0][1][0].key.partition(":")[0]

    assert identities(None) == "{ip=127.0.0.1}"
    assert identities("7") == "{user=7}"
    assert identities("7", REMOTE_USER="bob") == "{user=7}"
    assert identities(None, REMOTE_USER="bob") == "{user=bob}"
    assert identities("broken", REMOTE_USER="bob") == "{user=bob}"
    assert loaded == ["7", "7", "broken"]
    app.extensions["ratelimit_mw"].close()


def test_a_request_without_session_cookie_or_credentials_reads_no_session(app: Flask, store: RecordingStore) -> None:
    from flask_login import LoginManager, UserMixin  # noqa: PLC0415  # untyped

    class User(UserMixin):  # type: ignore[misc]  # untyped
        id = "7"

    app.secret_key = "s"
    app.config["RATELIMIT_MW"] |= {"key": "user | ip"}
    manager = LoginManager(app)
    manager.user_loader(lambda _: User())
    app.after_request_funcs.clear()  # the function of Flask-Login reads the session of every request
    RateLimiter(app)

    def varies(**headers: str) -> str | None:
        return app.test_client(use_cookies=False).get("/", headers=headers).headers.get("Vary")

    assert varies() is None
    assert varies(Cookie="theme=dark") is None
    for headers in ({"Cookie": "session=x"}, {"Cookie": "remember_token=x"}, {"Authorization": "x"}):
        assert varies(**headers) == "Cookie"
    manager.request_loader(lambda request: User() if request.args.get("token") else None)
    assert app.test_client().get("/?token=x").headers["Vary"] == "Cookie"
    assert store.calls[-1][1][0].key == "{user=7}:default"


def test_the_user_is_not_loaded_if_no_key_needs_it(app: Flask) -> None:
    class Manager:
        def _load_user(self) -> None:
            raise AssertionError("asked")

    app.login_manager = Manager()  # type: ignore[attr-defined]  # as Flask-Login does
    RateLimiter(app)
    assert statuses(app, "/", 1) == [200]


# refusals


@pytest.mark.parametrize("by", [429, TooManyRequests])
def test_an_error_handler_of_the_app_writes_the_refusal(by: Any) -> None:
    app = limited()

    @app.errorhandler(by)
    def slow_down(error: Any) -> tuple[str, int]:
        assert error.verdict.retry_after == g.ratelimit.verdict.retry_after == 60.0
        assert error.verdict.limit_name == "default"
        assert error.description == "1/60s using sliding_window_counter"
        return f"slow down: {error.code}", 420

    first, refused = (app.test_client().get("/") for _ in range(2))
    assert (first.status_code, refused.status_code, refused.data) == (200, 420, b"slow down: 429")
    assert list(refused.headers) == [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", "14"),
        ("Cache-Control", "no-store"),
        ("Retry-After", "60"),
        *OWN,
    ]


@pytest.mark.parametrize("write", [lambda error: error, lambda error: error.get_response()], ids=["it", "its"])
def test_a_handler_may_return_the_error_or_its_response(write: Callable[[Any], Any]) -> None:
    app = limited()
    app.register_error_handler(429, write)
    app.test_client().get("/")
    refused = app.test_client().get("/")
    assert refused.status_code == 429
    for name in ("Retry-After", "RateLimit", "RateLimit-Policy", "Cache-Control"):
        assert len(refused.headers.getlist(name)) == 1


@pytest.mark.promise(9)
@pytest.mark.parametrize("status", [None, 200, 302, 400])
def test_a_handler_that_answers_with_a_status_below_400_is_logged(
    status: int | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flask sends 200 if a handler returns only a body. The client would take the refusal for the view's response."""
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})
    app = limited()
    app.register_error_handler(429, lambda _: "slow down" if status is None else ("slow down", status))
    assert statuses(app, "/", 2) == [200, 200 if status is None else status]
    text = (
        f"error handler: answered a refused request with {status or 200}; return the body and the status, such as "
        "`return text, 429`"
    )
    assert [text in message for message in caplog.messages] == ([] if status == 400 else [True])


def test_a_blueprint_handler_answers_only_for_its_views() -> None:
    app = limited()
    blueprint = Blueprint("api", "api")
    blueprint.add_url_rule("/api", "api", lambda: "api")
    blueprint.register_error_handler(429, lambda _: ("api's", 429))
    app.register_blueprint(blueprint)
    answers = [app.test_client().get(path).data for path in ("/", "/", "/api")]
    assert answers == [b"home", REFUSED, b"api's"]


def test_handlers_for_all_errors_are_not_called_for_refusals() -> None:
    app = limited()
    app.register_error_handler(Exception, lambda _: ("oops", 500))
    app.register_error_handler(HTTPException, lambda _: ("oops", 400))
    assert statuses(app, "/", 2) == [200, 429]


def test_a_handler_for_403_answers_blocklist_refusals() -> None:
    assert statuses(limited(blocklist=["127.0.0.1"]), "/", 1) == [403]
    app = limited(blocklist=["127.0.0.1"])
    app.register_error_handler(403, lambda _: ("go away", 403))
    assert app.test_client().get("/").data == b"go away"


def test_on_refused_takes_precedence_over_an_error_handler() -> None:
    app = limited(on_refused=lambda _, verdict: (429, {"X-Left": str(verdict.remaining)}, "later"))
    app.register_error_handler(429, lambda _: ("handler", 429))
    app.test_client().get("/")
    refused = app.test_client().get("/")
    assert (refused.data, refused.headers["X-Left"], refused.headers["Retry-After"]) == (b"later", "0", "60")


def test_on_refused_may_be_a_streaming_wsgi_app_and_is_closed() -> None:
    closed: list[bool] = []

    def stream(environ: Any, start_response: Any) -> Iterator[bytes]:
        try:
            start_response("429 Slow Down", [("Content-Type", "text/plain"), ("X-Path", environ["PATH_INFO"])])
            yield b"slow "
            yield b"down"
        finally:
            closed.append(True)

    app = limited(on_refused=stream)
    app.test_client().get("/")
    with app.test_client().get("/") as refused:
        assert closed == []
        assert (refused.status, refused.headers["X-Path"], refused.data) == ("429 Slow Down", "/", b"slow down")
        assert [line for line in refused.headers if line in OWN] == OWN
    assert closed == [True]


def fails(environ: Any, start_response: Any) -> Iterable[bytes]:
    raise LookupError


def fails_late(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    raise LookupError


def never_starts(environ: Any, start_response: Any) -> Iterable[bytes]:
    return [b"?"]


@pytest.mark.promise(8)
@pytest.mark.parametrize("answer", [fails, fails_late, never_starts, lambda _, __: 1 / 0, lambda _, __: "nonsense"])
def test_a_failing_on_refused_causes_the_default_refusal(answer: Any) -> None:
    app = limited(on_refused=answer)
    app.test_client().get("/")
    refused = app.test_client().get("/")
    assert (refused.status_code, refused.data) == (429, REFUSED)


# combined with other code


def test_earlier_before_request_functions_run_first_but_bypass_no_limit(app: Flask, store: RecordingStore) -> None:
    order: list[str] = []

    def first() -> Any:
        order.append("first")
        return ("who are you?", 401) if request.path == "/" else None

    def after(response: Response) -> Response:
        order.append(f"after {response.status_code}")
        return response

    app.before_request(first)
    app.after_request(after)
    app.config["RATELIMIT_MW"] |= {"limits": "2/minute"}
    RateLimiter(app)
    app.before_request(lambda: order.append("second"))
    assert statuses(app, "/", 3) == [401, 401, 429]
    assert order == ["first", "after 401", "first", "after 401", "first", "after 429"]
    order.clear()
    assert statuses(app, "/else", 1) == [429]
    assert order == ["first", "after 429"]
    assert len(store.calls) == 4


def test_requests_aborted_by_a_url_preprocessor_are_charged(app: Flask) -> None:
    @app.url_value_preprocessor
    def language(endpoint: str | None, values: Any) -> None:
        abort(404)

    app.config["RATELIMIT_MW"] |= {"limits": "1/minute"}
    RateLimiter(app)
    app.register_error_handler(429, lambda _: ("handled", 429))
    answers = [app.test_client().get("/") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [404, 429]
    assert answers[1].data == b"handled"
    assert answers[1].headers["Retry-After"] == "60"


def test_a_request_that_is_preprocessed_twice_is_charged_once(app: Flask, store: RecordingStore) -> None:
    app.config["RATELIMIT_MW"] |= {"limits": "1/minute"}
    RateLimiter(app)
    for status in (None, 429):
        with app.test_request_context("/"):
            answers = [app.preprocess_request() for _ in range(2)]
        assert [getattr(answer, "status_code", None) for answer in answers] == [status] * 2
    assert len(store.calls) == 2


def test_a_request_forwarded_within_the_app_is_charged_once(app: Flask, store: RecordingStore) -> None:
    RateLimiter(app)

    @app.get("/forward")
    def forward() -> Response:
        inner = {**request.environ, "PATH_INFO": "/"}
        return Response(*run_wsgi_app(app.wsgi_app, inner))

    answer = app.test_client().get("/forward")
    assert (answer.data, answer.headers.getlist("RateLimit")) == (b"home", ['"default";r=8;t=60'])
    assert len(store.calls) == 1


@pytest.mark.promise(2)
def test_limits_inside_the_middleware_are_charged_and_shown_once(app: Flask, store: RecordingStore) -> None:
    RateLimiter(app)
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, app.config["RATELIMIT_MW"])  # type: ignore[method-assign]
    app.add_url_rule("/login", "login", limit("1/minute")(lambda: "in"))
    first, second, home = (app.test_client().get(path) for path in ("/login", "/login", "/"))
    assert [answer.status_code for answer in (first, second, home)] == [200, 429, 200]
    assert taken(store) == [["default 9"], ["@login() 1"], ["default 9"], ["@login() 1"], ["default 9"]]
    fields = [answer.headers.getlist("RateLimit") for answer in (first, second, home)]
    assert fields == [
        ['"GET_login";r=0;t=60, "default";r=8;t=60'],
        ['"GET_login";r=0;t=60, "default";r=7;t=60'],  # the middleware's charge stays
        ['"default";r=6;t=60'],
    ]


def test_endpoint_limits_show_all_limits_inside_a_middleware_without_headers(app: Flask) -> None:
    RateLimiter(app)
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, app.config["RATELIMIT_MW"], headers="none")  # type: ignore[method-assign]
    app.add_url_rule("/login", "login", limit("1/minute")(lambda: "in"))
    assert app.test_client().get("/").headers.getlist("RateLimit") == []
    assert app.test_client().get("/login").headers.getlist("RateLimit") == ['"GET_login";r=0;t=60, "default";r=7;t=60']


def test_a_memory_store_in_a_multiprocess_server_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    monkeypatch.setattr("sys.argv", ["pytest"])
    app = Flask("shop")
    RateLimiter(app, limits="9/minute")
    for _ in range(2):
        app.test_client().get("/", environ_overrides={"wsgi.multiprocess": True})
    assert [message[:66] for message in warnings(caplog)] == [
        "ratelimit_mw: store: memory:// counts in one process, and there ar"
    ]


@pytest.mark.promise(3)
def test_threads_are_admitted_exactly_up_to_the_limit(app: Flask) -> None:
    RateLimiter(app)
    app.add_url_rule("/login", "login", limit("50/minute")(lambda: "in"))
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda _: app.test_client().get("/login").status_code, range(320)))
    assert (found.count(200), found.count(429)) == (50, 270)


# settings


def test_one_extension_serves_several_apps_each_with_its_own_settings() -> None:
    limiter = RateLimiter(limits="1/minute")
    apps = [Flask("one"), Flask("two")]
    apps[1].config["RATELIMIT_MW"] = {"headers": "none", "limits": "99/minute"}
    for app in apps:
        app.add_url_rule("/", "home", lambda: "home")
        limiter.init_app(app)
    assert [statuses(app, "/", 2) for app in apps] == [[200, 429]] * 2
    assert ["RateLimit" in app.test_client().get("/").headers for app in apps] == [True, False]


@pytest.mark.parametrize(
    ("config", "given", "options", "quota"),
    [
        (None, None, {"limits": "1/minute"}, 1),
        ({"limits": "2/minute"}, None, {}, 2),
        ({"limits": "2/minute"}, {"limits": "3/minute"}, {}, 3),
        ({"limits": "2/minute"}, {"limits": "3/minute"}, {"limits": "4/minute"}, 4),
        (Settings(limits="5/minute"), None, {}, 5),
        (Settings(limits="5/minute"), {"limits": "3/minute"}, {}, 3),
        ({"limits": "2/minute"}, Settings(limits="6/minute"), {}, 6),
        ({"headers": "both"}, None, {}, 7),
    ],
)
def test_options_override_settings_then_config_then_environment(
    config: Any, given: Any, options: Any, quota: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATELIMIT_MW_LIMITS", "7/minute")
    app = Flask("shop")
    app.config["RATELIMIT_MW"] = config
    RateLimiter(app, given, **options)
    assert f'"default";q={quota};w=60' in app.test_client().get("/").headers["RateLimit-Policy"]


PLACED = "app.config['RATELIMIT_MW']: "


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"limits": "5/minut"}, {}, f"{PLACED}limits: '5/minut': unknown period 'minut', did you mean 'minute'?"),
        ({"rules": [{}]}, {"limits": "1/s"}, f"2 mistakes:\n  {PLACED}rules[0].path: required"),
        ({"kye": "ip"}, {"limits": "1/s"}, f"{PLACED}unknown setting `kye`: did you mean `key`?"),
        ({"key": "ip"}, {"limits": "5/minut"}, "limits: '5/minut': unknown period"),
        ({"limits": "1/s"}, {"limits": "5/minut"}, "limits: '5/minut': unknown period"),
        (
            {"limits": "1/s", "key": later},
            {},
            f"{PLACED}key: got later, which is async; expected a plain function under WSGI",
        ),
        (5, {}, f"{PLACED}settings: got int, expected Settings or a mapping"),
        (None, {}, "limits: required, such as '100/minute'"),
    ],
)
def test_errors_name_the_app_config_if_it_holds_the_invalid_setting(config: Any, options: Any, message: str) -> None:
    app = Flask("shop")
    app.config["RATELIMIT_MW"] = config
    with pytest.raises(ConfigError) as told:
        RateLimiter(app, **options)
    assert str(told.value).startswith(message)


def test_a_second_init_app_on_an_app_raises_a_config_error(app: Flask) -> None:
    limiter = RateLimiter(app)
    with pytest.raises(ConfigError, match="app 'shop' has a RateLimiter already"):
        limiter.init_app(app)


def test_an_extension_with_enabled_false_registers_nothing(app: Flask, store: RecordingStore) -> None:
    app.config["RATELIMIT_MW"] |= {"enabled": False}
    RateLimiter(app)
    assert (app.before_request_funcs, app.after_request_funcs) == ({}, {})
    assert statuses(app, "/", 20) == [200] * 20
    assert store.calls == []


def test_an_extension_that_created_its_store_can_be_closed() -> None:
    app = Flask("shop")
    RateLimiter(app, limits="1/minute")
    app.extensions["ratelimit_mw"].close()


@pytest.mark.parametrize(("concurrent", "receives"), [(0, False), (1, True)])
def test_only_an_app_with_tracked_responses_receives_the_end_of_requests(
    concurrent: int,
    receives: bool,
) -> None:
    app = Flask("shop")
    app.add_url_rule("/", view_func=lambda: "hello")
    RateLimiter(app, limits="9/minute", concurrent=concurrent)
    for _ in range(3):  # a slot that is not released would refuse the second request
        with app.test_client().get("/") as answer:
            assert answer.status_code == 200
    assert bool(request_finished.has_receivers_for(app)) == receives
