"""Tests that `Limiter.limit`, which is for jobs, is rejected on an endpoint that an app has already."""
# The decorators are parameters, so mypy does not know their types.
# mypy: disable-error-code="untyped-decorator"

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from flask import Flask

from ratelimit_mw import ConfigError, Limiter

USE = "for web endpoints use `limit` of ratelimit_mw.fastapi, starlette, flask or django"


def above_fastapi() -> Any:
    app = FastAPI()

    @app.get("/home")
    def home() -> str:
        return "x"

    return Limiter().limit("9/minute")(home)


def above_a_router() -> Any:
    router = APIRouter()

    @router.get("/home")
    async def home() -> str:
        return "x"

    return Limiter().limit("9/minute")(home)


def above_flask() -> Any:
    app = Flask(__name__)

    @app.get("/home")
    def home() -> str:
        return "x"

    return Limiter().limit("9/minute", key="page")(home)


@pytest.mark.promise(9)
@pytest.mark.parametrize("make", [above_fastapi, above_a_router, above_flask], ids=lambda make: make.__name__)
def test_a_limiter_above_the_route_decorator_raises_a_config_error(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == (
        f"limit: got {make.__name__}.<locals>.home, which is registered for /home already, without this limit; {USE}, "
        "below what registers the route"
    )


def test_a_limiter_on_a_function_that_is_no_endpoint_is_accepted() -> None:
    app = FastAPI()
    app.get("/home")(lambda: "x")
    assert Limiter().limit("9/minute")(lambda: len(app.routes) > 0)() is True
