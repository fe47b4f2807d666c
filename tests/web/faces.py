"""One small app in each framework, behind the middleware. Every path returns 200 and the source of the verdict.

`/stream` streams its body in parts, `/error` raises, and `_done` describes `/status` and `/settle`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import httpx
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import re_path
from fastapi import APIRouter, Depends, FastAPI
from flask import Flask, g
from flask import Response as FlaskResponse
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope
from starlette.types import Send as AsgiSend
from werkzeug.test import Client

from ratelimit_mw import asgi, wsgi
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from web.django_site import asgi_site, wsgi_site
from web.scenario import Answer, Face, Send, Step

METHODS = ["GET", "POST", "PUT", "OPTIONS"]
PARTS = (b"one", b"two")
_PATIENCE = 60.0  # seconds
App = Callable[[Mapping[str, Any]], Any]  # makes an app with these settings


class AppError(Exception):
    """Raised by `/error`."""


def starlette(settings: Mapping[str, Any]) -> ASGIApp:
    """A Starlette app."""
    app = Starlette(routes=[Route("/{rest:path}", _hello, methods=METHODS)])
    app.add_middleware(asgi.RateLimitMiddleware, **settings)
    return app


def fastapi(settings: Mapping[str, Any]) -> ASGIApp:
    """A FastAPI app whose routes come from routers that it includes, with dependencies that limit nothing."""
    reports, rest = APIRouter(), APIRouter()
    reports.add_api_route("/reports/{report}", _hello, methods=METHODS)
    rest.add_api_route("/{rest:path}", _hello, methods=[*METHODS, "HEAD"])
    app = FastAPI(dependencies=[Depends(RateLimit([])), Depends(RateLimit("1/minute", methods=["DELETE"]))])
    app.include_router(reports, prefix="/api")
    app.include_router(rest)
    app.add_api_route("/deleted", _hello, methods=["DELETE"])  # avoids the warning that no route has DELETE
    app.add_middleware(asgi.RateLimitMiddleware, **settings)
    return app


def bare_asgi(settings: Mapping[str, Any]) -> Any:
    """An ASGI app without a framework."""

    async def app(scope: Scope, receive: Receive, send: AsgiSend) -> None:
        method, path = scope["method"], scope["path"]
        if path == "/error":
            raise AppError
        shown = _shown(scope.get("state", {}).get("ratelimit")).items()
        fields = [(b"content-type", b"text/plain"), *((name.encode(), value.encode()) for name, value in shown)]
        done = _done(path, scope.get("state", {}).get("ratelimit"))
        await _await(charged(path, scope.get("state", {}).get("ratelimit")))
        status = done if method in (*METHODS, "HEAD") else 405
        await send({"type": "http.response.start", "status": status, "headers": fields})
        for part in () if method == "HEAD" else PARTS if path == "/stream" else (b"hello",):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    return asgi.RateLimitMiddleware(app, **settings)


def flask(settings: Mapping[str, Any]) -> Any:
    """A Flask app."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False

    @app.route("/", defaults={"rest": ""}, methods=METHODS)
    @app.route("/<path:rest>", methods=METHODS)
    def hello(rest: str) -> FlaskResponse:
        return _hello_from_flask(rest, flask_request.environ.get("ratelimit_mw"))

    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, **settings)  # type: ignore[method-assign]
    return app


def flask_extension(settings: Mapping[str, Any]) -> Any:
    """A Flask app with the extension, which limits after routing."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False

    @app.route("/", defaults={"rest": ""}, methods=METHODS)
    @app.route("/<path:rest>", methods=METHODS)
    def hello(rest: str) -> FlaskResponse:
        return _hello_from_flask(rest, g.get("ratelimit"))

    RateLimiter(app, settings)
    return app


def bare_wsgi(settings: Mapping[str, Any]) -> Any:
    """A WSGI app without a framework."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO")
        if path == "/error":
            raise AppError
        charged(path or "", environ.get("ratelimit_mw"))
        done = _done(path or "", environ.get("ratelimit_mw"))
        status = f"{done} Done" if method in (*METHODS, "HEAD") else "405 Method Not Allowed"
        start_response(status, [("Content-Type", "text/plain"), *_shown(environ.get("ratelimit_mw")).items()])
        if method == "HEAD":
            return []
        return _parts() if path == "/stream" else [b"hello"]

    return wsgi.RateLimitMiddleware(app, **settings)


def django(settings: Mapping[str, Any]) -> Any:
    """A Django project under WSGI."""

    def hello(request: Any) -> Any:
        charged(request.path, request.ratelimit)
        return _hello_from_django(request, _parts)

    return wsgi_site([re_path("", hello)], settings)


def adjango(settings: Mapping[str, Any]) -> Any:
    """A Django project under ASGI, with an async view."""

    async def hello(request: Any) -> Any:
        await _await(charged(request.path, request.ratelimit))
        return _hello_from_django(request, _later_parts)

    return asgi_site([re_path("", hello)], settings)


ASGI: dict[str, App] = {"starlette": starlette, "fastapi": fastapi, "asgi": bare_asgi, "django async": adjango}
WSGI: dict[str, App] = {"flask": flask, "flask extension": flask_extension, "wsgi": bare_wsgi, "django": django}
ANSWERED_OUTSIDE = (
    "starlette",
    "fastapi",
    "asgi",
    "wsgi",
)  # integrations that let an error pass, so that an outer component or the server responds to it


def asgi_parts(step: Step, path: str) -> dict[str, Any]:
    """Return the parts of a scope that a step specifies. `path`: below the root."""
    parts: dict[str, Any] = {"path": step.root + path, "root_path": step.root, "client": (step.client, 50000)}
    if step.user:  # with a user of None, each request would take the longer way
        parts["user"] = SimpleNamespace(is_authenticated=True, identity=step.user)
    return parts if step.client else {**parts, "client": None, "server": ("/", "r")}  # as gunicorn on a unix socket


def wsgi_parts(step: Step) -> dict[str, Any]:
    """Return the parts of an environ that a step specifies, except its path."""
    return {"SCRIPT_NAME": step.root, "REMOTE_ADDR": step.client or "", "REMOTE_USER": step.user or ""}


def _hello_from_flask(rest: str, outcome: Any) -> FlaskResponse:
    if rest == "error":
        raise AppError
    charged(rest, outcome)
    done = _done(rest, outcome)
    return FlaskResponse(_parts() if rest == "stream" else "hello", done, headers=_shown(outcome))


def _hello_from_django(request: Any, parts: Any) -> HttpResponse | StreamingHttpResponse:
    if request.path == "/error":
        raise AppError
    headers = _shown(request.ratelimit)
    if request.path == "/stream":
        return StreamingHttpResponse(parts(), headers=headers)
    if request.method not in (*METHODS, "HEAD"):
        return HttpResponse(status=405, headers=headers)
    said = "" if request.method == "HEAD" else "hello"  # not every server removes the body
    return HttpResponse(said, headers=headers, status=_done(request.path, request.ratelimit))


async def _hello(request: Request) -> Response:
    if request.scope["path"] == "/error":
        raise AppError
    await _await(charged(request.scope["path"], getattr(request.state, "ratelimit", None)))
    headers = _shown(getattr(request.state, "ratelimit", None))
    if request.scope["path"] == "/stream":
        return StreamingResponse(_later_parts(), headers=headers)
    done = _done(request.scope["path"], getattr(request.state, "ratelimit", None))
    return PlainTextResponse("hello", done, headers=headers)


def _done(path: str, outcome: Any) -> int:
    """Act on a path, and return the status: `/status/401` returns 401, `/settle/9/7` settles with 9 and then with 7.

    `/settle/in=3,out=4` settles with 3 in the limit named `in`, and 4 in `out`.
    """
    kind, *numbers = path.strip("/").split("/")
    for number in numbers if kind == "settle" else ():
        named = dict(part.split("=") for part in number.split(",") if "=" in part)
        outcome.settle({name: int(units) for name, units in named.items()} or int(number))
    return int(numbers[0]) if kind == "status" else 200


def charged(path: str, outcome: Any) -> Any:
    """Charge what a path such as `/charge/search/3` says: 3 of 5 units an hour for the key `search`. None for others.

    Under ASGI the result has to be awaited.
    """
    kind, *parts = path.strip("/").split("/")
    return outcome.charge("5/hour", key=parts[0], cost=int(parts[1])) if kind == "charge" else None


async def _await(work: Any) -> None:
    if work is not None:
        await work


def _parts() -> Iterator[bytes]:
    yield from PARTS


async def _later_parts() -> AsyncIterator[bytes]:
    for part in PARTS:
        yield part


def _shown(outcome: Any) -> dict[str, str]:
    return {"X-Source": outcome.verdict.source if outcome and outcome.verdict else ""}


def _face(make: App, over: Callable[[Any], Send]) -> Face:
    return lambda settings: over(make(settings))


def _over_httpx(app: ASGIApp) -> Send:
    def send(step: Step) -> Answer:
        async def served(scope: Scope, receive: Receive, answer: AsgiSend) -> None:
            # the path unchanged: httpx would normalize it
            await app({**scope, **asgi_parts(step, step.path)}, receive, answer)

        async def talk() -> Answer:
            transport = httpx.ASGITransport(served, raise_app_exceptions=not step.fails)
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
                headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in step.all_headers]
                got = await client.request(step.method, "/", headers=headers)
            if behind := asyncio.all_tasks() - {asyncio.current_task()}:  # tasks that continue after the response
                await asyncio.wait(behind, timeout=_PATIENCE)
            return Answer(got.status_code, _lower(got.headers.multi_items()), got.content)

        return asyncio.run(talk())

    return send


def _over_werkzeug(app: Any) -> Send:
    def send(step: Step) -> Answer:
        own = {"PATH_INFO": step.path.encode().decode("latin-1"), **wsgi_parts(step)}
        try:
            got = Client(app, use_cookies=False).open(
                "/", method=step.method, headers=step.all_headers, environ_overrides=own
            )
        except AppError:
            if not step.fails:
                raise
            return Answer(500, [], b"")  # as a server responds
        with got:  # closes the response, as a server does
            return Answer(got.status_code, _lower(got.headers.items()), got.get_data())

    return send


def _lower(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in headers]


FACES: dict[str, Face] = {name: _face(make, _over_httpx) for name, make in ASGI.items()}
FACES |= {name: _face(make, _over_werkzeug) for name, make in WSGI.items()}
