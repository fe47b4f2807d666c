"""Tests limits that are attached to Django views."""

import asyncio
import logging
from functools import partial
from typing import Any

import httpx
import pytest
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import TemplateView

from ratelimit_mw import ConfigError
from ratelimit_mw.django import exempt, limit
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings.endpoint_limits import bucket_for, limits_on
from ratelimit_mw.testing import RecordingStore
from web.django_ask import BOTH, CLIENT, Site, hello, keeping, settings, taken, under_asgi, under_wsgi
from web.django_site import asgi_site

pytestmark = pytest.mark.usefixtures("speaks_again")

ME = __name__


@limit("5/minute")
def limited(request: Any, **_: Any) -> HttpResponse:
    return hello(request)


@limit("5/minute")
async def alimited(request: Any, **_: Any) -> HttpResponse:
    return hello(request)


@exempt
def free(request: Any) -> HttpResponse:
    return hello(request)


# limits on views


class OnClass(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return hello(request)

    post = get


class Marked(OnClass):
    """A view with a limit on the class, and one more on a method."""

    @limit("3/minute")
    def post(self, request: HttpRequest) -> HttpResponse:
        return hello(request)


limit("5/minute")(Marked)


@method_decorator(limit("5/minute"), name="dispatch")
class Dispatched(OnClass):
    pass


@method_decorator(limit("5/minute"), name="dispatch")
@method_decorator(limit("7/hour"), name="dispatch")
class Twice(OnClass):
    pass


@method_decorator([csrf_exempt, limit("5/minute")], name="dispatch")
class Listed(OnClass):
    pass


class Inherits(Marked):
    pass


class Feed:
    """A view that is an unhashable instance, like the views of django.contrib.syndication."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return hello(request)


limit("5/minute")(Feed)
VIEWS: list[tuple[str, Any, list[str]]] = [
    ("function", limited, [f"@{ME}.limited() 5"]),
    ("async function", alimited, [f"@{ME}.alimited() 5"]),
    ("under csrf_exempt", csrf_exempt(limited), [f"@{ME}.limited() 5"]),
    ("under login_required", login_required(limited, login_url="/"), [f"@{ME}.limited() 5"]),
    ("above csrf_exempt", limit("4/minute")(csrf_exempt(hello)), [f"@{hello.__module__}.hello() 4"]),
    ("among others", csrf_exempt(limit("4/minute")(keeping(hello))), [f"@{hello.__module__}.hello() 4"]),
    ("two", limit("4/hour")(keeping(limited)), [f"@{ME}.limited() 4", f"@{ME}.limited()+ 5"]),
    ("partial", partial(limited, more=1), [f"@{ME}.limited() 5"]),
    ("made in a function", limit("4/minute")(lambda request: hello(request, more=1)), ["@view-8d19d5aa() 4"]),
    ("class", Marked.as_view(), [f"@{ME}.Marked() 5"]),
    ("class, inherited", Inherits.as_view(), [f"@{ME}.Inherits() 5"]),
    ("dispatch", Dispatched.as_view(), [f"@{ME}.Dispatched() 5"]),
    ("dispatch, twice", Twice.as_view(), [f"@{ME}.Twice() 5", f"@{ME}.Twice()+ 7"]),
    ("dispatch, in a list", Listed.as_view(), [f"@{ME}.Listed() 5"]),
    ("as_view, in urlpatterns", limit("4/minute")(OnClass.as_view()), ["@view-8d19d5aa() 4"]),
    ("as_view under login_required", login_required(Marked.as_view(), login_url="/"), [f"@{ME}.Marked() 5"]),
    ("instance", Feed(), [f"@{ME}.Feed() 5"]),
    ("exempt", free, []),
    ("none", OnClass.as_view(), ["default 9"]),
]


@BOTH
@pytest.mark.promise(1, 9)
@pytest.mark.parametrize(("view", "buckets"), [row[1:] for row in VIEWS], ids=[row[0] for row in VIEWS])
def test_limits_apply_to_every_kind_of_view(site: Site, store: RecordingStore, view: Any, buckets: list[str]) -> None:
    ask = site([path("view", view), path("other", OnClass.as_view())], settings(store))
    ask("/view")
    ask("/view", "HEAD")
    own = [[CLIENT + bucket for bucket in buckets]] * 2 if buckets else []
    assert taken(store) == own
    store.calls.clear()
    ask("/other")
    assert taken(store) == [[f"{CLIENT}default 9"]]  # Django's View is unchanged


@BOTH
def test_a_limit_on_a_method_applies_to_that_method_only(site: Site, store: RecordingStore) -> None:
    ask = site([path("view", Marked.as_view())], settings(store), CSRF_COOKIE_NAME="x")
    for method in ("GET", "POST", "BREW"):
        ask("/view", method)
    own = f"{CLIENT}@{ME}.Marked() 5"
    assert taken(store) == [[own], [own, f"{CLIENT}@{ME}.Marked.post() 3"], [own]]


def test_views_from_one_factory_have_separate_buckets(store: RecordingStore) -> None:
    def make() -> Any:
        def view(request: HttpRequest) -> HttpResponse:
            return hello(request)

        return limit("1/minute")(view)

    one, two = TemplateView.as_view(), TemplateView.as_view()
    urls = [path("a", make()), path("b", make()), path("c", limit("1/minute")(one)), path("d", limit("1/minute")(two))]
    ask = under_wsgi(urls, settings(store), TEMPLATES=[])
    for place in "abcd":
        ask(f"/{place}")
    assert taken(store) == [[f"{CLIENT}@{bucket_for(f'/{place}')}() 1"] for place in "abcd"]
    assert limits_on(TemplateView) == ()


def test_a_view_at_several_routes_has_one_bucket(store: RecordingStore) -> None:
    ask = under_wsgi([path("a", limited), path("b", limited)], settings(store, limits="1/minute"))
    assert [ask(f"/{place}").status for place in "ababab"] == [200] * 5 + [429]


@BOTH
def test_view_limits_apply_in_addition_to_rules_and_app_limits(site: Site, store: RecordingStore) -> None:
    rules = [{"path": "/view", "limits": "7/minute", "name": "rule"}]
    ask = site([path("view", limited), path("free", free)], settings(store, rules=rules, app_limits="8/minute"))
    ask("/view")
    ask("/free")
    app = f"{CLIENT}app 8"
    assert taken(store) == [[app, f"{CLIENT}rule 7", f"{CLIENT}@{ME}.limited() 5"], [app]]


def test_invalid_limits_and_targets_raise_at_decoration() -> None:
    with pytest.raises(ConfigError, match="unknown period 'minut', did you mean 'minute'"):
        limit("5/minut")
    with pytest.raises(TypeError, match="a limit is attached to a function or a class; got"):
        limit("5/minute")(5)  # type: ignore[type-var]


async def told_later(request: Request) -> str:
    return request.header("x-token") or "nobody"


def test_async_keys_are_awaited_under_asgi_and_share_one_bucket_under_wsgi(
    store: RecordingStore, caplog: pytest.LogCaptureFixture
) -> None:
    view = limit("1/minute", key=told_later)(keeping(hello))
    asgi_ask, wsgi_ask = under_asgi([path("", view)], settings(store)), under_wsgi([path("", view)], settings(store))
    tokens = [{"X-Token": "a"}, {"X-Token": "b"}]
    assert [asgi_ask(headers=token).status for token in (*tokens, tokens[0])] == [200, 200, 429]
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        assert [wsgi_ask(headers=token).status for token in tokens] == [200, 429]
    why = "got told_later, which is async; expected a plain function under WSGI"
    told = f"limits on {hello.__module__}.hello: key: {why}"
    assert f"ratelimit_mw: {told}" in caplog.messages


def test_waiting_for_an_async_views_slot_does_not_block_the_event_loop() -> None:
    @limit([], concurrent=1, queue=1)
    async def view(_: Any) -> HttpResponse:
        await asyncio.sleep(0.01)
        return HttpResponse()

    async def both() -> list[int]:
        transport = httpx.ASGITransport(asgi_site([path("", view)], {"limits": []}))
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            answers = await asyncio.gather(client.get("/"), client.get("/"))
        return [answer.status_code for answer in answers]

    assert asyncio.run(both()) == [200, 200]
