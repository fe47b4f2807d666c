"""Rows of the time that ASGI middleware adds to a request. The app is called as a server calls it."""

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.ours.asgi import App, Scope, bare, contender, floor, held, limited, spent
from benchmarks.ours.served import starlette
from benchmarks.runner import Contender, Race, Row
from benchmarks.web import LEGACY, NONE
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.metrics.registry import COUNTS


def _ours(quota: int) -> App:
    return RateLimitMiddleware(bare, limits=f"{quota}/hour")


def _asgi_ratelimit() -> Any:
    """Return a function that makes an app with this limiter."""
    ratelimit = package("ratelimit", "asgi-ratelimit")
    backend = package("ratelimit.backends.simple", "asgi-ratelimit").MemoryBackend

    async def who(scope: Scope) -> tuple[str, str]:  # its own `client_ip` parses the address on every request
        return scope["client"][0], "default"

    def make(quota: int) -> App:
        app: App = ratelimit.RateLimitMiddleware(bare, who, backend(), {r"^/": [ratelimit.Rule(hour=quota)]})
        return app

    return make


def _on_starlette(quota: int) -> Any:
    app = starlette()
    app.add_middleware(RateLimitMiddleware, limits=f"{quota}/hour")
    return app


def _slowapi() -> Any:
    """Return a function that makes an app with this limiter."""
    slowapi = package("slowapi")
    who = package("slowapi.util").get_remote_address
    middleware = package("slowapi.middleware").SlowAPIASGIMiddleware

    def make(quota: int) -> Any:
        app = starlette()
        app.state.limiter = slowapi.Limiter(who, default_limits=[f"{quota}/hour"], headers_enabled=True)
        app.add_middleware(middleware)
        return app

    return make


def _counted(lab: Lab, *, shared: bool) -> Contender:
    """Return a contender for one limit with metrics, in memory or, if `shared`, in a folder."""
    options: dict[str, Any] = {}
    if shared:  # a process has only one folder
        options["metrics_folder"] = str(COUNTS.folder or lab.closing.enter_context(TemporaryDirectory()))
    return held(lab, lambda quota: RateLimitMiddleware(bare, limits=f"{quota}/hour", metrics=True, **options))


ROWS: Final[Sequence[Row]] = [
    Race(
        name="asgi",
        what="added to a request, headers on / asgi-ratelimit, no headers",
        ours=limited,
        peer=lambda lab: held(lab, _asgi_ratelimit(), NONE),
        floor=floor,
        target=0.55,
    ),
    Race(
        name="asgi-no-headers",
        what="added to a request, no headers / asgi-ratelimit, no headers",
        ours=lambda lab: held(
            lab, lambda quota: RateLimitMiddleware(bare, limits=f"{quota}/hour", headers="none"), NONE
        ),
        peer=lambda lab: held(lab, _asgi_ratelimit(), NONE),
        floor=floor,
    ),
    Race(
        name="asgi-counted",
        what="added to a request with metrics / without",
        ours=lambda lab: _counted(lab, shared=False),
        peer=limited,
        floor=floor,
        target=1.08,
    ),
    Race(
        name="asgi-counted-folder",
        what="added to a request with metrics in a folder / without",
        ours=lambda lab: _counted(lab, shared=True),
        peer=limited,
        floor=floor,
        target=1.15,
    ),
    Race(
        name="asgi-refused",
        what="a refused request, with problem details / asgi-ratelimit, without a body",
        ours=lambda lab: spent(lab, _ours),
        peer=lambda lab: spent(lab, _asgi_ratelimit()),
        admits=False,
    ),
    Race(
        name="asgi-slowapi",
        what="added to a request to Starlette, headers on / slowapi's ASGI middleware, headers on",
        ours=lambda lab: held(lab, _on_starlette),
        peer=lambda lab: held(lab, _slowapi(), LEGACY),
        floor=lambda lab: contender(lab, starlette()),
        target=0.06,
        calls=500,
    ),
    Race(
        name="asgi-slowapi-refused",
        what="a request that is refused before Starlette / slowapi's ASGI middleware",
        ours=lambda lab: spent(lab, _on_starlette),
        peer=lambda lab: spent(lab, _slowapi()),
        calls=500,
        admits=False,
    ),
]
