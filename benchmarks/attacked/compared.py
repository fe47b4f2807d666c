"""Compares limiters: `python -m benchmarks.attacked.compared`, in the environment of `tox -e bench`.

It writes the answers to `compared.json` in its folder, with versions and date. `docs/from_runs.py` makes the
README's table from it. Each library is set up as the first pages of its documentation show, in memory unless the
question is about Redis.
"""

import asyncio
import contextlib
import datetime as dt
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import ratelimit_mw
from benchmarks.redis_server import RedisServer

PATH = Path(__file__).with_suffix(".json")
GENEROUS, STRICT = (4, 3600), (1, 2)  # limits: units, and seconds
REFUSED = (403, 429)
PATIENCE = 3.0  # seconds; a request that takes longer is "waits"
NOWHERE = "redis://127.0.0.1:1/0"
SET_UP = ("CLIENT", "HELLO", "SELECT", "INFO", "TIME", "MULTI", "EXEC")  # commands that open connections and pipelines
_names = iter(range(1_000_000))  # of keys, so that each app starts with empty counts


class Reply(NamedTuple):
    """A response: its status and its header fields, with names in lower case."""

    status: int
    headers: dict[str, str]


Get = Callable[[str], Reply]
Make = Callable[[Sequence[tuple[int, int]], str], Get]


def over_asgi(app: Any) -> Get:
    """Return a function that sends requests to an ASGI app, all on one event loop."""
    import httpx

    loop = asyncio.new_event_loop()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)

    async def get(path: str) -> Reply:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            found = await client.get(path)
        return Reply(found.status_code, {name.lower(): value for name, value in found.headers.items()})

    return lambda path: loop.run_until_complete(get(path))


def ours(limits: Sequence[tuple[int, int]], store: str) -> Get:
    from fastapi import FastAPI

    from ratelimit_mw.asgi import RateLimitMiddleware

    app = FastAPI()
    app.get("/")(lambda: "hello")
    rates = [f"{units} per {seconds} seconds" for units, seconds in limits]
    # longer than the default, so that a busy machine does not count locally while Redis calls are counted
    timeout = 0.05 if store == NOWHERE or "hang" in store else 1.0
    app.add_middleware(RateLimitMiddleware, limits=rates, store=store.removesuffix("#hang"), store_timeout=timeout)
    return over_asgi(app)


def slowapi(limits: Sequence[tuple[int, int]], store: str) -> Get:
    from fastapi import FastAPI
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.middleware import SlowAPIMiddleware

    rates = [";".join(f"{units} per {seconds} second" for units, seconds in limits)]
    name = f"key{next(_names)}"
    limiter = Limiter(key_func=lambda: name, default_limits=rates, storage_uri=_bare(store))
    app = FastAPI()
    app.get("/")(lambda: "hello")
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
    app.add_middleware(SlowAPIMiddleware)
    return over_asgi(app)


def flask_limiter(limits: Sequence[tuple[int, int]], store: str) -> Get:
    from flask import Flask
    from flask_limiter import Limiter

    rates = [f"{units} per {seconds} second" for units, seconds in limits]
    name = f"key{next(_names)}"
    app = Flask(__name__)
    Limiter(lambda: name, app=app, default_limits=rates, storage_uri=_bare(store))
    app.add_url_rule("/", "home", lambda: "hello")
    client = app.test_client()

    def get(path: str) -> Reply:
        found = client.get(path)
        return Reply(found.status_code, {key.lower(): value for key, value in found.headers})

    return get


def django_ratelimit(limits: Sequence[tuple[int, int]], store: str) -> Get:
    import django
    from django.conf import settings
    from django.core.cache import caches
    from django.http import HttpResponse
    from django.test import Client
    from django.urls import path as route
    from django_ratelimit.decorators import ratelimit

    alias = f"cache{next(_names)}"
    backend = "locmem.LocMemCache" if store == "memory://" else "redis.RedisCache"
    place = {
        "BACKEND": f"django.core.cache.backends.{backend}",
        "LOCATION": alias if store == "memory://" else _bare(store),
    }
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], CACHES={"default": place}, LOGGING_CONFIG=None)
        django.setup()
    settings.CACHES[alias] = place
    caches.settings = caches.configure_settings(None)
    settings.RATELIMIT_USE_CACHE = alias

    def home(_: Any) -> Any:
        return HttpResponse("hello")

    for units, seconds in limits:
        home = ratelimit(key="ip", rate=f"{units}/{seconds}s")(home)
    settings.ROOT_URLCONF = (route("", home),)
    client = Client(raise_request_exception=False)

    def get(path: str) -> Reply:
        found = client.get(path)
        return Reply(found.status_code, {key.lower(): value for key, value in found.items()})

    return get


def fastapi_limiter(limits: Sequence[tuple[int, int]], store: str) -> Get:
    from fastapi import Depends, FastAPI
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Limiter, Rate, RedisBucket

    rates = [Rate(units, seconds * 1000) for units, seconds in sorted(limits, key=lambda limit: limit[1])]
    app = FastAPI()
    if store == "memory://":
        limiter = Limiter(rates)
        app.get("/", dependencies=[Depends(RateLimiter(limiter=limiter))])(lambda: "hello")
        return over_asgi(app)
    import redis.asyncio

    made: list[Any] = []
    name = f"key{next(_names)}"

    async def limited(request: Any, response: Any) -> None:
        if not made:
            bucket = await RedisBucket.init(rates, redis.asyncio.Redis.from_url(_bare(store)), name)
            made.append(RateLimiter(limiter=Limiter(bucket)))
        await made[0](request, response)

    from fastapi import Request, Response

    limited.__annotations__ = {"request": Request, "response": Response}
    app.get("/", dependencies=[Depends(limited)])(lambda: "hello")
    return over_asgi(app)


def limits_library(limits: Sequence[tuple[int, int]], store: str) -> Get:
    from limits import parse
    from limits.storage import storage_from_string
    from limits.strategies import FixedWindowRateLimiter

    strategy = FixedWindowRateLimiter(storage_from_string(_bare(store)))
    rates = [parse(f"{units} per {seconds} second") for units, seconds in limits]
    name = f"key{next(_names)}"
    return _plain(lambda: all([strategy.hit(rate, name) for rate in rates]))  # noqa: C419  # each one is charged


def throttled_py(limits: Sequence[tuple[int, int]], store: str) -> Get:
    from throttled import RedisStore, Throttled
    from throttled import store as stores
    from throttled.rate_limiter import Quota, Rate

    place = stores.MemoryStore() if store == "memory://" else RedisStore(server=_bare(store))
    name = f"key{next(_names)}"
    each = [
        Throttled(name, quota=Quota(Rate(dt.timedelta(seconds=seconds), units), burst=units), store=place)
        for units, seconds in limits
    ]
    for number, one in enumerate(each):
        one.key = f"{name}-{number}"
    return _plain(lambda: not any([one.limit().limited for one in each]))  # noqa: C419  # each one is charged


LIBRARIES: dict[str, tuple[Make, str]] = {
    "ratelimit_mw": (ours, "ratelimit-mw"),
    "slowapi": (slowapi, "slowapi"),
    "flask-limiter": (flask_limiter, "flask-limiter"),
    "django-ratelimit": (django_ratelimit, "django-ratelimit"),
    "fastapi-limiter": (fastapi_limiter, "fastapi-limiter"),
    "limits": (limits_library, "limits"),
    "throttled-py": (throttled_py, "throttled-py"),
}
PLAIN = (limits_library, throttled_py)
NO_WEB = "no web part"


def _plain(hit: Callable[[], bool]) -> Get:
    """Turn the decisions of a library without a web framework into statuses."""
    return lambda _: Reply(200 if hit() else 429, {})


def _bare(store: str) -> str:
    return store.removesuffix("#hang")


def refusals_charge_nothing(make: Make, _: RedisServer) -> str:
    """Return what refused requests charge: the generous limit admits another one later only if they were free."""
    left = []
    for limits in ([GENEROUS, STRICT], [STRICT, GENEROUS]):
        get = make(limits, "memory://")
        assert get("/").status == 200
        assert [get("/").status in REFUSED for _ in range(3)] == [True] * 3
        time.sleep(2 * STRICT[1] + 0.1)
        left.append(get("/").status == 200)
    return "nothing" if all(left) else "the other limits" if not any(left) else "the limits checked before"


def calls_of_redis(make: Make, server: RedisServer) -> str:
    """Count the commands of one admitted request under three limits, once connections are open and scripts loaded."""
    import redis

    get = make([(100, 60), (1000, 3600), (5000, 86400)], server.url)
    for _ in range(3):
        assert get("/").status == 200
    with redis.Redis.from_url(server.url) as control, control.monitor() as monitor:
        assert get("/").status == 200
        redis.Redis.from_url(server.url).echo("the end")
        calls = []
        for command in monitor.listen():
            if command["command"].startswith("ECHO"):
                break
            if command["client_type"] != "lua":
                calls.append(command["command"].split()[0])
    return str(len([call for call in calls if call not in SET_UP]))


def redis_is_away(make: Make, _: RedisServer) -> str:
    """Return the outcome of the first request when nothing listens on the port."""
    return _outcome(make, NOWHERE)


def redis_hangs(make: Make, _: RedisServer) -> str:
    """Return the outcome of the first request when a server accepts the connection and never replies."""
    with hanging() as url:
        return _outcome(make, f"{url}#hang")


def unknown_paths(make: Make, _: RedisServer) -> str:
    """Return whether a limit of one request an hour applies to paths without a route."""
    if make in PLAIN:
        return NO_WEB
    get = make([(1, 3600)], "memory://")
    return "limited" if 429 in [get("/nowhere").status for _ in range(3)] else "not limited"


def says_when(make: Make, _: RedisServer) -> str:
    """Return whether a refusal has `Retry-After` by default."""
    if make in PLAIN:
        return NO_WEB
    get = make([(1, 3600)], "memory://")
    refused = [get("/") for _ in range(2)][-1]
    assert refused.status in REFUSED
    return "yes" if "retry-after" in refused.headers else "no"


def _outcome(make: Make, store: str) -> str:
    """Return `serves`, the status or the error of the first request, and its duration if it is long."""
    seen: list[str] = []

    def ask() -> None:
        try:
            status = make([GENEROUS], store)("/").status
        except Exception as error:  # noqa: BLE001  # the name of any error is the outcome
            seen.append(f"raises {type(error).__name__}")
        else:
            seen.append("serves" if status == 200 else str(status))

    thread = threading.Thread(target=ask, daemon=True)
    begun = time.perf_counter()
    thread.start()
    thread.join(PATIENCE)
    if not seen:
        return f"waits over {PATIENCE:.0f} s"
    return seen[0] if time.perf_counter() - begun < 1.0 else f"{seen[0]}, after {time.perf_counter() - begun:.0f} s"


@contextlib.contextmanager
def hanging() -> Iterator[str]:
    """Yield the URL of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"


QUESTIONS: dict[str, Callable[[Make, RedisServer], str]] = {
    "a refused request is charged to": refusals_charge_nothing,
    "Redis calls per request, 3 limits": calls_of_redis,
    "nothing listens at Redis' port": redis_is_away,
    "Redis hangs": redis_hangs,
    "paths without a route": unknown_paths,
    "`Retry-After` by default": says_when,
}


def main() -> int:
    """Put each question to each library, print the answers, and write the file."""
    answers: dict[str, dict[str, str]] = {}
    with RedisServer() as server:
        for question, ask in QUESTIONS.items():
            answers[question] = {}
            for name, (make, _) in LIBRARIES.items():
                answers[question][name] = ask(make, server)
                print(question, "|", name, "|", answers[question][name], flush=True)
    versions = {name: version(package) for name, (_, package) in LIBRARIES.items()}
    versions["ratelimit_mw"] = ratelimit_mw.__version__  # of this checkout
    found = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "versions": versions, "answers": answers}
    PATH.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
