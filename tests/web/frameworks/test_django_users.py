"""Django: keys and logged-in users, which are read in the event loop's thread under ASGI."""

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import asgiref.sync
import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth import BACKEND_SESSION_KEY, SESSION_KEY
from django.contrib.auth.backends import BaseBackend
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core.signals import request_started
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import include, path, re_path
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject

from ratelimit_mw import ConfigError, MemoryStore
from ratelimit_mw.django import limit
from ratelimit_mw.http.request import Request
from ratelimit_mw.testing import Clock, RecordingStore
from web.django_ask import BOTH, CLIENT, Site, hello, settings, taken, under_asgi
from web.django_site import LOGIN, OURS

pytestmark = pytest.mark.usefixtures("speaks_again")

ME = __name__


@limit("5/minute")
async def alimited(request: Any, **_: Any) -> HttpResponse:
    return hello(request)


async def told_later(request: Request) -> str:
    return request.header("x-token") or "nobody"


# keys


@BOTH
def test_route_is_the_url_pattern_of_django(site: Site, store: RecordingStore) -> None:
    urls = [path("users/<int:id>", hello), path("in/", include([path("x", hello)])), re_path(r"^re/(?P<y>\d+)$", hello)]
    routes: list[str | None] = []

    def key(request: Request) -> str:
        routes.append(request.route)
        return "k"

    limits = ["9/minute", {"limit": "9/hour", "key": "route"}]
    ask = site(urls, settings(store, limits=limits, key=key))
    for where in ("/users/1", "/users/2", "/in/x", "/re/7", "/none"):
        ask(where)
    assert routes == ["/users/<int:id>", "/users/<int:id>", "/in/x", r"/^re/(?P<y>\d+)$", None]
    keys = [charges[1].key for _, charges in store.calls]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert keys[2] == "{route=/in/x}:default"
    assert keys[4] == "{route=unmatched}:default"


@BOTH
@pytest.mark.usefixtures("at_first_and_settled")
def test_route_key_is_the_url_pattern_in_first_and_later_requests(site: Site, store: RecordingStore) -> None:
    ask = site([path("users/<int:id>", hello)], settings(store, limits="9/hour", key="route"))
    for where in ("/users/1", "/users/2", "/none"):
        ask(where)
    keys = [charges[0].key.partition("}")[0] for _, charges in store.calls]
    assert keys == ["{route=/users/%3Cint:id%3E", "{route=/users/%3Cint:id%3E", "{route=unmatched"]


@BOTH
def test_callables_get_the_django_request_as_raw(site: Site, store: RecordingStore) -> None:
    found: list[Any] = []

    def key(request: Request) -> str:
        found.append((isinstance(request.raw, HttpRequest), request.raw.resolver_match.view_name, request.route))
        return "k"

    site([path("x/<int:id>", hello, name="named")], settings(store, key=key))("/x/7")
    assert found == [(True, "named", "/x/<int:id>")]


@BOTH
def test_callables_can_read_each_kind_of_header(site: Site, store: RecordingStore) -> None:
    found: list[Any] = []

    def key(request: Request) -> str:
        names = ("x-api-key", "content-type", "x-none")
        found.append([list(request.header_lines(name)) for name in names])
        found.append(request.headers["x-api-key"])
        return "k"

    site([path("", hello)], settings(store, key=key))(
        method="POST", headers={"X-Api-Key": "k1", "Content-Type": "text/plain"}
    )
    assert found == [[["k1"], ["text/plain"], []], "k1"]


# logged-in users


class Lazily:
    """A middleware that loads the user on first use, as from a database, and records each load."""

    sync_capable = async_capable = True
    asked: ClassVar[list[str]] = []

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        request.user = SimpleLazyObject(partial(self.user, request))
        request.auser = partial(self.auser, request)
        return self.get_response(request)

    @async_unsafe
    def user(self, request: Any) -> Any:
        self.asked.append("user")
        return self.of(request)

    async def auser(self, request: Any) -> Any:
        self.asked.append("auser")
        return self.of(request)

    def of(self, request: Any) -> Any:
        name = request.headers.get("X-User")
        if name == "broken":
            raise LookupError
        return SimpleNamespace(is_authenticated=True, pk=name) if name else SimpleNamespace(is_authenticated=False)


class LazilyWithoutAsync(Lazily):
    def __call__(self, request: Any) -> Any:
        request.user = SimpleLazyObject(partial(self.user, request))
        return self.get_response(request)


@BOTH
@pytest.mark.parametrize("middleware", ["Lazily", "LazilyWithoutAsync"])
def test_logged_in_users_have_their_own_buckets(site: Site, store: RecordingStore, middleware: str) -> None:
    Lazily.asked.clear()
    ask = site([path("", hello)], settings(store), f"{ME}.{middleware}", OURS)
    for name in ("7", "8", "", "broken"):
        ask(headers={"X-User": name})
    own = [["{user=7}:default 9"], ["{user=8}:default 9"], [f"{CLIENT}default 9"], [f"{CLIENT}default 9"]]
    assert taken(store) == own
    in_async = site is under_asgi and middleware == "Lazily"
    assert set(Lazily.asked) == {"auser" if in_async else "user"}


@BOTH
@pytest.mark.parametrize(
    "more",
    [{"key": "ip"}, {"exempt": ["/"]}, {"safelist": ["192.0.2.1"]}, {"blocklist": ["192.0.2.1"]}, {"enabled": False}],
    ids=str,
)
def test_user_is_not_loaded_if_no_limit_needs_it(site: Site, store: RecordingStore, more: dict[str, Any]) -> None:
    Lazily.asked.clear()
    site([path("", hello)], settings(store, **more), f"{ME}.Lazily", OURS)(headers={"X-User": "7"})
    assert Lazily.asked == []


@BOTH
@pytest.mark.parametrize(
    "more",
    [
        {"limits": [{"limit": "9/minute", "key": "user"}], "key": "ip"},
        {"rules": [{"path": "/", "limits": "9/minute", "when": lambda request: request.user == "7"}], "key": "ip"},
        {"limits": "9/minute", "key": lambda request: request.user},
        {"limits": lambda _: [{"limit": "9/minute", "key": "user"}], "key": "ip"},
        {"limits": {"7": "9/minute"}, "tier": "user", "key": "ip"},
    ],
    ids=["an item's key", "when", "a callable", "limits that a callable gives", "tier"],
)
def test_keys_conditions_limits_and_tiers_can_read_the_user(
    site: Site, store: RecordingStore, more: dict[str, Any]
) -> None:
    Lazily.asked.clear()
    ask = site([path("", hello)], settings(store, **{"limits": [], **more}), f"{ME}.Lazily", OURS)
    assert ask(headers={"X-User": "7"}).field("ratelimit")[0].endswith(";r=8;t=60")
    assert len(store.calls) == 1


AUTH = "django.contrib.auth.middleware.AuthenticationMiddleware"
BEFORE = (
    f"Keys read the user, who is known only after AuthenticationMiddleware; put {AUTH!r} before {OURS!r} in MIDDLEWARE"
)


@BOTH
@pytest.mark.parametrize(
    ("key", "middleware", "messages"),
    [
        ("user | ip", (OURS, AUTH), [BEFORE]),
        ("ip", (OURS, AUTH), []),
        ("user | ip", (AUTH, OURS), []),
        ("user", (OURS,), []),  # another middleware may set it
    ],
)
def test_a_start_reports_middleware_before_authentication(
    site: Site, key: str, middleware: tuple[str, ...], messages: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    site([], {"limits": "9/minute", "key": key}, *middleware)
    assert caplog.messages == [f"ratelimit_mw: {message}" for message in messages]
    if messages:
        with pytest.raises(ConfigError) as error:
            site([], {"limits": "9/minute", "key": key, "strict": True}, *middleware)
        assert list(error.value.problems) == messages


@BOTH
def test_callable_is_called_once_even_if_the_user_is_awaited(site: Site, store: RecordingStore) -> None:
    asked: list[str | None] = []

    def cost(request: Request) -> int:
        asked.append(request.user)
        return 2

    limits: list[Any] = [{"limit": "9/minute", "cost": cost}]
    site([path("", hello)], settings(store, limits=limits), f"{ME}.Lazily", OURS)(headers={"X-User": "7"})
    assert asked == ["7"]


SESSIONS = "django.contrib.sessions.middleware.SessionMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
ENGINE = "django.contrib.sessions.backends.signed_cookies"


class Backend(BaseBackend):
    def get_user(self, user_id: int) -> Any:
        return SimpleNamespace(is_authenticated=True, pk=user_id)


def logged_in(session: Any) -> Any:
    session[SESSION_KEY], session[BACKEND_SESSION_KEY] = "7", f"{ME}.Backend"
    return session


def logs_in(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        if request.headers.get("X-User"):
            logged_in(request.session)
        return get_response(request)

    return middleware


@BOTH
def test_response_varies_by_cookie_only_if_the_request_has_a_session_cookie(site: Site, store: RecordingStore) -> None:
    own: dict[str, Any] = {"SESSION_ENGINE": ENGINE, "AUTHENTICATION_BACKENDS": [f"{ME}.Backend"]}
    ask = site([path("", lambda _: HttpResponse("hello"))], settings(store), SESSIONS, AUTHENTICATION, OURS, **own)
    with override_settings(**own):
        known = logged_in(SessionStore())
        known.save()
    cookies = ["", "theme=dark", "sessionid=x", f"sessionid={known.session_key}"]
    answers = [ask(headers={"Cookie": cookie} if cookie else {}) for cookie in cookies]
    assert [answer.field("vary") for answer in answers] == [[], [], ["Cookie"], ["Cookie"]]
    assert taken(store) == [[f"{CLIENT}default 9"]] * 3 + [["{user=7}:default 9"]]


@BOTH
def test_users_without_a_session_cookie_have_their_own_buckets(site: Site, store: RecordingStore) -> None:
    own: dict[str, Any] = {"SESSION_ENGINE": ENGINE, "AUTHENTICATION_BACKENDS": [f"{ME}.Backend"]}
    for middleware in ([SESSIONS, f"{ME}.Lazily", OURS], [SESSIONS, f"{ME}.logs_in", AUTHENTICATION, OURS]):
        ask = site([path("", hello)], settings(store), *middleware, **own)
        assert ask(headers={"X-User": "7"}).status == 200
    assert taken(store) == [["{user=7}:default 9"]] * 2


# async


class ThreadsNoted(MemoryStore):
    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.threads: list[int] = []

    def take(self, charges: Any) -> Any:
        self.threads.append(threading.get_ident())
        return super().take(charges)

    async def atake(self, charges: Any) -> Any:
        return self.take(charges)


def test_asgi_decisions_stay_in_the_event_loops_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    hops: list[Any] = []
    threads: list[int] = []
    hop = asgiref.sync.SyncToAsync.__call__

    async def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        hops.append(self.func)
        return await hop(self, *args, **kwargs)

    async def view(_: HttpRequest) -> HttpResponse:
        threads.append(threading.get_ident())
        return HttpResponse()

    store = ThreadsNoted()
    ask = under_asgi([path("", view)], {"limits": "1/minute", "store": store}, f"{ME}.Lazily", OURS)
    receivers, request_started.receivers = request_started.receivers, []  # Django runs its own receivers in a thread
    monkeypatch.setattr(asgiref.sync.SyncToAsync, "__call__", noted)
    try:
        assert [ask(where).status for where in ("/", "/", "/none")] == [200, 429, 429]
    finally:
        request_started.receivers = receivers
    assert [hop for hop in hops if "ratelimit" in repr(hop)] == []
    assert store.threads[:1] == threads
    assert len(store.threads) == 3


@pytest.mark.parametrize("place", ["outer", "inner"])
def test_limits_apply_beside_sync_middleware_under_asgi(store: RecordingStore, place: str) -> None:
    plain = f"{ME}.answers_nothing"
    order = [plain, LOGIN, OURS] if place == "outer" else [LOGIN, OURS, plain]
    ask = under_asgi([path("", alimited)], settings(store), *order)
    assert [ask().status for _ in range(6)] == [200] * 5 + [429]


def answers_nothing(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        return get_response(request)

    return middleware


def test_async_keys_are_awaited(store: RecordingStore) -> None:
    ask = under_asgi([path("", hello)], settings(store, key=told_later))
    ask(headers={"X-Token": "a"})
    assert [charges[0].key.rpartition("=")[2] for _, charges in store.calls] == ["a}:default"]
