"""The throttle for Django REST framework."""

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from asgiref.wsgi import WsgiToAsgi
from django.conf import settings as project
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes, throttle_classes
from rest_framework.request import Request as RestRequest
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from ratelimit_mw import ConfigError, MemoryStore, admin
from ratelimit_mw.core import log as notices
from ratelimit_mw.django import Throttle, limit
from ratelimit_mw.django import throttle as idle
from ratelimit_mw.engine.reload import Reloader
from ratelimit_mw.http.request import Request
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock, RecordingStore, freeze
from web.django_ask import BOTH, CLIENT, Site, settings, taken, under_asgi, under_wsgi
from web.django_site import LOGIN, asgi_site, wsgi_site

ME = __name__
FREE: dict[str, Any] = {"limits": []}  # the middleware itself limits nothing


@pytest.fixture(autouse=True)
def _as_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_quiet_until", {})
    monkeypatch.setattr(idle, "_standalone", [])
    monkeypatch.setattr(idle, "_reported", set())


class Tokens(BaseAuthentication):
    """Authenticates users by a token that Django's middleware does not know."""

    def authenticate(self, request: RestRequest) -> Any:
        token = request.META.get("HTTP_X_TOKEN")
        return (SimpleNamespace(is_authenticated=True, pk=token), None) if token else None


class Hello(APIView):
    authentication_classes = (Tokens,)

    def get(self, request: RestRequest) -> Response:
        return Response("hello")


class Burst(Throttle):
    limits = "2/minute"


class Sustained(Throttle):
    limits = "3/hour"
    key = "ip"
    name = "sustained"


class Dear(Throttle):
    limits = "9/hour"
    cost = staticmethod(lambda request: 4 if request.method == "GET" else 1)


def handled(error: Any, _: Any) -> Response:
    """Handle errors for REST framework, as a project may."""
    return Response([type(error).__name__, error.wait, error.verdict.limit_name, error.verdict.retry_after], 420)


def throttled(*classes: Any, **more: Any) -> Any:
    return type("Throttled", (Hello,), {"throttle_classes": classes, **more}).as_view()  # type: ignore[attr-defined]


@BOTH
@pytest.mark.parametrize(
    ("classes", "name", "times", "wait"),
    [((Burst,), "Burst", 2, 60), ((Burst, Sustained), "Burst", 2, 60), ((Sustained,), "sustained", 3, 3600)],
)
def test_the_error_of_rest_framework_has_the_verdict(
    site: Site, classes: Any, name: str, times: int, wait: int
) -> None:
    view = throttled(*classes, get_exception_handler=lambda _: handled)
    store = RecordingStore(clock=Clock())
    ask = site([path("", view)], settings(store, **FREE))
    refused = [ask() for _ in range(times + 1)][-1]
    assert (refused.status, json.loads(refused.body)) == (420, ["Throttled", wait, name, wait])


@BOTH
def test_throttle_refuses_like_rest_framework_and_adds_ratelimit_fields(site: Site, store: RecordingStore) -> None:
    ask = site([path("", throttled(Burst))], settings(store, **FREE))
    first, _, refused = (ask() for _ in range(3))
    assert (first.status, first.body) == (200, b'"hello"')
    assert first.field("ratelimit") == ['"Burst";r=1;t=60']
    assert refused.status == 429
    assert refused.body == b'{"detail":"Request was throttled. Expected available in 60 seconds."}'
    assert refused.field("retry-after") == ["60"]
    assert refused.field("ratelimit") == ['"Burst";r=0;t=60']
    assert refused.field("ratelimit-policy") == ['"Burst";q=2;w=60']
    assert taken(store) == [[f"{CLIENT}@{ME}.Burst() 2"]] * 3


@pytest.mark.promise(4)
def test_client_is_admitted_after_retry_after_seconds_and_not_before() -> None:
    clock = Clock()
    ask = under_wsgi([path("", throttled(Burst))], {**FREE, "store": MemoryStore(clock=clock)})
    assert ask().status == 200
    clock.advance(10.25)
    assert ask().status == 200
    refused = ask()
    assert refused.status == 429
    clock.advance(int(refused.field("retry-after")[0]) - 1)
    assert ask().status == 429
    clock.advance(1)
    assert ask().status == 200


@BOTH
@pytest.mark.promise(1, 2)
def test_throttles_of_a_view_are_charged_together_or_not_at_all(site: Site, store: RecordingStore) -> None:
    ask = site([path("", throttled(Burst, Sustained))], settings(store, **FREE))
    answers = [ask() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert taken(store) == [[f"{CLIENT}@{ME}.Burst() 2", f"{CLIENT}@sustained 3"]] * 3
    assert answers[2].field("ratelimit") == ['"Burst";r=0;t=60, "sustained";r=1;t=3600']
    assert answers[2].field("retry-after") == ["60"]


@BOTH
@pytest.mark.promise(1, 2)
def test_throttle_and_middleware_charge_and_show_each_limit_once(site: Site, store: RecordingStore) -> None:
    ask = site([path("", throttled(Burst))], settings(store, limits="9/minute", app_limits="99/minute"))
    answers = [ask() for _ in range(3)]
    own = [[f"{CLIENT}app 99", f"{CLIENT}default 9"], [f"{CLIENT}@{ME}.Burst() 2"]]
    assert taken(store) == own * 3
    assert answers[0].field("ratelimit") == ['"Burst";r=1;t=60, "app";r=98;t=60, "default";r=8;t=60']
    assert answers[2].field("ratelimit") == ['"Burst";r=0;t=60, "app";r=96;t=60, "default";r=6;t=60']
    assert [verb for verb, _ in store.calls] == ["take"] * 6  # the middleware's charge stays


@BOTH
@pytest.mark.promise(4)
def test_retry_after_of_a_throttle_includes_the_middlewares_limits(site: Site, store: RecordingStore) -> None:
    ask = site([path("", throttled(Burst))], settings(store, limits="3/hour"))
    assert [ask().field("retry-after") for _ in range(3)] == [[], [], ["3600"]]


@BOTH
def test_throttle_is_not_charged_if_the_middleware_refuses(site: Site, store: RecordingStore) -> None:
    ask = site([path("", throttled(Burst))], settings(store, limits="1/minute"))
    assert [ask().status for _ in range(2)] == [200, 429]
    assert len(store.calls) == 3


@BOTH
def test_throttle_uses_the_user_of_rest_framework(site: Site, store: RecordingStore) -> None:
    ask = site([path("", throttled(Burst))], settings(store, limits="9/minute"))
    assert [ask(headers={"X-Token": name}).status for name in ("a", "a", "a", "b", "")] == [200, 200, 429, 200, 200]
    users = ["{user=a}:", "{user=a}:", "{user=a}:", "{user=b}:", CLIENT]
    assert taken(store)[1::2] == [[f"{user}@{ME}.Burst() 2"] for user in users]
    assert taken(store)[::2] == [[f"{CLIENT}default 9"]] * 5


@BOTH
def test_views_share_the_bucket_of_a_throttle(site: Site, store: RecordingStore) -> None:
    ask = site([path("a", throttled(Burst)), path("b", throttled(Burst))], settings(store, **FREE))
    assert [ask(where).status for where in ("/a", "/b", "/a", "/b")] == [200, 200, 429, 429]


class ByRoute(Throttle):
    limits = "1/minute"
    key = "ip+route"


def test_route_in_the_key_gives_each_view_its_own_bucket(store: RecordingStore) -> None:
    ask = under_wsgi([path("a", throttled(ByRoute)), path("b", throttled(ByRoute))], settings(store, **FREE))
    assert [ask(where).status for where in ("/a", "/b", "/a", "/b")] == [200, 200, 429, 429]
    assert taken(store)[0] == [f"{{ip=192.0.2.1+route=/a}}:@{ME}.ByRoute() 1"]


def test_a_cost_may_be_a_function(store: RecordingStore) -> None:
    ask = under_wsgi([path("", throttled(Dear))], settings(store, **FREE))
    assert [ask().status for _ in range(3)] == [200, 200, 429]
    assert [charges[0].cost for _, charges in store.calls] == [4, 4, 4]


# scopes


class Uploads(Throttle):
    scope = "uploads"


RATES = {"uploads": "2/min", "contacts": "1/m", "days": "7/day", "none": None, "wrong": "2/mn", "default": "3/h"}


def scoped(*views: Any, store: RecordingStore, rates: Any = None) -> Any:
    urls = [path(str(number), view) for number, view in enumerate(views)]
    rest = {"DEFAULT_THROTTLE_RATES": RATES if rates is None else rates}
    return under_wsgi(urls, settings(store, **FREE), REST_FRAMEWORK=rest, DEBUG_PROPAGATE_EXCEPTIONS=True)


def test_scope_takes_its_rate_from_rest_framework_settings(store: RecordingStore) -> None:
    ask = scoped(throttled(Uploads), throttled(Throttle, throttle_scope="uploads"), throttled(Throttle), store=store)
    assert [ask(where).status for where in ("/0", "/1", "/0", "/1")] == [200, 200, 429, 429]
    assert [ask("/2").status for _ in range(3)] == [200] * 3  # neither limits nor a scope
    assert taken(store) == [[f"{CLIENT}@uploads() 2"]] * 4


@pytest.mark.parametrize(
    ("scope", "bucket"), [("contacts", "@contacts() 1"), ("days", "@days() 7"), ("default", "@default() 3")]
)
def test_rest_framework_notation_of_rates_is_accepted(store: RecordingStore, scope: str, bucket: str) -> None:
    assert scoped(throttled(Throttle, throttle_scope=scope), store=store)("/0").status == 200
    assert taken(store) == [[CLIENT + bucket]]


def test_rate_none_means_no_limit(store: RecordingStore) -> None:
    assert scoped(throttled(Throttle, throttle_scope="none"), store=store)("/0").status == 200
    assert store.calls == []


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ("missing", "DEFAULT_THROTTLE_RATES: got no rate for 'missing', the scope of Throttle"),
        ("wrong", "DEFAULT_THROTTLE_RATES['wrong']: '2/mn': unknown period 'mn'"),
    ],
)
def test_scope_without_a_valid_rate_is_an_error(store: RecordingStore, scope: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        scoped(throttled(Throttle, throttle_scope=scope), store=store)("/0")
    assert str(error.value).startswith(message)


def test_error_in_the_key_of_a_scoped_throttle_names_the_class(store: RecordingStore) -> None:
    class Keyed(Throttle):
        scope = "uploads"
        key = "usr"

    with pytest.raises(ConfigError, match=r"Keyed\.key: got 'usr', did you mean 'user'") as error:
        scoped(throttled(Keyed), store=store)("/0")
    assert "DEFAULT_THROTTLE_RATES" not in str(error.value)


# classes


async def later(_: Request) -> str:
    return "later"


def method(self: Any, request: Request) -> int:
    raise AssertionError


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"limits": "5/minut"}, "Wrong.limits: '5/minut': unknown period 'minut', did you mean 'minute'?"),
        ({"limits": "5/minute", "key": "cookie"}, "Wrong.key: got 'cookie', expected"),
        ({"limits": "5/minute", "key": later}, "Wrong.key: got later, which is async; expected a plain function"),
        ({"limits": "5/minute", "cost": method}, "Wrong.cost: got a method, expected a function of the request"),
        ({"limits": "5/minute", "cost": 6}, "Wrong.cost: 6 can never pass 5/60s"),
    ],
)
def test_wrong_throttle_attributes_fail_the_class_definition(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        type("Wrong", (Throttle,), words)
    assert str(error.value).startswith(message)


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rate": "1/minute"}, "unknown setting `rate`: here it is `limits`: text such as '100/minute'"),
        ({"limit": "1/minute"}, "unknown setting `limit`: did you mean `limits`?"),
        ({"limits": "5/minute", "limist": "1/minute"}, "unknown setting `limist`: did you mean `limits`?"),
        ({"limits": "5/minute", "num_requests": 5}, "unknown setting `num_requests`: here it is `limits`"),
        ({"THROTTLE_RATES": {"a": "1/minute"}}, "unknown setting `THROTTLE_RATES`: here it is `limits`"),
        ({"get_cache_key": method}, "unknown setting `get_cache_key`: here it is `key`"),
        ({"get_rate": method}, "unknown setting `get_rate`: here it is `limits`"),
        ({"limits": "5/minute", "kye": "ip"}, "unknown setting `kye`: did you mean `key`?"),
    ],
)
def test_unknown_settings_fail_the_class_definition_with_a_hint(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        type("Wrong", (Throttle,), words)
    assert str(error.value).startswith(f"Wrong: {message}")


def test_other_attributes_of_a_throttle_are_allowed() -> None:
    own = {"limits": "5/minute", "message": "no", "limited": method, "_rates": 1, "allow_request": method}
    assert type("Right", (Throttle,), own)._endpoint_limit is not None  # type: ignore[attr-defined]  # the class is made here


class NotForStaff(Burst):
    """A throttle that overrides `allow_request`."""

    def allow_request(self, request: Any, view: Any) -> bool:
        return request.user.pk == "staff" or super().allow_request(request, view)


class OfAnother(BaseThrottle):
    asked: ClassVar[list[str]] = []

    def allow_request(self, request: Any, view: Any) -> bool:
        self.asked.append("asked")
        return True


def test_throttle_with_its_own_allow_request_is_called_separately(store: RecordingStore) -> None:
    OfAnother.asked.clear()
    ask = under_wsgi([path("", throttled(NotForStaff, OfAnother, Sustained))], settings(store, **FREE))
    for name in ("staff", "x"):
        assert ask(headers={"X-Token": name}).status == 200
    other = [f"{CLIENT}@sustained 3"]
    assert taken(store) == [other, [f"{{user=x}}:@{ME}.NotForStaff() 2"], other]
    assert OfAnother.asked == ["asked"] * 2


class Never(Throttle):
    limits: ClassVar[Any] = [{"limit": "3/minute", "cost": staticmethod(lambda _: 9).__func__}]


def test_request_over_the_whole_quota_has_no_retry_after(store: RecordingStore) -> None:
    refused = under_wsgi([path("", throttled(Never))], settings(store, **FREE))()
    assert refused.status == 429
    assert refused.field("retry-after") == []
    assert refused.body == b'{"detail":"Request was throttled."}'


# views of every kind


class Books(ViewSet):
    authentication_classes = (Tokens,)
    throttle_classes: Any = (Burst,)

    @limit("5/minute", name="list")
    def list(self, request: RestRequest) -> Response:
        return Response([])

    def retrieve(self, request: RestRequest, pk: str) -> Response:
        return Response(pk)


class MarkedBooks(Books):
    throttle_classes = ()


limit("7/minute")(MarkedBooks)


@api_view(["GET"])
@authentication_classes([Tokens])
@throttle_classes([Burst])  # type: ignore[list-item]  # it is not a subclass of REST framework's
@limit("4/minute")
def function(request: RestRequest) -> Response:
    return Response("hello")


@limit("6/minute", name="above")
@api_view(["GET"])
@authentication_classes([Tokens])
@limit("4/minute")
def above(request: RestRequest) -> Response:
    return Response("hello")


def urls_of(viewset: Any) -> Any:
    router = SimpleRouter()
    router.register("books", viewset, basename="book")
    return router.urls


@BOTH
@pytest.mark.parametrize(
    ("urls", "where", "own"),
    [
        (urls_of(Books), "/books/", [["@list 5"], [f"@{ME}.Burst() 2"]]),
        (urls_of(Books), "/books/7/", [["default 9"], [f"@{ME}.Burst() 2"]]),
        (urls_of(MarkedBooks), "/books/", [[f"@{ME}.MarkedBooks() 7", "@list 5"]]),
        (urls_of(MarkedBooks), "/books/7/", [[f"@{ME}.MarkedBooks() 7"]]),
        ([path("f", function)], "/f", [[f"@{ME}.function() 4"], [f"@{ME}.Burst() 2"]]),
        ([path("f", above)], "/f", [["@above 6", f"@{ME}.above() 4"]]),
    ],
    ids=["viewset", "another action", "marked viewset", "marked viewset, another action", "api_view", "above api_view"],
)
def test_limits_and_throttles_work_on_each_kind_of_view(
    site: Site, store: RecordingStore, urls: Sequence[Any], where: str, own: list[list[str]]
) -> None:
    ask = site(urls, settings(store))
    assert ask(where).status == 200
    assert taken(store) == [[CLIENT + bucket for bucket in buckets] for buckets in own]


# without the middleware


def test_throttle_without_settings_counts_in_this_process_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    ask = under_wsgi([path("", throttled(Burst, Sustained))], None, LOGIN)
    with caplog.at_level(logging.WARNING, "ratelimit_mw"), freeze():
        answers = [ask() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2].field("retry-after") == ["60"]
    (told,) = [message for message in caplog.messages if "Throttle" in message]
    assert told == (
        "ratelimit_mw: Throttle has neither RateLimitMiddleware nor RATELIMIT_MW, so it counts in each process alone; "
        "add ratelimit_mw.django.RateLimitMiddleware to MIDDLEWARE"
    )


def test_throttle_without_the_middleware_uses_the_project_settings(
    store: RecordingStore, caplog: pytest.LogCaptureFixture
) -> None:
    own = settings(store, trusted_proxies=["192.0.2.0/24"])
    ask = under_wsgi([path("", throttled(Burst))], own, LOGIN)
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        ask(headers={"X-Forwarded-For": "198.51.100.7"})
    assert taken(store) == [[f"{{ip=198.51.100.7}}:@{ME}.Burst() 2"]]
    assert caplog.messages == []


def test_throttle_without_the_middleware_takes_over_changed_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Reloader[Any]] = []

    def start(self: Reloader[Any]) -> None:  # the test looks in place of the thread
        started.append(self)

    monkeypatch.setattr(Reloader, "start", start)
    store = MemoryStore(clock=Clock())
    own = {"limits": [], "store": store, "key": "ip"}
    ask = under_wsgi([path("", throttled(Burst))], lambda: own, LOGIN)
    assert [ask().status for _ in range(3)] == [200, 200, 429]
    own["key"] = "header:x-key"
    (reloader,) = started
    reloader.look()
    assert [ask(headers={"x-key": key}).status for key in "aaab"] == [200, 200, 429, 200]
    own["key"] = "ip"
    reloader.look()
    assert ask().status == 429  # the store is the same
    assert len(started) == 1


def test_throttle_without_the_middleware_applies_overrides(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/limits.db"
    SQLiteStore(url).close()  # makes the file
    own = {"limits": [], "store": url, "store_timeout": 5.0, "key": "ip"}
    admin.set_override(own, ip="192.0.2.1", exempt=True)
    ask = under_wsgi([path("", throttled(Burst))], own, LOGIN)
    assert [ask().status for _ in range(3)] == [200, 200, 200]


class Slow(MemoryStore):
    """A store that must be awaited, like stores over a network."""

    async def atake(self, charges: Any) -> Any:
        return await super().atake(charges)


def test_throttle_works_with_an_async_store_under_asgi() -> None:
    ask = under_asgi([path("", throttled(Burst))], {**FREE, "store": Slow(clock=Clock())})
    assert [ask().status for _ in range(3)] == [200, 200, 429]


def test_throttle_in_an_event_loop_counts_locally_and_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """An async view calls the throttle inside the event loop."""

    async def view(request: Any) -> HttpResponse:
        throttle = Burst()
        return HttpResponse(status=200 if throttle.allow_request(request, None) else 429)

    ask = under_asgi([path("", view)], {**FREE, "store": Slow(clock=Clock())})
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        assert [ask().status for _ in range(3)] == [200, 200, 429]
    assert "ratelimit_mw: throttle: runs inside an event loop" in caplog.messages[0]


def test_throttle_works_on_a_plain_django_request() -> None:
    factory = APIRequestFactory()
    with override_settings(RATELIMIT_MW={"limits": [], "store": MemoryStore(clock=Clock())}):
        throttles = [Burst() for _ in range(3)]
        allowed = [throttle.allow_request(factory.get("/"), None) for throttle in throttles]
    assert allowed == [True, True, False]
    assert throttles[2].wait() == 60.0
    assert throttles[0].wait() is None


def test_throttle_without_a_scope_works_in_a_project_without_urls() -> None:
    """A view may be called without a URL, as in tests of an app whose settings have no ROOT_URLCONF."""
    view = throttled(Throttle)
    with override_settings(RATELIMIT_MW=FREE):
        del project.ROOT_URLCONF
        assert view(APIRequestFactory().get("/")).status_code == 200


# throttles that throttle nothing


class Nothing(Throttle):
    key = "ip"


def throttles_nothing(throttle: type, *views: str, more: str = "") -> str:
    return (
        f"{throttle.__module__}.{throttle.__qualname__} throttles nothing on {', '.join(views)}{more}: it has neither "
        "`limits` nor `scope`, and the views have no `throttle_scope`; set `throttle_scope` on the views, with a rate "
        "in DEFAULT_THROTTLE_RATES, or use a subclass of Throttle with `limits` or `scope`"
    )


def inheriting(throttle: type, **more: Any) -> Any:
    """Return a view class that does not name its throttle itself, as with DEFAULT_THROTTLE_CLASSES."""
    base = type("Base", (Hello,), {"throttle_classes": [throttle]})
    return type("Inheriting", (base,), more)


@pytest.mark.parametrize("throttle", [Throttle, Nothing])
def test_a_throttle_that_throttles_nothing_is_reported_once(throttle: type, caplog: pytest.LogCaptureFixture) -> None:
    """The throttle counts nothing, so no other warning is logged."""
    ask = under_wsgi([path("", throttled(throttle)), path("b", inheriting(throttle).as_view())], None, LOGIN)
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        answers = [ask().status for _ in range(3)] + [ask("/b").status]
    assert answers == [200] * 4
    assert caplog.messages == [f"ratelimit_mw: {throttles_nothing(throttle, f'{ME}.Throttled', f'{ME}.Inheriting')}"]


def test_a_throttle_that_throttles_nothing_is_an_error_with_strict(caplog: pytest.LogCaptureFixture) -> None:
    ask = under_wsgi([path("", throttled(Nothing))], {**FREE, "strict": True})
    assert [ask().status for _ in range(2)] == [500, 500]
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [(type(error), str(error)) for error in errors] == [
        (ConfigError, throttles_nothing(Nothing, f"{ME}.Throttled"))
    ] * 2


@pytest.mark.parametrize("throttle", [Throttle, Nothing])
@pytest.mark.parametrize("as_route", [False, True])
def test_throttle_that_limits_only_scoped_views_is_not_reported(
    throttle: type, as_route: bool, caplog: pytest.LogCaptureFixture
) -> None:
    kind, scope = inheriting(throttle), {"throttle_scope": "uploads"}
    scoped = throttled(throttle, **scope)
    if as_route:  # the route sets it, as for an action of a viewset
        kind.throttle_scope = None
        scoped = kind.as_view(**scope)
    urls = [path("", inheriting(throttle).as_view()), path("b", scoped)]
    rates = {"DEFAULT_THROTTLE_RATES": {"uploads": "1/day"}}
    with override_settings(REST_FRAMEWORK=rates), caplog.at_level(logging.WARNING, "ratelimit_mw"):
        ask = under_wsgi(urls, {**FREE, "strict": True})
        assert [ask().status for _ in range(3)] == [200, 200, 200]
        assert [ask("/b").status for _ in range(2)] == [200, 429]
    assert [record for record in caplog.records if record.name == "ratelimit_mw"] == []


def test_view_without_a_scope_is_reported_beside_a_view_with_a_scope() -> None:
    views = [throttled(Throttle), throttled(Throttle, throttle_scope="a")]
    ((throttle, kinds, _),) = idle.idle_throttles(views)
    assert (throttle, kinds) == (Throttle, [views[0].cls])


def test_custom_get_throttles_or_allow_request_is_not_reported() -> None:
    class Own(Hello):
        throttle_classes = (Throttle,)  # type: ignore[assignment]  # it is not a subclass of REST framework's

        def get_throttles(self) -> Any:
            self.throttle_scope = "a"
            return super().get_throttles()

    class Always(Throttle):
        def allow_request(self, request: Any, view: Any) -> bool:
            return False

    assert list(idle.idle_throttles([Own.as_view(), throttled(Always), throttled(Burst)])) == []


def test_report_names_at_most_three_views() -> None:
    ((_, _, text),) = idle.idle_throttles([throttled(Nothing) for _ in range(5)])
    named = f"{ME}.Throttled, {ME}.Throttled, {ME}.Throttled and 2 more"
    assert text == throttles_nothing(Nothing, named).partition(";")[0]


def user_name(request: Any) -> str | None:
    """A key: the user name in the form of a login."""
    name: str | None = request.raw.POST.get("username")
    return name


class PerName(Throttle):
    limits = "2/minute"
    key = user_name


class LoginOfApi(APIView):
    throttle_classes: Any = (PerName,)

    def post(self, request: Any) -> Response:
        return Response(request.data["username"])


@limit("2/minute", key=user_name)
@csrf_exempt
def login_view(request: Any) -> HttpResponse:
    return HttpResponse(request.POST["username"])


@pytest.mark.parametrize("where", ["/api", "/view"])
@pytest.mark.parametrize("make", [wsgi_site, asgi_site])
def test_a_key_may_read_the_form_of_a_login(make: Any, where: str) -> None:
    urls = [path("api", LoginOfApi.as_view()), path("view", login_view)]
    app = make(urls, settings(RecordingStore(clock=Clock()), limits="99/minute"))

    async def logins(transport: Any) -> list[int]:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            names = ("ann", "ann", "bob", "ann", "bob", "bob")
            return [(await client.post(where, data={"username": name})).status_code for name in names]

    asgi_app: Any = app if make is asgi_site else WsgiToAsgi(app)  # type: ignore[no-untyped-call]  # asgiref has no types
    assert asyncio.run(logins(httpx.ASGITransport(asgi_app))) == [200, 200, 200, 429, 200, 429]
