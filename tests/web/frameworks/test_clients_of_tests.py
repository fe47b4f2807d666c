"""Apps with Starlette's TestClient: each client, or even each request, has its own event loop."""

import gc
import warnings
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import ConfigError
from ratelimit_mw.asgi import RateLimitMiddleware
from redis_servers import RedisServer

pytestmark = pytest.mark.promise(8)


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("home")


def client_of(app: Starlette) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # recommends another client library
        warnings.simplefilter("ignore", UserWarning)
        from starlette.testclient import TestClient  # noqa: PLC0415  # inside, where its warnings are ignored

    return TestClient(app)


@pytest.mark.one_redis
@pytest.mark.parametrize("entered", [True, False], ids=["with lifespan", "without"])
def test_app_works_with_several_successive_test_clients(redis_server: RedisServer, entered: bool) -> None:
    app = Starlette(routes=[Route("/", home)])
    app.add_middleware(
        RateLimitMiddleware,
        limits="6/hour",
        key="all",
        store=redis_server.url,
        store_timeout=60.0,
        on_store_error="deny",
    )
    statuses = []
    for _ in range(4):
        client = client_of(app)
        if entered:
            with client:
                statuses += [client.get("/").status_code for _ in range(2)]
        else:
            statuses += [client.get("/").status_code for _ in range(2)]
        del client
        gc.collect()  # a socket that is still open would warn, and a warning is an error
    assert statuses == [200] * 6 + [429] * 2


def test_wrong_settings_raise_when_a_test_client_is_entered() -> None:
    app = Starlette()
    app.add_middleware(RateLimitMiddleware, limits="5/minut")
    with pytest.raises(ConfigError, match="unknown period 'minut'"), client_of(app):
        pass
