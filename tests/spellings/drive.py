"""Sends spellings through the middleware and a framework's router, and finds endpoints reached without their limit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Final, NamedTuple

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings

from ratelimit_mw import asgi, wsgi
from ratelimit_mw.testing import RecordingStore
from spellings import readers, routed
from spellings.endpoints import SETTINGS, escaped
from web import django_site
from web.asgi_talk import HTTP
from web.wsgi_talk import Server
from web.wsgi_talk import read as read_all

ROOTS: Final = ("", "/api")
WITHOUT_ROOT: Final = ("falcon-asgi",)  # frameworks that do not remove the root path
Outcome = tuple[list[str], frozenset[str]]  # endpoints that were reached, and rules that were charged
Asked = Callable[[dict[str, Any]], Awaitable[Outcome]]


class Escape(NamedTuple):
    """A spelling that reached an endpoint without a charge of the endpoint's limit."""

    target: bytes
    server: str
    root: str
    endpoint: str
    charged: frozenset[str]


class Seen(NamedTuple):
    """The result of a run of spellings. `reached`: how many times an endpoint was reached."""

    reached: int
    escapes: list[Escape]


class _App(NamedTuple):
    """A framework's app behind the middleware. `send`: sends it a request."""

    send: Callable[[dict[str, Any]], Any]
    reached: list[str]
    store: RecordingStore

    def outcome(self) -> Outcome:
        charged = frozenset(charge.key.rpartition(":")[2] for _, charges in self.store.calls for charge in charges)
        found = [*self.reached]
        self.reached.clear()
        self.store.calls.clear()
        return found, charged


def _over_asgi(app: Any, reached: list[str], store: RecordingStore) -> _App:
    async def send(read: dict[str, Any]) -> None:
        given = [{"type": "http.request", "body": b"", "more_body": False}]
        answered = asyncio.Event()

        async def receive() -> Any:
            if given:
                return given.pop()
            await answered.wait()
            return {"type": "http.disconnect"}

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                answered.set()

        scope = {**HTTP, "http_version": "1.1", "scheme": "http", "query_string": b"", "server": ("x", 80)}
        await app({**scope, "headers": [(b"host", b"x")], "extensions": {}, **read}, receive, answer)

    return _App(send, reached, store)


def _over_wsgi(app: Any, reached: list[str], store: RecordingStore) -> _App:
    async def send(read: dict[str, Any]) -> None:
        read_all(Server(**{"HTTP_HOST": "x", **read}).ask(app))

    return _App(send, reached, store)


_OWN_ERRORS: Final = (ValueError, IndexError)  # raised by a framework for a malformed path; a server responds with 500


def _forgiven(app: Any) -> Any:
    """Return the app with `_OWN_ERRORS` suppressed. `__wrapped__` is the app."""

    @wraps(app, assigned=())
    async def forgiven(*given: Any) -> None:
        with suppress(*_OWN_ERRORS):
            await app(*given)

    return forgiven


def _forgiven_wsgi(app: Any) -> Any:
    @wraps(app, assigned=())
    def forgiven(*given: Any) -> Any:
        try:
            return app(*given)
        except _OWN_ERRORS:
            return []

    return forgiven


def _asgi(make: Callable[[list[str]], Any]) -> Iterator[_App]:
    reached: list[str] = []
    store = RecordingStore()
    yield _over_asgi(asgi.RateLimitMiddleware(_forgiven(make(reached)), SETTINGS, store=store), reached, store)


def _wsgi(make: Callable[[list[str]], Any]) -> Iterator[_App]:
    reached: list[str] = []
    store = RecordingStore()
    yield _over_wsgi(wsgi.RateLimitMiddleware(_forgiven_wsgi(make(reached)), SETTINGS, store=store), reached, store)


def _django(handler: Callable[[], Any], over: Any, around: Any = None) -> Iterator[_App]:
    """Yield a Django app. `around`: the middleware for any ASGI or WSGI app; None uses the middleware for Django."""
    reached: list[str] = []
    store = RecordingStore()
    urls = tuple(routed.of_django(reached, is_async=over is _over_asgi))
    own = {} if around else {"RATELIMIT_MW": {**SETTINGS, "store": store}, "MIDDLEWARE": [django_site.OURS]}
    with override_settings(**{"MIDDLEWARE": [], "ROOT_URLCONF": urls, **own}):
        app = handler()
        yield over(around(app, SETTINGS, store=store) if around else app, reached, store)


def _flask_with(**options: Any) -> Callable[[list[str]], Any]:
    return lambda reached: routed.of_flask(reached, **options)


_FRAMEWORKS: Final[dict[str, tuple[str, Callable[[], Iterator[_App]]]]] = {
    "starlette": ("asgi", lambda: _asgi(routed.of_starlette)),
    "fastapi": ("asgi", lambda: _asgi(routed.of_fastapi)),
    "litestar": ("asgi", lambda: _asgi(routed.of_litestar)),
    "quart": ("asgi", lambda: _asgi(routed.of_quart)),
    "falcon-asgi": ("asgi", lambda: _asgi(routed.of_falcon_asgi)),
    "django-asgi": ("asgi", lambda: _django(ASGIHandler, _over_asgi, asgi.RateLimitMiddleware)),
    "django-asgi-own": ("asgi", lambda: _django(ASGIHandler, _over_asgi)),
    "flask": ("wsgi", lambda: _wsgi(routed.of_flask)),
    "flask-lenient": ("wsgi", lambda: _wsgi(_flask_with(strict_slashes=False, merge_slashes=False))),
    "falcon": ("wsgi", lambda: _wsgi(routed.of_falcon)),
    "bottle": ("wsgi", lambda: _wsgi(routed.of_bottle)),
    "django": ("wsgi", lambda: _django(WSGIHandler, _over_wsgi, wsgi.RateLimitMiddleware)),
    "django-own": ("wsgi", lambda: _django(WSGIHandler, _over_wsgi)),
}
FRAMEWORKS: Final = tuple(_FRAMEWORKS)


@contextmanager
def opened(framework: str) -> Iterator[Asked]:
    """Yield a function that sends a request to the framework's app, as a server does, and returns the outcome."""
    with contextmanager(_FRAMEWORKS[framework][1])() as app:

        async def ask(read: dict[str, Any]) -> Outcome:
            await app.send(read)
            return app.outcome()

        yield ask


def frameworks(interface: str) -> list[str]:
    """Return the frameworks of an interface. Django is listed once, because a process can have only one."""
    return [name for name, (own, _) in _FRAMEWORKS.items() if own == interface and not name.endswith("-own")]


def run(framework: str, targets: Iterable[bytes]) -> Seen:
    """Send each target below every root, as each server passes it on. Equal requests of two servers are sent once."""
    known = readers.ASGI if _FRAMEWORKS[framework][0] == "asgi" else readers.WSGI
    roots = ROOTS if framework not in WITHOUT_ROOT else ("",)
    with opened(framework) as ask:
        return asyncio.run(_run(ask, known, roots, targets))


async def _run(ask: Asked, known: dict[str, readers.Reader], roots: tuple[str, ...], targets: Iterable[bytes]) -> Seen:
    count, escapes = 0, []
    for target in targets:
        for root in roots:
            done = set()
            for server, read in known.items():
                found = read(root.encode() + target if root and server == "gunicorn" else target, root)
                if found is None or (what := tuple(found.items())) in done:
                    continue
                done.add(what)
                reached, charged = await ask(found)
                count += len(reached)
                escapes += [Escape(target, server, root, one, charged) for one in reached if escaped(one, charged)]
    return Seen(count, escapes)
