"""Django projects without files: settings that a process configures once, and the settings of each test."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import django
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest
from django.test import override_settings
from django.utils.decorators import sync_and_async_middleware

OURS = "ratelimit_mw.django.RateLimitMiddleware"
LOGIN = "web.django_site.login"
FRAMEWORK = ["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "rest_framework"]

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=FRAMEWORK,
        LOGGING_CONFIG=None,  # the process has other tests, too
        ROOT_URLCONF=(),
        SECRET_KEY="tests",
    )
    django.setup()


@sync_and_async_middleware
def login(get_response: Callable[[HttpRequest], Any]) -> Any:
    """A middleware of the project that sets `request.user` to the user that the test specifies."""
    if iscoroutinefunction(get_response):

        async def aknown(request: Any) -> Any:
            request.user = request.scope.get("user")
            return await get_response(request)

        return aknown

    def known(request: Any) -> Any:
        user = request.scope.get("user") if hasattr(request, "scope") else request.META.get("REMOTE_USER")
        named = user and isinstance(user, str)
        request.user = SimpleNamespace(is_authenticated=True, username=user) if named else user or None
        return get_response(request)

    return known


def wsgi_site(urls: Sequence[Any], limits: Any, middleware: Sequence[str] = (LOGIN, OURS), **more: Any) -> Any:
    """Return a WSGI application with these urlpatterns, and `limits` as `RATELIMIT_MW`."""
    own = _own(urls, limits, middleware, more)
    with override_settings(**own):
        handler = WSGIHandler()

    def app(environ: Any, start_response: Any) -> Any:
        with override_settings(**own):
            return handler(environ, start_response)

    return app


def asgi_site(urls: Sequence[Any], limits: Any, middleware: Sequence[str] = (LOGIN, OURS), **more: Any) -> Any:
    """Return the same project as an ASGI application."""
    own = _own(urls, limits, middleware, more)
    with override_settings(**own):
        handler = ASGIHandler()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        with override_settings(**own):
            await handler(scope, receive, send)

    return app


def _own(urls: Sequence[Any], limits: Any, middleware: Sequence[str], more: dict[str, Any]) -> dict[str, Any]:
    return {"ROOT_URLCONF": tuple(urls), "MIDDLEWARE": list(middleware), "RATELIMIT_MW": limits, **more}
