"""Django: paths with the format suffixes of REST framework, such as `/items.json`."""

from typing import Any

import pytest
from django.http import HttpResponse
from django.test import override_settings
from django.urls import include, path
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.routers import DefaultRouter
from rest_framework.urlpatterns import format_suffix_patterns
from rest_framework.viewsets import ViewSet

from ratelimit_mw.testing import RecordingStore
from web.django_ask import BOTH, CLIENT, Site, hello, keeping, settings, taken

RULES = [
    {"path": "/items", "limits": "2/minute", "name": "items"},
    {"path": "/items/{id:int}", "limits": "3/minute", "name": "item"},
]


class Items(ViewSet):
    authentication_classes = ()
    renderer_classes = (JSONRenderer,)

    def list(self, _: Any, **__: Any) -> Response:
        return Response([])

    def retrieve(self, _: Any, **__: Any) -> Response:
        return Response({})


def urls(**options: Any) -> list[Any]:
    router = DefaultRouter(**options)
    router.register("items", Items, basename="items")
    return router.urls


@BOTH
@pytest.mark.parametrize("by_regex", [True, False])
def test_rules_match_the_path_without_a_format_suffix(site: Site, store: RecordingStore, by_regex: bool) -> None:
    ask = site(urls(use_regex_path=by_regex), settings(store, limits=[], rules=RULES))
    assert [ask(f"/items{end}").status for end in ("/", ".json", ".json/", "/")] == [200, 200, 429, 429]
    assert [ask(f"/items/{end}").status for end in ("7/", "7.json", "8.json", "9.json")] == [200, 200, 200, 429]
    assert taken(store) == [[f"{CLIENT}items 2"]] * 4 + [[f"{CLIENT}item 3"]] * 4


@BOTH
def test_a_rule_for_a_path_with_a_suffix_matches_too(site: Site, store: RecordingStore) -> None:
    rules = [{**RULES[0], "final": False}, {"path": "/items.{format}", "limits": "5/minute", "name": "suffixed"}]
    ask = site(urls(), settings(store, limits=[], rules=rules))
    ask("/items.json")
    ask("/items/")
    assert taken(store) == [[f"{CLIENT}suffixed 5", f"{CLIENT}items 2"], [f"{CLIENT}items 2"]]


@BOTH
def test_a_suffixed_path_is_exempt_only_in_both_readings(site: Site, store: RecordingStore) -> None:
    ask = site(
        [path("in/", include(urls(trailing_slash=False)))], settings(store, exempt=["/in/items", "/in/items.xml"])
    )
    for end in ("", ".xml", ".json"):
        ask(f"/in/items{end}")
    assert taken(store) == [[f"{CLIENT}default 9"]]


@BOTH
@pytest.mark.parametrize("more", [{}, {"on_decision": id}], ids=["short way", "longer way"])
def test_only_the_format_of_the_route_is_a_suffix(site: Site, store: RecordingStore, more: dict[str, Any]) -> None:
    def file(_: Any, name: str, format: str = "") -> HttpResponse:  # noqa: A002  # REST framework's name
        return HttpResponse(f"{name} {format}")

    plain, suffixed = path("files/<name>", file), path("named/<str:name>.<format>", file)
    rule = {"path": "/{folder}/a", "limits": "1/minute", "name": "a"}
    ask = site([plain, suffixed], settings(store, rules=[rule], **more))
    for where in ("/files/a.json", "/named/a.json", "/nowhere/a.json"):
        ask(where)
    assert taken(store) == [[f"{CLIENT}default 9"], [f"{CLIENT}a 1", f"{CLIENT}default 9"], [f"{CLIENT}default 9"]]


@BOTH
@pytest.mark.parametrize("name", ["as", None])
def test_the_suffix_has_the_name_that_rest_framework_is_told(site: Site, store: RecordingStore, name: Any) -> None:
    with override_settings(REST_FRAMEWORK={"FORMAT_SUFFIX_KWARG": name}):
        patterns = format_suffix_patterns([path("items", keeping(hello))]) if name else [path("items.json", hello)]
    ask = site(patterns, settings(store, rules=RULES), REST_FRAMEWORK={"FORMAT_SUFFIX_KWARG": name})
    ask("/items.json")
    assert taken(store) == [[*([f"{CLIENT}items 2"] if name else []), f"{CLIENT}default 9"]]
