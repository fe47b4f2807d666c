"""Helpers of the tests of the Django integration."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import pytest
from django.http import HttpResponse

from ratelimit_mw import asgi, wsgi
from ratelimit_mw.testing import RecordingStore
from web.django_site import LOGIN, OURS, asgi_site, wsgi_site
from web.faces import _over_httpx, _over_werkzeug
from web.scenario import Answer, Step

Ask = Callable[..., Answer]
Site = Callable[..., Ask]
CLIENT = "{ip=192.0.2.1}:"


def under_wsgi(urls: Sequence[Any], limits: Any, *middleware: str, around: Any = None, **more: Any) -> Ask:
    """Return a function that sends requests to a Django project: a path, a method, and other fields of a `Step`.

    `around`: settings of a WSGI middleware of this package around the project.
    """
    app = wsgi_site(urls, limits, middleware or (LOGIN, OURS), **more)
    return _asking(_over_werkzeug(app if around is None else wsgi.RateLimitMiddleware(app, around)))


def under_asgi(urls: Sequence[Any], limits: Any, *middleware: str, around: Any = None, **more: Any) -> Ask:
    """Do the same as `under_wsgi`, under ASGI."""
    app = asgi_site(urls, limits, middleware or (LOGIN, OURS), **more)
    return _asking(_over_httpx(app if around is None else asgi.RateLimitMiddleware(app, around)))


def _asking(send: Any) -> Ask:
    return lambda path="/", method="GET", **more: send(Step(path=path, method=method, **more))


BOTH = pytest.mark.parametrize("site", [under_wsgi, under_asgi], ids=["wsgi", "asgi"])


def settings(store: RecordingStore, **more: Any) -> dict[str, Any]:
    """Return settings with this store and with readable keys."""
    return {"limits": "9/minute", "store": store, "plain_keys": True, **more}


def taken(store: RecordingStore) -> list[list[str]]:
    """Return the key and quota of each charge, for each take of the store."""
    return [
        [f"{charge.key} {charge.limit.quota}" for charge in charges] for verb, charges in store.calls if verb == "take"
    ]


def hello(request: Any, **_: Any) -> HttpResponse:
    """A view that responds with the remaining units."""
    verdict = request.ratelimit.verdict
    return HttpResponse("hello" if verdict is None else str(verdict.remaining))


def keeping(view: Any) -> Any:
    """A decorator like those of other packages."""

    @wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return wrapper
