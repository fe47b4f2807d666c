"""What ASGI middleware adds to a request, called as a server calls it."""

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.ours.asgi import App, Scope, bare, contender, floor, held, limited
from benchmarks.runner import Contender, Race, Row
from benchmarks.web import LEGACY, NONE
from ratelimit_mw.asgi import RateLimitMiddleware


def _asgi_ratelimit(lab: Lab) -> Contender:
    ratelimit = package("ratelimit", "asgi-ratelimit")
    backend = package("ratelimit.backends.simple", "asgi-ratelimit").MemoryBackend

    async def who(scope: Scope) -> tuple[str, str]:  # its own `client_ip` parses the address on every request
        return scope["client"][0], "default"

    def make(quota: int) -> App:
        app: App = ratelimit.RateLimitMiddleware(bare, who, backend(), {r"^/": [ratelimit.Rule(minute=quota)]})
        return app

    return held(lab, make, NONE)


def _starlette() -> Any:
    answer = package("starlette.responses").PlainTextResponse

    async def item(request: Any) -> Any:
        return answer(request.path_params["number"])

    route = package("starlette.routing").Route("/items/{number}", item)
    return package("starlette.applications").Starlette(routes=[route])


def _under_starlette(lab: Lab) -> Contender:
    return contender(lab, _starlette())


def _on_starlette(lab: Lab) -> Contender:
    def make(quota: int) -> Any:
        app = _starlette()
        app.add_middleware(RateLimitMiddleware, limits=f"{quota}/minute")
        return app

    return held(lab, make)


def _slowapi(lab: Lab) -> Contender:
    slowapi = package("slowapi")
    who = package("slowapi.util").get_remote_address
    middleware = package("slowapi.middleware").SlowAPIASGIMiddleware

    def make(quota: int) -> Any:
        app = _starlette()
        app.state.limiter = slowapi.Limiter(who, default_limits=[f"{quota}/minute"], headers_enabled=True)
        app.add_middleware(middleware)
        return app

    return held(lab, make, LEGACY)


ROWS: Final[Sequence[Row]] = [
    Race(
        name="asgi",
        what="added to a request, headers on / asgi-ratelimit, no headers",
        ours=limited,
        peer=_asgi_ratelimit,
        floor=floor,
        target=0.9,
    ),
    Race(
        name="asgi-slowapi",
        what="added to a request to Starlette, headers on / slowapi's ASGI middleware, headers on",
        ours=_on_starlette,
        peer=_slowapi,
        floor=_under_starlette,
        target=0.10,
        calls=500,
    ),
]
