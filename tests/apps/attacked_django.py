"""A Django project that is attacked, with paths that depend on the language, format suffixes and a script name."""

from typing import Any

import django
from django.conf import settings
from django.conf.urls.i18n import i18n_patterns
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path
from django.views import View

from ratelimit_mw.django import limit

RULES = [{"path": "/login", "limits": "3/hour"}, {"path": "/items/{id:int}", "limits": "3/hour"}]

settings.configure(
    ALLOWED_HOSTS=["*"],
    FORCE_SCRIPT_NAME="/app",
    MIDDLEWARE=["django.middleware.locale.LocaleMiddleware", "ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW={"limits": [], "key": "ip", "rules": RULES},
    ROOT_URLCONF=__name__,
    SECRET_KEY="attacked",
)
django.setup()

from rest_framework.urlpatterns import format_suffix_patterns  # noqa: E402  # it reads the settings


class Page(View):
    """A view whose limit is named by its route."""

    def get(self, _: Any) -> HttpResponse:
        """Return the page."""
        return HttpResponse("page")


def answer(_: Any, **__: Any) -> HttpResponse:
    """Return the response of the other views."""
    return HttpResponse("done")


urlpatterns = [
    path("login", answer),
    *format_suffix_patterns([path("items/<int:pk>", answer)]),
    *i18n_patterns(path("page", limit("3/hour")(Page.as_view()))),
]
app = get_asgi_application()
