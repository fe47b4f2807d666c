"""What tests of the face for Django have in common."""

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
    """Ask a project by path, method and what else a Step has. `around`: settings of our middleware outside of it."""
    app = wsgi_site(urls, limits, middleware or (LOGIN, OURS), **more)
    return _asking(_over_werkzeug(app if around is None else wsgi.RateLimitMiddleware(app, around)))


def under_asgi(urls: Sequence[Any], limits: Any, *middleware: str, around: Any = None, **more: Any) -> Ask:
    """The same under ASGI."""
    app = asgi_site(urls, limits, middleware or (LOGIN, OURS), **more)
    return _asking(_over_httpx(app if around is None else asgi.RateLimitMiddleware(app, around)))


def _asking(send: Any) -> Ask:
    return lambda path="/", method="GET", **more: send(Step(path=path, method=method, **more))


BOTH = pytest.mark.parametrize("site", [under_wsgi, under_asgi], ids=["wsgi", "asgi"])


def settings(store: RecordingStore, **more: Any) -> dict[str, Any]:
    """With this store, and keys that can be read."""
    return {"limits": "9/minute", "store": store, "plain_keys": True, **more}


def taken(store: RecordingStore) -> list[list[str]]:
    """Whose bucket and how many, for each call of the store."""
    return [
        [f"{charge.key} {charge.limit.quota}" for charge in charges] for verb, charges in store.calls if verb == "take"
    ]


def hello(request: Any, **_: Any) -> HttpResponse:
    """A view: what is left."""
    verdict = request.ratelimit.verdict
    return HttpResponse("hello" if verdict is None else str(verdict.remaining))


def keeping(view: Any) -> Any:
    """A decorator as others are."""

    @wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return wrapper
