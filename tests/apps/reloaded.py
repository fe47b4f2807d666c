"""Apps with the settings of the file `$LIMITS`. Each answers `/` and `/process` with the number of its process."""

import os
import time
from typing import Any

from ratelimit_mw.settings import Settings


def asgi() -> Any:
    """Return a Starlette app."""
    from starlette.applications import Starlette  # noqa: PLC0415  # each server imports its framework only
    from starlette.responses import PlainTextResponse  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    from ratelimit_mw.asgi import RateLimitMiddleware  # noqa: PLC0415

    async def answer(_: Any) -> PlainTextResponse:
        time.sleep(0.01)  # noqa: ASYNC251  # blocks the process, so that others accept the next requests
        return PlainTextResponse(str(os.getpid()))

    app = Starlette(routes=[Route("/", answer), Route("/process", answer)])
    app.add_middleware(RateLimitMiddleware, settings=Settings.load(os.environ["LIMITS"]))
    return app


def flask() -> Any:
    """Return a Flask app with the extension."""
    from flask import Flask  # noqa: PLC0415

    from ratelimit_mw.flask import RateLimiter  # noqa: PLC0415

    app = Flask(__name__)
    for path in ("/", "/process"):
        app.add_url_rule(path, view_func=lambda: str(os.getpid()), endpoint=path)
    RateLimiter(app, Settings.load(os.environ["LIMITS"]))
    return app


def django() -> Any:
    """Return a Django project as a WSGI app."""
    from django.conf import settings  # noqa: PLC0415
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415
    from django.http import HttpRequest, HttpResponse  # noqa: PLC0415
    from django.urls import path  # noqa: PLC0415

    def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(str(os.getpid()))

    settings.configure(
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
        RATELIMIT_MW=Settings.load(os.environ["LIMITS"]),
        ROOT_URLCONF=(path("", answer), path("process", answer)),
        SECRET_KEY="reloaded",
    )
    return get_wsgi_application()
