"""Peers, set up for what a scenario asks of them. Each function raises `Missing` if its package is not installed."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.lab import package
from benchmarks.ours.asgi import App, Receive, Scope, Send

PLENTY: Final = 10**7  # an hour
PERIODS: Final = ("hour", "2 hours", "day")  # of the limits of limits


def asgi_ratelimit(app: Any, rules: Mapping[str, Sequence[str]], *, proxied: bool = False, redis: str = "") -> App:
    """Return an app with a limit for each of the periods that `rules` has for a path; in memory, or in `redis`."""
    ratelimit = package("ratelimit", "asgi-ratelimit")
    if redis:
        client = package("redis.asyncio").StrictRedis.from_url(redis, max_connections=64)
        backend = package("ratelimit.backends.redis", "asgi-ratelimit").RedisBackend(client)
    else:
        backend = package("ratelimit.backends.simple", "asgi-ratelimit").MemoryBackend()

    async def who(scope: Scope) -> tuple[str, str]:
        return scope["client"][0], "default"

    async def who_behind_a_proxy(scope: Scope) -> tuple[str, str]:
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                return value.decode().rpartition(",")[2].strip(), "default"
        return scope["client"][0], "default"

    config = {path: [ratelimit.Rule(**dict.fromkeys(periods, PLENTY))] for path, periods in rules.items()}
    limited: App = ratelimit.RateLimitMiddleware(app, who_behind_a_proxy if proxied else who, backend, config)
    return limited


def limits_hits(app: App, redis: str, count: int) -> App:
    """Return an app whose requests are hits of this many fixed windows in Redis, one after the other."""
    limits, aio = package("limits"), package("limits.aio.storage")
    window = package("limits.aio.strategies").FixedWindowRateLimiter
    limiter = window(aio.RedisStorage(f"async+{redis}", implementation="redispy"))
    items = [limits.parse(f"{PLENTY} per {period}") for period in PERIODS[:count]]

    async def limited(scope: Scope, receive: Receive, send: Send) -> None:
        for item in items:
            assert await limiter.hit(item, scope["client"][0])
        await app(scope, receive, send)

    return limited


def slowapi_middleware(app: Any) -> App:
    """Add the middleware to a Starlette app, and return it."""
    limiter = package("slowapi").Limiter
    app.add_middleware(package("slowapi.middleware").SlowAPIASGIMiddleware)
    address = package("slowapi.util").get_remote_address
    app.state.limiter = limiter(key_func=address, default_limits=[f"{PLENTY}/hour"], headers_enabled=True)
    limited: App = app
    return limited


def slowapi_decorator() -> App:
    """Return a FastAPI app whose endpoint has a decorator."""
    fastapi = package("fastapi")
    limiter = package("slowapi").Limiter(key_func=package("slowapi.util").get_remote_address, headers_enabled=True)
    app: Any = fastapi.FastAPI()
    app.state.limiter = limiter

    async def home(request: Any, response: Any, id: str) -> str:  # noqa: A002, ARG001  # as in the other apps
        return "ok"

    home.__annotations__ |= {"request": fastapi.Request, "response": fastapi.Response}
    app.add_api_route("/items/{id}", limiter.limit(f"{PLENTY}/hour")(home))
    limited: App = app
    return limited


def fastapi_limiter() -> Any:
    """Return a dependency of FastAPI, which has one bucket for all clients."""
    pyrate = package("pyrate_limiter", "pyrate-limiter")
    limiter = pyrate.Limiter(pyrate.Rate(PLENTY, pyrate.Duration.HOUR))
    return package("fastapi_limiter.depends", "fastapi-limiter").RateLimiter(limiter=limiter)


def flask_limiter(app: Any) -> Any:
    """Add the extension to a Flask app, and return it."""
    address = package("flask_limiter.util", "flask-limiter").get_remote_address
    package("flask_limiter", "flask-limiter").Limiter(
        address, app=app, default_limits=[f"{PLENTY} per hour"], storage_uri="memory://", headers_enabled=True
    )
    return app


def django_ratelimit(view: Any) -> Any:
    """Return a Django view with a decorator."""
    return package("django_ratelimit.decorators", "django-ratelimit").ratelimit(key="ip", rate=f"{PLENTY}/h")(view)
