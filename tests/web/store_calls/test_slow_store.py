"""A slow store delays only the request that waits for it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from held_proxy import HeldProxy
from ratelimit_mw import Charge, Decision, MemoryStore, fastapi, starlette
from ratelimit_mw.asgi import RateLimitMiddleware
from redis_servers import RedisServer

SETTINGS = {"store_timeout": 30.0, "on_store_error": "deny"}


async def hello(_: Request) -> Response:
    return PlainTextResponse("hello")


def plain(_: Request) -> Response:
    return PlainTextResponse("hello")


class View(HTTPEndpoint):
    async def get(self, _: Request) -> Response:
        return PlainTextResponse("hello")


def routed(endpoint: Any, *around: Middleware, store: Any, **more: Any) -> Starlette:
    """Return an app with two routes: `/free`, and `/limited`, which queries the store."""
    routes = [Route("/limited", endpoint, middleware=around), Route("/free", hello)]
    own: dict[str, Any] = {"limits": [], **SETTINGS, **more}
    return Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, store=store, **own)])


def depending(endpoint: Any, store: Any) -> FastAPI:
    app = FastAPI()
    app.add_api_route("/limited", endpoint, dependencies=[Depends(fastapi.RateLimit("9/minute"))])
    app.add_api_route("/free", no_request)
    app.add_middleware(RateLimitMiddleware, limits=[], store=store, store_timeout=30.0, on_store_error="deny")
    return app


async def no_request() -> str:
    return "hello"


def plain_without_request() -> str:
    return "hello"


def by_rule(store: Any) -> Starlette:
    return routed(hello, store=store, rules=[{"path": "/limited", "limits": "9/minute"}])


APPS: dict[str, Callable[[Any], Any]] = {
    "middleware": by_rule,
    "decorator": lambda store: routed(starlette.limit("9/minute")(hello), store=store),
    "decorator, plain": lambda store: routed(starlette.limit("9/minute")(plain), store=store),
    "decorator, class": lambda store: routed(starlette.limit("9/minute")(type("Own", (View,), {})), store=store),
    "route": lambda store: routed(hello, Middleware(starlette.RateLimit, "9/minute"), store=store),
    "dependency": lambda store: depending(no_request, store),
    "dependency, plain": lambda store: depending(plain_without_request, store),
}


async def order(app: Any, asked: Callable[[], Any], release: Callable[[], None]) -> Sequence[str]:
    """Return the order of two responses. The first request waits for the store until the second has its response."""
    done: list[str] = []

    async def get(path: str) -> None:
        answer = await client.get(path)
        done.append(f"{answer.status_code} {path}")

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        limited = asyncio.create_task(get("/limited"))
        await asked()
        await get("/free")
        release()
        await limited
    return done


class WaitingStore(MemoryStore):
    """A store that decides once `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.released = asyncio.Event(), asyncio.Event()

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        self.asked.set()
        await self.released.wait()
        return await super().atake(charges)


@pytest.mark.promise(8)
@pytest.mark.parametrize("name", APPS)
def test_a_request_that_waits_for_the_store_delays_no_other(name: str) -> None:
    async def main() -> Sequence[str]:
        store = WaitingStore()
        return await order(APPS[name](store), store.asked.wait, store.released.set)

    assert asyncio.run(main()) == ["200 /free", "200 /limited"]


@pytest.mark.one_redis
@pytest.mark.promise(8)
@pytest.mark.parametrize("name", APPS)
def test_a_request_that_waits_for_redis_delays_no_other(name: str, redis_server: RedisServer) -> None:
    async def main(proxy: HeldProxy) -> Sequence[str]:
        app = APPS[name](f"redis://127.0.0.1:{proxy.port}/0")
        lifespan = Lifespan(app)
        await lifespan.start()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            assert (await client.get("/limited")).status_code == 200  # the connection is open
        proxy.hold()
        found = await order(app, lambda: asyncio.to_thread(proxy.asked.wait, 20.0), proxy.release)
        await lifespan.stop()
        return found

    with HeldProxy(redis_server.port) as proxy:
        assert asyncio.run(main(proxy)) == ["200 /free", "200 /limited"]


class Lifespan:
    """Runs the lifespan of an app, as a server does. At shutdown, the middleware closes its store."""

    def __init__(self, app: Any) -> None:
        self._to_app, self._from_app = asyncio.Queue[Any](), asyncio.Queue[Any]()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        self._running = asyncio.ensure_future(app(scope, self._to_app.get, self._from_app.put))

    async def start(self) -> None:
        await self._say("lifespan.startup")

    async def stop(self) -> None:
        await self._say("lifespan.shutdown")
        await self._running

    async def _say(self, kind: str) -> None:
        await self._to_app.put({"type": kind})
        assert (await self._from_app.get())["type"] == f"{kind}.complete"
