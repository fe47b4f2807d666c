"""Rows of the time that a limit adds to a request to a Django app, which is called as a server calls it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.lab import Lab, package, part
from benchmarks.ours.wsgi import contender, held
from benchmarks.runner import Contender, Race, Row
from benchmarks.web import NONE

_OURS: Final = ("ratelimit_mw.django", "RateLimitMiddleware")


def _app(protect: Callable[[Any], Any] = lambda view: view, **settings: Any) -> Any:
    """Return an app with these settings and one view, which `protect` may wrap.

    A handler reads most settings when it is made, but the views on each request. So each app sets its views again.
    """
    conf = package("django.conf").settings
    if not conf.configured:
        cache = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
        conf.configure(ALLOWED_HOSTS=["*"], CACHES={"default": cache})
        package("django").setup(set_prefix=False)
    answer = package("django.http").HttpResponse

    def item(_: Any, number: str) -> Any:
        return answer(number)

    views = (package("django.urls").path("items/<number>", protect(item)),)
    for name, value in {"MIDDLEWARE": [], "ROOT_URLCONF": views, **settings}.items():
        setattr(conf, name, value)
    handler = package("django.core.handlers.wsgi").WSGIHandler()

    def app(environ: Any, start_response: Any) -> Any:
        if conf.ROOT_URLCONF is not views:
            conf.ROOT_URLCONF = views
        return handler(environ, start_response)

    return app


def _floor(_: Lab) -> Contender:
    return contender(_app())


def _ours(_: Lab) -> Contender:
    part(*_OURS)
    return held(lambda quota: _app(MIDDLEWARE=[".".join(_OURS)], RATELIMIT_MW={"limits": f"{quota}/hour"}))


def _django_ratelimit(_: Lab) -> Contender:
    decorate = package("django_ratelimit.decorators", "django-ratelimit").ratelimit
    return held(lambda quota: _app(decorate(key="ip", rate=f"{quota}/h", block=True)), NONE, refusal=403)


ROWS: Final[Sequence[Row]] = [
    Race(
        name="django",
        what="added to a request to Django, headers on / django-ratelimit's decorator, no headers",
        ours=_ours,
        peer=_django_ratelimit,
        floor=_floor,
        target=0.22,
        calls=500,
    ),
]
