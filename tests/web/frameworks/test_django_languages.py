"""Django: routes whose text depends on the language that the client asks for."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.http import HttpResponse
from django.urls import include, path
from django.utils import translation
from django.utils.translation import gettext_lazy, trans_real
from django.views import View

from ratelimit_mw.django import limit
from ratelimit_mw.testing import RecordingStore
from web.django_ask import BOTH, CLIENT, Site, hello, keeping, settings, taken
from web.django_site import LOGIN, OURS
from web.frameworks.test_django_throttle import ByRoute, throttled

LOCALE = "django.middleware.locale.LocaleMiddleware"
pytestmark = pytest.mark.usefixtures("_translated")


class Page(View):
    def get(self, request: Any) -> HttpResponse:
        return hello(request)


@pytest.fixture
def _translated() -> Iterator[None]:
    """Translate `users/` to French."""
    texts = trans_real.translation("fr")._catalog._catalogs[0]  # type: ignore[attr-defined]  # not in the stubs
    texts["users/"] = "utilisateurs/"
    yield
    del texts["users/"]
    translation.activate("en")


def urls(*, of_default: bool = True) -> list[Any]:
    views = [
        path("page", limit("2/minute")(Page.as_view())),
        path("lambda", limit("2/minute")(lambda request: HttpResponse(request.path))),
        path("throttled", throttled(ByRoute)),
        path(gettext_lazy("users/"), include([path("<int:x>", limit("2/minute", key="ip+route")(keeping(hello)))])),
    ]
    return i18n_patterns(*views, prefix_default_language=of_default)


@BOTH
@pytest.mark.parametrize("place", ["page", "lambda"])
def test_a_limit_that_is_named_by_its_route_has_one_bucket_for_all_languages(
    site: Site, store: RecordingStore, place: str
) -> None:
    ask = site(urls(), settings(store), LOCALE, LOGIN, OURS)
    assert [ask(f"/{one}/{place}").status for one in ("de", "fr", "en", "de")] == [200, 200, 429, 429]
    assert len({str(charges) for charges in taken(store)}) == 1


@BOTH
def test_a_throttle_with_route_has_one_bucket_for_all_languages(site: Site, store: RecordingStore) -> None:
    ask = site(urls(), settings(store, limits=[]), LOCALE, LOGIN, OURS)
    assert [ask(f"/{one}/throttled").status for one in ("de", "fr", "en")] == [200, 429, 429]
    assert taken(store)[0] == [f"{{ip=192.0.2.1+route=/%3Clanguage%3E/throttled}}:@{ByRoute.__module__}.ByRoute() 1"]


@BOTH
def test_a_translated_pattern_has_one_bucket_for_all_languages(site: Site, store: RecordingStore) -> None:
    ask = site(urls(), settings(store), LOCALE, LOGIN, OURS)
    paths = ("/fr/utilisateurs/1", "/de/users/2", "/en/users/3")
    assert [ask(where).status for where in paths] == [200, 200, 429]
    key = f"{{ip=192.0.2.1+route=/%3Clanguage%3E/users/%3Cint:x%3E}}:@{hello.__module__}.hello() 2"
    assert taken(store) == [[key]] * 3


@BOTH
def test_the_language_without_a_prefix_shares_the_bucket(site: Site, store: RecordingStore) -> None:
    ask = site(urls(of_default=False), settings(store), LOCALE, LOGIN, OURS, LANGUAGE_CODE="en")
    assert [ask(where).status for where in ("/page", "/de/page", "/page")] == [200, 200, 429]
    assert taken(store)[0][0].startswith(CLIENT)
