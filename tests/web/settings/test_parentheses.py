"""Tests that `@limit` without parentheses raises an error at the decorator, which suggests the right call."""
# The decorators are parameters, so mypy does not know their types.
# mypy: disable-error-code="untyped-decorator"

from collections.abc import Callable
from functools import wraps
from inspect import getmembers, signature
from typing import Annotated, Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from fastapi import APIRouter, Depends, FastAPI
from flask.views import MethodView
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket

from ratelimit_mw import AsyncLimiter, ConfigError, Limiter
from ratelimit_mw.django import exempt as django_exempt
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import exempt as flask_exempt
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.starlette import RateLimit as RouteLimit
from ratelimit_mw.starlette import exempt, limit

MEANT = r'^limits: got {}, expected limits: did you mean @limit\("5/minute"\)\?$'
DECORATORS: list[Any] = [
    limit,
    flask_limit,
    RateLimiter.limit,
    django_limit,
    Limiter().limit,
    AsyncLimiter().limit,
]
ALL = pytest.mark.parametrize("decorator", DECORATORS)

EXEMPT: list[Any] = [exempt, flask_exempt, RateLimiter.exempt, django_exempt]


@pytest.mark.parametrize("decorator", EXEMPT)
def test_exempt_with_parentheses_raises(decorator: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        decorator()
    assert str(caught.value) == "got no endpoint: write @exempt without parentheses"


def meant(name: str) -> Any:
    return pytest.raises(ConfigError, match=MEANT.format(name))


def kept(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return call(*arguments, **named)

    return wrapper


@ALL
def test_a_bare_decorator_on_a_function_raises(decorator: Any) -> None:
    with meant(".*home"):

        @decorator
        def home(request: Request) -> str:
            return f"{request}"

    with meant(".*ahome"):

        @decorator
        async def ahome(request: Request) -> str:
            return f"{request}"

    with meant(".*item"):

        @kept
        @decorator
        @kept
        def item(item_id: int) -> str:
            return f"{item_id}"

    with meant(".*nothing"):

        @decorator
        def nothing() -> str:
            return "x"


@ALL
def test_a_bare_decorator_on_a_class_or_a_method_raises(decorator: Any) -> None:
    for kind in (HTTPEndpoint, MethodView, View):
        with meant(".*Home"):
            decorator(type("Home", (kind,), {}))
    with meant(".*get"):

        class Items(MethodView):
            @decorator
            def get(self) -> str:
                return f"{self}"

    with meant("classmethod"):

        class Others:
            @decorator
            @classmethod
            def get(cls) -> str:
                return f"{cls}"


def test_a_bare_decorator_on_a_websocket_endpoint_raises() -> None:
    with meant(".*chat"):

        @limit  # type: ignore[arg-type]  # wrong on purpose
        async def chat(websocket: WebSocket) -> None:
            await websocket.accept()


def test_a_bare_decorator_in_method_decorator_raises() -> None:
    with meant(".*"):

        @method_decorator(django_limit, name="dispatch")
        class Home(View):
            def get(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse(request.path)


def limits_of(request: Any) -> str:
    return "5/minute" if request.path == "/" else "1/minute"


@pytest.mark.parametrize("decorator", [limit, flask_limit, django_limit])
def test_a_callable_that_returns_limits_is_accepted(decorator: Any) -> None:
    @decorator(limits_of)
    def home(request: Request) -> str:
        return f"{request}"

    @decorator(lambda request: "5/minute" if request else "1/minute")
    def away(request: Request) -> str:
        return f"{request}"

    assert callable(home)
    assert callable(away)


def test_the_starlette_class_used_as_a_decorator_raises() -> None:
    with pytest.raises(ConfigError, match=r"^app: got '1/minute': .*; on a function write @limit\('5/minute'\)$"):
        RouteLimit("1/minute")  # type: ignore[call-arg, arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match=r"^limits: required, such as '100/minute'$"):
        RouteLimit(hello)  # type: ignore[call-arg, arg-type]  # wrong on purpose


def test_the_fastapi_class_used_as_a_decorator_raises() -> None:
    expected = r'^got @RateLimit\(\.\.\.\) on .*home: did you mean @limit\("5/minute"\), or Depends\(RateLimit\("'
    with pytest.raises(ConfigError, match=expected):

        @RateLimit("1/minute")  # type: ignore[arg-type]  # wrong on purpose
        async def home() -> str:
            return "x"

    with meant(".*home"):

        @RateLimit  # type: ignore[arg-type]  # wrong on purpose
        async def another_home() -> str:
            return "x"


async def hello() -> PlainTextResponse:
    return PlainTextResponse("hello")


def _on_parameter(given: Any) -> None:
    @FastAPI().get("/")
    async def home(_: Any = given) -> str:
        return "x"


LOCATIONS: dict[str, Callable[[Any], object]] = {
    "app": lambda given: FastAPI(dependencies=[given]).get("/")(hello),
    "router": lambda given: FastAPI().include_router(_with_route(APIRouter(dependencies=[given]))),
    "route": lambda given: FastAPI().get("/", dependencies=[given])(hello),
    "parameter": _on_parameter,
}


@pytest.mark.parametrize("put", LOCATIONS.values(), ids=LOCATIONS)
def test_depends_on_the_uncalled_class_raises(put: Callable[[Any], object]) -> None:
    given = Depends(RateLimit)
    with pytest.raises(ConfigError, match=r'did you mean Depends\(RateLimit\("5/minute"\)\)\?'):
        put(given)


def _annotated(given: Any) -> None:
    @FastAPI().get("/")
    async def home(_: Annotated[str, given] = "x") -> str:
        return "x"


def _annotated_dependency(given: Any) -> None:
    async def dependency(_: Annotated[None, given]) -> str:
        return "x"

    FastAPI().get("/", dependencies=[Depends(dependency)])(hello)


WITHOUT_DEPENDS = LOCATIONS | {"Annotated": _annotated, "Annotated of a dependency": _annotated_dependency}


@pytest.mark.parametrize("put", WITHOUT_DEPENDS.values(), ids=WITHOUT_DEPENDS)
def test_a_dependency_without_depends_raises(put: Callable[[Any], object]) -> None:
    expected = r'^got a RateLimit as a dependency: did you mean Depends\(RateLimit\("5/minute"\)\)\?$'
    with pytest.raises(ConfigError, match=expected):
        put(RateLimit("5/minute"))


@pytest.mark.parametrize("put", LOCATIONS.values(), ids=LOCATIONS)
def test_a_decorator_in_depends_raises(put: Callable[[Any], object]) -> None:
    expected = r'^got limit\("5/minute"\), a decorator, as a dependency: did you mean Depends\(RateLimit'
    with pytest.raises(ConfigError, match=expected):
        put(Depends(limit("5/minute")))


@pytest.mark.parametrize("where", ["app", "router", "route"])
def test_a_decorator_in_the_list_of_dependencies_raises(where: str) -> None:
    with pytest.raises(ConfigError, match=r'^got limit\("5/minute"\), a decorator, as a dependency: did you mean Dep'):
        LOCATIONS[where](limit("5/minute"))


def test_dependencies_compare_by_identity() -> None:
    """`RateLimit` is a subclass of `Depends`, whose `__eq__` would compare the dependency."""
    one, another = RateLimit("5/minute"), RateLimit("5/minute")
    assert len({one, another, one}) == 2
    assert one != another
    assert repr(one).startswith("<ratelimit_mw.fastapi.RateLimit object at ")


def _with_route(router: APIRouter) -> APIRouter:
    router.get("/")(hello)
    return router


def test_the_class_supports_introspection() -> None:
    assert list(signature(RateLimit).parameters) == ["limits", "store", "options"]
    assert "responses" in dict(getmembers(RateLimit))
    FastAPI().get("/", dependencies=[Depends(RateLimit("5/minute"))])(hello)
