"""One small app in each framework, behind the middleware. Every path answers 200 and shows the verdict's source."""

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import httpx
from django.http import HttpRequest, HttpResponse
from django.urls import re_path
from fastapi import APIRouter, Depends, FastAPI
from flask import Flask, g
from flask import request as flask_request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
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


def starlette(settings: Mapping[str, Any]) -> Send:
    """A Starlette app."""
    app = Starlette(routes=[Route("/{rest:path}", _hello, methods=METHODS)])
    app.add_middleware(asgi.RateLimitMiddleware, **settings)
    return _over_httpx(app)


def fastapi(settings: Mapping[str, Any]) -> Send:
    """A FastAPI app whose routes come from routers that it includes, with dependencies that limit nothing."""
    reports, rest = APIRouter(), APIRouter()
    reports.add_api_route("/reports/{report}", _hello, methods=METHODS)
    rest.add_api_route("/{rest:path}", _hello, methods=[*METHODS, "HEAD"])
    app = FastAPI(dependencies=[Depends(RateLimit([])), Depends(RateLimit("1/minute", methods=["DELETE"]))])
    app.include_router(reports, prefix="/api")
    app.include_router(rest)
    app.add_middleware(asgi.RateLimitMiddleware, **settings)
    return _over_httpx(app)


def flask(settings: Mapping[str, Any]) -> Send:
    """A Flask app."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False

    @app.route("/", defaults={"rest": ""}, methods=METHODS)
    @app.route("/<path:rest>", methods=METHODS)
    def hello(rest: str) -> tuple[str, dict[str, str]]:
        return "hello", _shown(flask_request.environ.get("ratelimit_mw"))

    app.wsgi_app = wsgi.RateLimitMiddleware(app.wsgi_app, **settings)  # type: ignore[method-assign]
    return _over_werkzeug(app)


def flask_extension(settings: Mapping[str, Any]) -> Send:
    """A Flask app that limits itself, after routing."""
    app = Flask(__name__, static_folder=None)
    app.url_map.merge_slashes = False

    @app.route("/", defaults={"rest": ""}, methods=METHODS)
    @app.route("/<path:rest>", methods=METHODS)
    def hello(rest: str) -> tuple[str, dict[str, str]]:
        return "hello", _shown(g.get("ratelimit"))

    RateLimiter(app, settings)
    return _over_werkzeug(app)


def bare_wsgi(settings: Mapping[str, Any]) -> Send:
    """A WSGI app of no framework."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        status = "200 OK" if environ["REQUEST_METHOD"] in (*METHODS, "HEAD") else "405 Method Not Allowed"
        start_response(status, [("Content-Type", "text/plain"), *_shown(environ.get("ratelimit_mw")).items()])
        return [b"hello"]

    return _over_werkzeug(wsgi.RateLimitMiddleware(app, **settings))


def django(settings: Mapping[str, Any]) -> Send:
    """A Django project under WSGI."""

    def hello(request: HttpRequest) -> HttpResponse:
        return _hello_from_django(request)

    return _over_werkzeug(wsgi_site([re_path("", hello)], settings))


def adjango(settings: Mapping[str, Any]) -> Send:
    """A Django project under ASGI, with an async view."""

    async def hello(request: HttpRequest) -> HttpResponse:
        return _hello_from_django(request)

    return _over_httpx(asgi_site([re_path("", hello)], settings))


FACES: dict[str, Face] = {
    "starlette": starlette,
    "fastapi": fastapi,
    "flask": flask,
    "flask extension": flask_extension,
    "wsgi": bare_wsgi,
    "django": django,
    "django async": adjango,
}


def _hello_from_django(request: Any) -> HttpResponse:
    return HttpResponse(
        "hello", status=200 if request.method in (*METHODS, "HEAD") else 405, headers=_shown(request.ratelimit)
    )


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello", headers=_shown(getattr(request.state, "ratelimit", None)))


def _shown(outcome: Any) -> dict[str, str]:
    return {"X-Source": outcome.verdict.source if outcome and outcome.verdict else ""}


def _over_httpx(app: ASGIApp) -> Send:
    def send(step: Step) -> Answer:
        async def served(scope: Scope, receive: Receive, answer: AsgiSend) -> None:
            user = SimpleNamespace(is_authenticated=True, identity=step.user) if step.user else None
            client = (step.client, 50000) if step.client else None
            # as written: httpx would normalise the path
            own = {"path": step.root + step.path, "root_path": step.root, "client": client, "user": user}
            await app({**scope, **own}, receive, answer)

        async def talk() -> Answer:
            transport = httpx.ASGITransport(served)
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
                headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in step.all_headers]
                got = await client.request(step.method, "/", headers=headers)
            return Answer(got.status_code, _lower(got.headers.multi_items()), got.content)

        return asyncio.run(talk())

    return send


def _over_werkzeug(app: Any) -> Send:
    def send(step: Step) -> Answer:
        own = {"PATH_INFO": step.path.encode().decode("latin-1"), "SCRIPT_NAME": step.root}
        own |= {"REMOTE_ADDR": step.client or "", "REMOTE_USER": step.user or ""}
        got = Client(app).open("/", method=step.method, headers=step.all_headers, environ_overrides=own)
        return Answer(got.status_code, _lower(got.headers.items()), got.get_data())

    return send


def _lower(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in headers]
