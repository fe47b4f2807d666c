"""Builds an app with the same endpoints in each framework. Nothing runs before the router.

Each endpoint appends its name to `reached`.
"""

import re
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, Final
from uuid import UUID

import bottle  # type: ignore[import-untyped]  # this package has no types
import falcon
import falcon.asgi
import fastapi
import flask
import litestar
import quart
from django.http import HttpRequest, HttpResponse
from django.urls import include
from django.urls import path as pattern
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route

from spellings.endpoints import EVERY

_FIELD: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_TYPES: Final = {"int": int, "float": float, "uuid": UUID}


def _noting(name: str, reached: list[str]) -> Callable[..., str]:
    def endpoint(**_: Any) -> str:
        reached.append(name)
        return name

    return endpoint


def _anoting(name: str, reached: list[str]) -> Callable[..., Any]:
    async def endpoint(**_: Any) -> str:
        reached.append(name)
        return name

    return endpoint


def _typed(name: str, fields: dict[str, Any], reached: list[str]) -> Any:
    """Return an endpoint with a signature of typed parameters, because frameworks read it."""

    async def endpoint(**_: Any) -> str:
        reached.append(name)
        return name

    parameters = [Parameter(field, Parameter.KEYWORD_ONLY, annotation=kind) for field, kind in fields.items()]
    endpoint.__signature__ = Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    endpoint.__annotations__ = {**fields, "return": str}
    endpoint.__name__ = name
    return endpoint


def _starlette_routes(reached: list[str]) -> list[BaseRoute]:
    def route(name: str, path: str) -> Route:
        async def endpoint(_: Any) -> PlainTextResponse:
            reached.append(name)
            return PlainTextResponse(name)

        return Route(path, endpoint)

    mounted = [route(name, path.removeprefix("/sub")) for name, path in EVERY.items() if path.startswith("/sub")]
    plain: list[BaseRoute] = [route(name, path) for name, path in EVERY.items() if not path.startswith("/sub")]
    return [*plain, Mount("/sub", routes=mounted)]


def of_starlette(reached: list[str]) -> Any:
    return Starlette(routes=_starlette_routes(reached))


def of_fastapi(reached: list[str]) -> Any:
    """Annotate parameters with types, as users do. Only a parameter that may contain slashes has a converter."""
    app, router = fastapi.FastAPI(openapi_url=None), fastapi.APIRouter(prefix="/sub")
    for name, path in EVERY.items():
        fields = {field[1]: _TYPES.get(field[2], str) for field in _FIELD.finditer(path)}
        plain = _FIELD.sub(lambda found: found[0] if found[2] == "path" else f"{{{found[1]}}}", path)
        to = router if path.startswith("/sub") else app
        to.add_api_route(plain.removeprefix("/sub"), _typed(name, fields, reached))
    app.include_router(router)
    return app


def _angled(path: str) -> str:
    return _FIELD.sub(lambda found: f"<{found[2] + ':' if found[2] else ''}{found[1]}>", path)


def of_flask(reached: list[str], **options: Any) -> Any:
    app = flask.Flask(__name__, static_folder=None)
    for name, value in options.items():
        setattr(app.url_map, name, value)
    blueprint = flask.Blueprint("sub", __name__, url_prefix="/sub")
    for name, path in EVERY.items():
        to: Any = blueprint if path.startswith("/sub") else app
        to.add_url_rule(_angled(path.removeprefix("/sub")), name, _noting(name, reached))
    app.register_blueprint(blueprint)
    return app


def of_quart(reached: list[str]) -> Any:
    app = quart.Quart(__name__, static_folder=None)
    for name, path in EVERY.items():
        app.add_url_rule(_angled(path), name, _anoting(name, reached))
    return app


class _Resource:
    def __init__(self, name: str, reached: list[str]) -> None:
        self._name, self._reached = name, reached

    def on_get(self, *_: Any, **__: Any) -> None:
        self._reached.append(self._name)


class _AsyncResource(_Resource):
    async def on_get(self, *_: Any, **__: Any) -> None:  # type: ignore[override]  # Falcon requires it for ASGI
        self._reached.append(self._name)


def _on_falcon(app: Any, resource: Any, reached: list[str]) -> Any:
    for name, path in EVERY.items():
        if name != "edit":  # a path converter must be last in a template of Falcon
            app.add_route(path, resource(name, reached))
    return app


def of_falcon(reached: list[str]) -> Any:
    return _on_falcon(falcon.App(), _Resource, reached)


def of_falcon_asgi(reached: list[str]) -> Any:
    return _on_falcon(falcon.asgi.App(), _AsyncResource, reached)


def of_bottle(reached: list[str]) -> Any:
    app = bottle.Bottle()
    for name, path in EVERY.items():
        if ":uuid" not in path:  # Bottle has no such filter
            text = _FIELD.sub(lambda found: f"<{found[1]}{':' + found[2] if found[2] else ''}>", path)
            app.route(text, callback=_noting(name, reached))
    return app


def of_litestar(reached: list[str]) -> Any:
    """In Litestar, a parameter must be a whole segment, and a path parameter the last one."""
    handlers = []
    for name, path in EVERY.items():
        if name == "edit" or any("{" in one and one[0] != "{" for one in path.split("/")):
            continue
        text = _FIELD.sub(lambda found: f"{{{found[1]}:{found[2] or 'str'}}}", path)
        handlers.append(litestar.get(text)(_typed(name, {}, reached)))  # Litestar reads parameters from the template
    return litestar.Litestar(handlers, openapi_config=None, logging_config=None)


def of_django(reached: list[str], *, is_async: bool) -> Any:
    """Return URL patterns."""

    def view(name: str) -> Any:
        def answer(_: HttpRequest, **__: Any) -> HttpResponse:
            reached.append(name)
            return HttpResponse(name)

        async def async_answer(request: HttpRequest, **__: Any) -> HttpResponse:
            return answer(request)

        return async_answer if is_async else answer

    def one(name: str, template: str) -> Any:
        text = _angled(template).removeprefix("/")
        return pattern(re.sub(r"<(\w+)>", r"<str:\1>", text), view(name))

    known = {name: path for name, path in EVERY.items() if ":float" not in path}  # Django has no such converter
    plain = [one(name, path) for name, path in known.items() if not path.startswith("/sub")]
    inner = [one(name, path.removeprefix("/sub")) for name, path in known.items() if path.startswith("/sub")]
    return [*plain, pattern("sub/", include(inner))]
