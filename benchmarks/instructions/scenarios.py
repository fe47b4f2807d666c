"""The scenarios: apps without a limit, with this package, with a limiter of a few lines, and with peers.

A scenario names them `bare`, `ours` and `floor`, or `ours, ...` and `floor, ...` where it has several.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple

from benchmarks.instructions import floors, peers
from benchmarks.instructions.driving import Run, asgi, checked, scope, wsgi
from benchmarks.instructions.floors import Gcra
from benchmarks.instructions.peers import PLENTY
from benchmarks.lab import Missing, package
from benchmarks.ours.asgi import App, Receive, Scope, Send
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.stores.redis import deadline
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware

_HOUR: Final = f"{PLENTY}/hour"
_THREE: Final = (_HOUR, f"{2 * PLENTY}/2 hours", f"{10 * PLENTY}/day")
_SECONDS: Final = (3600, 7200, 86400)
_SLOWER: Final = 20  # times, about, that a program takes under valgrind
Runs = dict[str, Run]


class Scenario(NamedTuple):
    """Apps that are asked the same.

    `make`: makes them; its argument is the URL of a Redis server, which only those have that `uses_redis`. `warm_up`:
    requests before the first count. `requests`: of the shorter of the two runs that are counted.
    """

    name: str
    make: Callable[[str], Runs]
    warm_up: int = 300
    requests: int = 100
    uses_redis: bool = False


async def _hello(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def _with_peers(runs: Runs, made: dict[str, Callable[[], Run]]) -> Runs:
    """Return the runs with those of the peers that are installed."""
    for name, make in made.items():
        try:
            runs[name] = make()
        except Missing as missing:
            sys.stderr.write(f"{name} is left out, {missing}\n")
    return runs


def _starlette() -> Any:
    answer = package("starlette.responses").PlainTextResponse

    async def home(_request: Any) -> Any:
        return answer("ok")

    return package("starlette.applications").Starlette(routes=[package("starlette.routing").Route("/items/{id}", home)])


def _one_limit(_: str) -> Runs:
    ours, floor = _starlette(), _starlette()
    ours.add_middleware(RateLimitMiddleware, limits=_HOUR)
    floor.add_middleware(floors.Asgi, limits=[Gcra(PLENTY, 3600)])
    return _with_peers(
        {"bare": asgi(_starlette()), "ours": checked(asgi(ours)), "floor": asgi(floor)},
        {
            "asgi-ratelimit": lambda: asgi(peers.asgi_ratelimit(_starlette(), {"^/items": ["hour"]})),
            "slowapi": lambda: asgi(peers.slowapi_middleware(_starlette())),
        },
    )


def _with_a_goal(_: str) -> Runs:
    runs = {"bare": asgi(_starlette())}
    for name, goal in (("ours, no goal", 0.0), ("ours, goal", 0.25)):
        app = _starlette()
        app.add_middleware(RateLimitMiddleware, limits=_HOUR, latency_goal=goal)
        runs[name] = checked(asgi(app))
    return runs


def _three_limits(_: str) -> Runs:
    rates = [Gcra(PLENTY, seconds) for seconds in _SECONDS]
    rules = {"^/items": ["minute", "hour", "day"]}
    return _with_peers(
        {
            "bare": asgi(_hello),
            "ours": checked(asgi(RateLimitMiddleware(_hello, limits=_THREE))),
            "ours, 1 limit": asgi(RateLimitMiddleware(_hello, limits=[_HOUR])),
            "floor": asgi(floors.Asgi(_hello, rates)),
            "floor, 1 limit": asgi(floors.Asgi(_hello, [Gcra(PLENTY, 3600)])),
        },
        {"asgi-ratelimit": lambda: asgi(peers.asgi_ratelimit(_hello, rules))},
    )


def _addresses(first: Sequence[int], second: Sequence[int]) -> Iterator[bytes]:
    return (f"{a}.{b}.{c}.{d}".encode() for a in first for b in second for c in range(50) for d in range(50))


def _behind_a_proxy(clients: int | None) -> Callable[[str], Runs]:
    """Return a scenario of 10 rules behind a proxy. `clients`: that come in turn; None: all are new."""

    def behind(app: App) -> Run:
        if clients is None:
            addresses = _addresses(range(11, 200), range(5, 55))
        else:
            known = ((b"198." + one) for one in _three_parts())
            addresses = itertools.cycle([*itertools.islice(known, clients)])
        return asgi(app, lambda: scope("10.0.0.1", (b"x-forwarded-for", next(addresses))))

    def make(_: str) -> Runs:
        names = [*(f"r{number}" for number in range(9)), "items"]
        rules: list[Any] = [{"path": f"/{name}/{{id}}", "limits": _HOUR} for name in names]
        ours = RateLimitMiddleware(_hello, limits=_HOUR, trusted_proxies=["10.0.0.0/8"], rules=rules)
        rates = {(name, 3): Gcra(PLENTY, 3600) for name in names}
        theirs = {f"^/{name}/": ["hour"] for name in names}
        return _with_peers(
            {
                "bare": behind(_hello),
                "ours": checked(behind(ours)),
                "floor": behind(floors.Proxied(_hello, rates, Gcra(PLENTY, 3600))),
            },
            {"asgi-ratelimit": lambda: behind(peers.asgi_ratelimit(_hello, theirs, proxied=True))},
        )

    return make


def _three_parts() -> Iterator[bytes]:
    return (f"{a}.{b}.{c}".encode() for a in range(18, 36) for b in range(50) for c in range(50))


def _forwarded(_: str) -> Runs:
    """How many addresses the proxies add."""
    proxies = ["10.0.0.0/8"]

    def behind(app: App, forwarded: bytes) -> Run:
        return asgi(app, lambda: scope("10.0.0.1", (b"x-forwarded-for", forwarded)))

    return {
        "bare": behind(_hello, b"198.51.100.7"),
        "ours, one address": checked(
            behind(RateLimitMiddleware(_hello, limits=_HOUR, trusted_proxies=proxies), b"198.51.100.7")
        ),
        "ours, two addresses": checked(
            behind(RateLimitMiddleware(_hello, limits=_HOUR, trusted_proxies=proxies), b"198.51.100.7, 10.0.0.2")
        ),
    }


def _lists(_: str) -> Runs:
    """Lists that have an entry, which does not concern the request."""
    lists = RateLimitMiddleware(_hello, limits=_HOUR, exempt=["/health"], safelist=["192.0.2.1"])
    return {
        "bare": asgi(_hello),
        "ours, no lists": checked(asgi(RateLimitMiddleware(_hello, limits=_HOUR))),
        "ours, exempt and safelist": checked(asgi(lists)),
    }


def _families(_: str) -> Runs:
    """6,000 peers in turn."""

    def of(app: App, form: str) -> Run:
        addresses = itertools.cycle([form.format(high, low) for high in range(60) for low in range(100)])
        return asgi(app, lambda: scope(next(addresses)))

    return {
        "bare": of(_hello, "198.51.{}.{}"),
        "ours, IPv4": checked(of(RateLimitMiddleware(_hello, limits=_HOUR), "198.51.{}.{}")),
        "ours, IPv6": checked(of(RateLimitMiddleware(_hello, limits=_HOUR), "2001:db8:{}:{}::1")),
    }


def _redis(tasks: int, limits: int) -> Callable[[str], Runs]:
    def make(url: str) -> Runs:
        # Deadlines are checked by time, and the checks would be counted.
        deadline._MAX_WAIT *= _SLOWER  # type: ignore[misc]  # noqa: SLF001  # nothing else changes it
        clients = itertools.cycle([f"10.0.1.{number}" for number in range(64)])
        host, _, port = url.removeprefix("redis://").partition("/")[0].partition(":")
        periods = ["minute", "hour", "day"] if limits > 1 else ["hour"]

        def shared(app: App) -> Run:
            run = asgi(app, lambda: scope(next(clients)), tasks)
            asgi(app)(1)  # opens its connection
            run(2 * tasks)
            return run

        ours = RateLimitMiddleware(_hello, limits=_THREE[:limits], store=url, store_timeout=60)
        checked(asgi(ours))
        return _with_peers(
            {
                "bare": shared(_hello),
                "ours": shared(ours),
                "floor": shared(floors.Redis(_hello, host, int(port), limits)),
            },
            {
                "asgi-ratelimit": lambda: shared(peers.asgi_ratelimit(_hello, {"^/items": periods}, redis=url)),
                "limits, no headers": lambda: shared(peers.limits_hits(_hello, url, limits)),
            },
        )

    return make


def _flask(_: str) -> Runs:
    flask = package("flask")
    extension = package("ratelimit_mw.flask").RateLimiter

    def app() -> Any:
        made = flask.Flask("app")
        made.add_url_rule("/items/<id>", view_func=lambda id: "ok", endpoint="home")  # noqa: A006, ARG005
        return made

    def with_floor(made: Any) -> Any:
        limit = Gcra(PLENTY, 3600)

        def before() -> tuple[str, int] | None:
            flask.g.fields = floors.text_fields(limit, flask.request.remote_addr)
            return ("", 429) if flask.g.fields is None else None

        def after(response: Any) -> Any:
            for name, value in flask.g.fields:
                response.headers.add(name, value)
            return response

        made.before_request(before)
        made.after_request(after)
        return made

    extended = app()
    extension(extended, limits=_HOUR)
    return _with_peers(
        {
            "bare": wsgi(app()),
            "ours, middleware": checked(wsgi(WsgiMiddleware(app(), limits=_HOUR))),
            "ours, extension": checked(wsgi(extended)),
            "floor, middleware": wsgi(floors.Wsgi(app(), Gcra(PLENTY, 3600))),
            "floor, extension": wsgi(with_floor(app())),
        },
        {"flask-limiter": lambda: wsgi(peers.flask_limiter(app()))},
    )


def _django(_: str) -> Runs:
    conf, answer = package("django.conf").settings, package("django.http").HttpResponse
    conf.configure(
        ROOT_URLCONF="count_urls",
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=[],
        RATELIMIT_MW={"limits": _HOUR},
        LOGGING_CONFIG=None,
    )

    def home(_request: Any, id: str) -> Any:  # noqa: A002, ARG001  # as in the path
        return answer("ok")

    path = package("django.urls").path
    urls: Any = ModuleType("count_urls")
    urls.urlpatterns = [path("items/<id>", home)]
    sys.modules["count_urls"] = urls
    package("django").setup()
    handler = package("django.core.handlers.wsgi").WSGIHandler

    def app(*middleware: str) -> Any:
        conf.MIDDLEWARE = [*middleware]
        return handler()

    def decorated() -> Run:
        urls.urlpatterns.append(path("limited/<id>", peers.django_ratelimit(home)))
        return wsgi(app(), "/limited/1")

    return _with_peers(
        {
            "bare": wsgi(app()),
            "ours": wsgi(app("ratelimit_mw.django.RateLimitMiddleware")),
            "floor": wsgi(app("benchmarks.instructions.floors.Django")),
        },
        {"django-ratelimit, no headers": decorated},
    )


def _fastapi(_: str) -> Runs:
    fastapi = package("fastapi")
    dependency = package("ratelimit_mw.fastapi").RateLimit
    limit = Gcra(PLENTY, 3600)

    async def home(id: str) -> str:  # noqa: A002, ARG001  # as in the path
        return "ok"

    def app(*dependencies: Any) -> Any:
        made = fastapi.FastAPI()
        made.add_api_route("/items/{id}", home, dependencies=[fastapi.Depends(one) for one in dependencies])
        return made

    async def floor(request: Any, response: Any) -> None:
        if (taken := limit.take(request.scope["client"][0])) is None:
            raise fastapi.HTTPException(429)
        response.raw_headers += [(b"ratelimit-policy", limit.policy), (b"ratelimit", limit.form % taken)]

    floor.__annotations__ |= {"request": fastapi.Request, "response": fastapi.Response}
    return _with_peers(
        {"bare": asgi(app()), "ours": checked(asgi(app(dependency(_HOUR)))), "floor": asgi(app(floor))},
        {
            "fastapi-limiter, no headers": lambda: asgi(app(peers.fastapi_limiter())),
            "slowapi, decorator": lambda: asgi(peers.slowapi_decorator()),
        },
    )


SCENARIOS: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario("asgi", _one_limit, requests=60),
        Scenario("asgi-goal", _with_a_goal, requests=60),
        Scenario("asgi-3", _three_limits),
        Scenario("proxy-1", _behind_a_proxy(1), warm_up=600, requests=200),
        Scenario("proxy-1000", _behind_a_proxy(1000), warm_up=3000, requests=200),
        Scenario("proxy-6000", _behind_a_proxy(6000), warm_up=6000, requests=200),
        Scenario("proxy-new", _behind_a_proxy(None), warm_up=600, requests=200),
        Scenario("forwarded", _forwarded),
        Scenario("lists", _lists),
        Scenario("families", _families, warm_up=6000),
        Scenario("redis-1x1", _redis(1, 1), requests=64, uses_redis=True),
        Scenario("redis-1x3", _redis(1, 3), requests=64, uses_redis=True),
        Scenario("redis-64x1", _redis(64, 1), requests=128, uses_redis=True),
        Scenario("redis-64x3", _redis(64, 3), requests=128, uses_redis=True),
        Scenario("flask", _flask, requests=40),
        Scenario("django", _django, requests=40),
        Scenario("fastapi", _fastapi, requests=40),
    )
}
