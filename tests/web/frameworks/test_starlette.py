"""Limits on endpoints, routes, mounts and routers of Starlette."""

from __future__ import annotations  # makes annotations text here, as in many apps

import asyncio
import gc
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.websockets import WebSocket

from ratelimit_mw import ConfigError
from ratelimit_mw.asgi import RateLimitMiddleware as AsgiMiddleware
from ratelimit_mw.starlette import RateLimit, RateLimitMiddleware, exempt, limit
from ratelimit_mw.starlette.enforcement import AsgiEndpointLimit, endpoint_checks
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import LIFESPAN, OFFERS_HTTP, WEBSOCKET, talk
from web.in_process import answers, check_refusal, items, recording, statuses, taken

if TYPE_CHECKING:
    from starlette.requests import Request as Later

IP = "{ip=192.0.2.1}:"


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def app_of(*routes: Any, **settings: Any) -> Starlette:
    """Return an app with these routes; with the middleware around it if there are settings."""
    own = [Middleware(RateLimitMiddleware, **settings)] if settings else []
    return Starlette(routes=[*routes], middleware=own)


def test_the_starlette_middleware_is_the_asgi_middleware() -> None:
    assert RateLimitMiddleware is AsgiMiddleware


# the decorator


async def as_async(request: Request) -> Response:
    return PlainTextResponse(str(request.path_params.get("item", "hello")))


def as_plain(request: Request) -> Response:
    assert threading.current_thread() is not threading.main_thread()  # the endpoint does not block the event loop
    return PlainTextResponse("hello")


class AsClass(HTTPEndpoint):
    async def get(self, _: Request) -> Response:
        return PlainTextResponse("hello")


def with_a_method(decorate: Callable[[Any], Any]) -> type:
    class WithMethod(HTTPEndpoint):
        @decorate
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("hello")

        async def post(self, _: Request) -> Response:
            return PlainTextResponse("posted")

    return WithMethod


def made(kind: str, decorate: Callable[[Any], Any]) -> Any:
    """Return an endpoint of this kind, with the decorator applied to it or to its method."""
    if kind == "class":
        return decorate(type("AsClass", (AsClass,), {}))
    return with_a_method(decorate) if kind == "method" else decorate({"async": as_async, "plain": as_plain}[kind])


KINDS = pytest.mark.parametrize("kind", ["async", "plain", "class", "method"])


@KINDS
@pytest.mark.parametrize("outside", [True, False], ids=["inside of the middleware", "alone"])
def test_a_limit_on_an_endpoint_refuses_and_sets_headers(kind: str, *, outside: bool) -> None:
    store, settings = recording()
    own: dict[str, Any] = {"name": "own"} if outside else {"name": "own", "store": store}
    decorate = limit("2/minute", **own)
    app = app_of(Route("/", made(kind, decorate)), Route("/other", hello), **(settings if outside else {}))
    first, second, third, other = answers(app, "/", "/", "/", "/other")
    assert (first.status, second.status, other.status) == (200, 200, 200)
    assert [items(first), items(second), items(other)] == [
        [("own", {"r": 1, "t": 60})],
        [("own", {"r": 0, "t": 60})],
        [],
    ]
    assert items(first, "ratelimit-policy") == [("own", {"q": 2, "w": 60})]
    assert first.field("retry-after") == []
    assert first.body == b"hello"
    check_refusal(third, [("own", 2, 0)], ["own"])
    assert [len(charges) for charges in taken(store)] == [1, 1, 1]


def test_a_limit_on_a_method_does_not_limit_other_methods_of_the_class() -> None:
    _, settings = recording()
    app = app_of(Route("/", with_a_method(limit("1/minute"))), **settings)
    assert statuses(app, "/", "/", ("POST", "/"), ("POST", "/"), ("HEAD", "/")) == [200, 429, 200, 200, 429]


def test_a_refused_endpoint_is_not_called() -> None:
    called: list[str] = []

    @limit("1/minute")
    async def view(request: Request) -> Response:
        called.append(request.url.path)
        return Response()

    assert statuses(app_of(Route("/", view), **recording()[1]), "/", "/", "/") == [200, 429, 429]
    assert called == ["/"]


def test_a_limited_endpoint_keeps_its_name_and_docstring() -> None:
    wrapped = limit("1/minute")(as_async)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("as_async", None, as_async)  # type: ignore[attr-defined]  # functools.wraps


def test_the_endpoint_reads_the_verdict_from_the_request_state() -> None:
    @limit("5/minute", name="own")
    async def view(request: Request) -> Response:
        verdict = request.state.ratelimit.verdict
        return JSONResponse([verdict.remaining, len(verdict.charges)])

    _, settings = recording()
    assert answers(app_of(Route("/", view), **settings), "/")[0].body == b"[4,1]"
    assert answers(app_of(Route("/", view), **{**settings, "limits": "9/minute"}), "/")[0].body == b"[3,2]"


@pytest.mark.promise(1, 2)
def test_stacked_limits_are_decided_in_one_store_call() -> None:
    store, settings = recording()

    @limit("3/minute", name="wide")
    @limit("1/minute", name="narrow", key="all")
    async def view(_: Request) -> Response:
        return Response()

    app = app_of(Route("/", view), **settings)
    assert statuses(app, "/", "/", "/") == [200, 429, 429]
    assert taken(store) == [[f"{IP}@wide 3", "{all=all}:@narrow 1"]] * 3
    last = answers(app, "/")[0]
    assert items(last) == [("narrow", {"r": 0, "t": 60}), ("wide", {"r": 2, "t": 60})]  # refusals are not charged


@pytest.mark.promise(2)
def test_limits_of_a_class_and_its_base_are_decided_in_one_store_call() -> None:
    store, settings = recording()

    @limit("3/minute", name="base")
    class Base(AsClass): ...

    @limit("1/minute", name="own")
    class Own(Base): ...

    app = app_of(Route("/", Own), Route("/base", Base), **settings)
    assert statuses(app, "/", "/", "/base") == [200, 429, 200]
    assert taken(store) == [[f"{IP}@own 1", f"{IP}@base 3"]] * 2 + [[f"{IP}@base 3"]]


def test_a_function_wrapped_twice_makes_two_separately_limited_endpoints() -> None:
    strict, loose = limit("1/minute", name="strict")(as_async), limit("9/minute", name="loose")(as_async)
    store, settings = recording()
    app = app_of(Route("/strict", strict), Route("/loose", loose), Route("/free", as_async), **settings)
    assert statuses(app, "/strict", "/strict", "/loose", "/free") == [200, 429, 200, 200]
    assert taken(store) == [[f"{IP}@strict 1"], [f"{IP}@strict 1"], [f"{IP}@loose 9"]]


def test_the_bucket_of_an_unnamed_limit_is_named_after_the_endpoint() -> None:
    store, settings = recording()
    view = limit("2/minute")(as_async)
    routes = [Route("/items/{item}", view), Mount("/sub/{tenant}", routes=[Route("/items/{item}", view)])]
    assert statuses(app_of(*routes, **settings), "/items/1", "/items/2", "/sub/a/items/3") == [200, 200, 429]
    assert taken(store) == [[f"{IP}@{as_async.__module__}.as_async() 2"]] * 3


def test_the_route_key_is_the_full_path_template() -> None:
    store, settings = recording()
    view = limit("2/minute", name="own", key="route")(as_async)
    inner = [Route("/items/{item:int}", view)]
    routes = [
        Host("{shop}.example.com", app=Starlette(routes=inner)),
        *inner,
        Mount("/sub/{item}", routes=[Mount("/deep", app=Router(inner))]),
        Mount("/apps", app=Starlette(routes=inner)),
    ]
    app = app_of(*routes, **settings)
    paths = ["/items/1", "/items/2", "/items/3", "/sub/a/deep/items/1", "/sub/b/deep/items/1", "/apps/items/1"]
    assert statuses(app, *paths) == [200, 200, 429, 200, 200, 200]
    hosts = [{"host": f"{shop}.example.com"} for shop in ("one", "two")]
    assert [statuses(app, "/items/1", headers=host) for host in hosts] == [[200], [200]]
    found = [call[0].partition("}:")[0].removeprefix("{route=") for call in taken(store)]
    item = "/items/%7Bitem%7D"
    assert (
        found
        == [item] * 3 + [f"/sub/%7Bitem%7D/deep{item}"] * 2 + [f"/apps{item}"] + [f"%7Bshop%7D.example.com{item}"] * 2
    )


class Below(Router):
    """Routes below a host, which names itself to the endpoint."""

    def __init__(self, host: str, *routes: Route) -> None:
        super().__init__(routes)
        self.below = host

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["below"] = self.below
        await super().__call__(scope, receive, send)


@pytest.mark.promise(9)
@pytest.mark.parametrize("host", ["b.test", "b.test:80", "b.test:", "b.test:1:2", "b.test:x", "B.Test", "B.TEST:1:2"])
def test_the_route_key_has_the_host_that_starlette_matches(host: str) -> None:
    """Versions of Starlette cut the port differently."""
    store, settings = recording()

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(request.scope["below"])

    route = Route("/", limit("9/minute", name="own", key="route")(endpoint))
    app = app_of(*[Host(name, Below(name, route)) for name in ("a.test", "b.test", "{rest}")], **settings)
    (answer,) = answers(app, "/", headers={"host": host})
    charged = [call[0].partition("}:")[0].removeprefix("{route=") for call in taken(store)]
    below = answer.body.decode().replace("{", "%7B").replace("}", "%7D")
    assert charged == ([f"{below}/"] if answer.status == 200 else [])


def test_the_route_key_omits_the_root_path_of_a_proxy() -> None:
    store, settings = recording()
    inner = Starlette(routes=[Route("/items/{item}", limit("9/minute", name="own", key="route")(as_async))])
    app = app_of(Mount("/one", app=inner), Mount("/two", app=inner), **settings)

    async def below_a_proxy(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/api", "path": "/api" + scope["path"]}, receive, send)

    assert statuses(below_a_proxy, "/one/items/1", "/two/items/1") == [200, 200]
    assert [call[0].partition("}:")[0] for call in taken(store)] == [
        f"{{route=/{name}/items/%7Bitem%7D" for name in ("one", "two")
    ]


def test_the_route_key_is_known_for_routes_added_later() -> None:
    store, settings = recording()
    view = limit("9/minute", name="own", key="route")
    app = app_of(Route("/old", view(as_async)), **settings)
    statuses(app, "/old")
    app.routes.append(Route("/new/{item}", view(as_plain)))
    assert statuses(app, "/new/1") == [200]
    assert taken(store)[1] == ["{route=/new/%7Bitem%7D}:@own 9"]


# which parameter is the request


def no_hint(request): ...  # type: ignore[no-untyped-def] # noqa: ANN001  # on purpose
def other_name(conn: HTTPConnection): ...  # type: ignore[no-untyped-def]  # its response does not matter
def not_read_yet(request: Later): ...  # type: ignore[no-untyped-def]  # see above
def second(item: int, it: Request): ...  # type: ignore[no-untyped-def]  # see above
def beside_what_cannot_be_read(item: Nowhere, it: WebSocket): ...  # type: ignore[no-untyped-def,name-defined] # noqa: F821  # on purpose


FOUND = [no_hint, other_name, not_read_yet, second, beside_what_cannot_be_read]


@pytest.mark.parametrize("endpoint", FOUND, ids=lambda endpoint: endpoint.__name__)
def test_limit_finds_the_request_parameter(endpoint: Any) -> None:
    assert limit("1/minute")(endpoint).__wrapped__ is endpoint


def nothing() -> None: ...
def only_an_item(item: int) -> None: ...
def a_model_by_that_name(request: dict[str, str]) -> None: ...


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        (nothing, "has no parameter for the request, so"),
        (only_an_item, "has no parameter that is known to be the request, so .*`item: Request`"),
        (a_model_by_that_name, "has no parameter that is known to be the request, so .*`request: Request`"),
    ],
)
def test_limit_on_an_endpoint_without_a_request_parameter_is_an_error(endpoint: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=rf"{problem} .*Depends\(RateLimit\(\.\.\.\)\)"):
        limit("1/minute")(endpoint)


def yielding(request: Request) -> Any:
    yield request


async def yielding_later(request: Request) -> Any:
    yield request


@pytest.mark.parametrize("endpoint", [yielding, yielding_later])
def test_limit_on_a_generator_function_is_an_error(endpoint: Any) -> None:
    with pytest.raises(TypeError, match=r"yields, and cannot be wrapped; .*Depends\(RateLimit"):
        limit("1/minute")(endpoint)


@pytest.mark.parametrize("endpoint", [7, object(), Router(), dict, Response])
def test_limit_on_an_object_that_is_no_endpoint_is_an_error(endpoint: Any) -> None:
    with pytest.raises(TypeError, match="a limit is attached to "):
        limit("1/minute")(endpoint)


def test_calling_a_limited_endpoint_without_a_request_is_an_error() -> None:
    limited: Any = limit("1/minute")(no_hint)
    with pytest.raises(TypeError, match="no_hint: got int as request, expected a request"):
        asyncio.run(limited(5))


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ("5/minut", {}, "unknown period 'minut', did you mean 'minute'"),
        ("5/minute", {"kye": "ip"}, "unknown setting `kye`: did you mean `key`"),
        ("5/minute", {"store": "redsi://"}, "store: "),
        ("5/minute", {"store": 5}, "store: got int, expected a URL or an AsyncStore"),
    ],
)
@pytest.mark.parametrize("kind", [limit, partial(RateLimit, Router())], ids=["limit", "RateLimit"])
def test_wrong_options_raise_when_the_limit_is_created(
    kind: Any, limits: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as told:
        kind(limits, **options)
    assert message in str(told.value)


# with the middleware, and without it


def test_middleware_and_endpoint_limits_both_count_and_share_the_headers() -> None:
    store, settings = recording(limits="9/minute")
    view = limit("2/minute", name="own")(as_async)
    first, *_, last = answers(app_of(Route("/", view), **settings), "/", "/", "/")
    assert items(first) == [("own", {"r": 1, "t": 60}), ("default", {"r": 8, "t": 60})]
    check_refusal(last, [("own", 2, 0), ("default", 9, 6)], ["own"])
    assert taken(store) == [[f"{IP}default 9"], [f"{IP}@own 2"]] * 3


def test_settings_of_the_middleware_apply_to_endpoint_limits() -> None:
    view = limit("1/minute", name="own")(as_async)
    for more, expected in (
        ({"exempt": ["/"]}, [200] * 3),
        ({"safelist": ["192.0.2.1"]}, [200] * 3),
        ({"shadow": True}, [200] * 3),
        ({"enabled": False}, [200] * 3),
        ({"key": "header:x-key", "missing_key": "deny"}, [403] * 3),
    ):
        _, settings = recording(**more)
        assert statuses(app_of(Route("/", view), **settings), "/", "/", "/") == expected


@pytest.mark.parametrize("style", ["ietf", "legacy", "both", "none"])
def test_header_fields_appear_once_in_the_middlewares_style(style: str) -> None:
    _, settings = recording(headers=style)
    view = limit("2/minute", name="own")(as_async)
    for answer in answers(app_of(Route("/", view), **settings), "/", "/", "/"):
        assert len(answer.field("ratelimit")) == (style in ("ietf", "both"))
        assert len(answer.field("x-ratelimit-limit")) == (style in ("legacy", "both"))


def test_limits_without_middleware_count_in_process_and_warn_once_per_app(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (
        app_of(Route("/", limit("2/minute")(as_async)), Route("/too", limit("2/minute")(as_plain))) for _ in "12"
    )
    with caplog.at_level(logging.WARNING):
        assert statuses(one, "/", "/", "/", "/too") == [200, 200, 429, 200]
        assert statuses(two, "/") == [200]  # another app
    alone = [message for message in caplog.messages if "in this process alone" in message]
    assert len(alone) == 2
    assert alone[0].startswith("ratelimit_mw: limits on endpoints count in this process alone; add RateLimit")


def test_an_endpoint_in_several_apps_is_counted_separately_in_each() -> None:
    store, settings = recording()

    @limit("2/minute", name="own")
    async def endpoint(_: Request) -> Response:
        return PlainTextResponse("hello")

    route = Route("/", endpoint)
    apps = [app_of(route), app_of(route), app_of(route, **settings)]
    assert [statuses(app, "/") for _ in range(3) for app in apps] == [[200]] * 6 + [[429]] * 3
    assert taken(store) == [[f"{IP}@own 2"]] * 3


def test_the_gate_of_an_endpoint_limit_is_freed_with_its_app() -> None:
    (step,) = endpoint_checks((AsgiEndpointLimit("1/minute"),), "endpoint")
    router = Router()
    gate = ref(step.compiled_for({"router": router}, None).gate)
    assert gate() is step.compiled_for({"router": router}, None).gate
    del router
    gc.collect()
    gc.collect()  # frees the gate, because its only owner, the router, is freed
    assert gate() is None


def test_limits_without_the_middleware_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATELIMIT_MW_ENABLED", "false")
    monkeypatch.setenv("RATELIMIT_MW_LIMITS", "1/hour")
    assert statuses(app_of(Route("/", limit("1/minute")(as_async))), "/", "/") == [200, 200]
    monkeypatch.setenv("RATELIMIT_MW_STORE", "nonsense://")
    with pytest.raises(ConfigError):
        limit("1/minute")


def test_a_limit_uses_its_own_store_instead_of_the_middlewares() -> None:
    outer, settings = recording(limits="9/minute")
    own = RecordingStore(clock=Clock())
    view = limit("1/minute", name="own", store=own)(limit("5/minute", name="shared")(as_async))
    app = app_of(Route("/", view), **settings)
    assert statuses(app, "/", "/") == [200, 429]
    assert taken(own) == [[f"{IP}@own 1"]] * 2
    assert taken(outer) == [[f"{IP}default 9"], [f"{IP}@shared 5"], [f"{IP}default 9"]]


def test_limits_with_the_same_name_share_one_bucket() -> None:
    _, settings = recording()
    kept = limit("2/minute", name="one")
    app = app_of(Route("/a", kept(as_async)), Route("/b", kept(as_plain)), **settings)
    assert statuses(app, "/a", "/b", "/a", "/b") == [200, 200, 429, 429]


def test_rate_limit_headers_are_added_to_those_of_the_endpoint() -> None:
    store, _ = recording()

    @limit("2/minute", name="own", store=store)
    async def view(_: Request) -> Response:
        return Response(headers={"RateLimit": '"daily";r=8;t=80000', "Retry-After": "7"})

    answer = answers(app_of(Route("/", view)), "/")[0]
    assert items(answer) == [("daily", {"r": 8, "t": 80000}), ("own", {"r": 1, "t": 60})]
    assert answer.field("retry-after") == ["7"]


def test_streaming_responses_pass_and_have_the_headers() -> None:
    store, _ = recording()

    @limit("2/minute", name="own", store=store)
    async def view(_: Request) -> Response:
        return StreamingResponse(iter(["a", "b", "c"]))

    answer = answers(app_of(Route("/", view)), "/")[0]
    assert (answer.body, items(answer)) == (b"abc", [("own", {"r": 1, "t": 60})])


def test_a_failing_store_causes_503_or_the_fallback_but_no_500() -> None:
    store, settings = recording()
    store.error = ConnectionError("down")
    view = limit("1/minute", name="own", on_store_error="deny")(as_async)
    assert statuses(app_of(Route("/", view), **settings), "/") == [503]
    view = limit("1/minute", name="own")(as_async)
    assert statuses(app_of(Route("/", view), **settings), "/", "/") == [200, 429]  # the fallback store counts


# on_refused


def plainly(_: Any, verdict: Any) -> tuple[int, dict[str, str], str]:
    return 418, {"X-Own": "1"}, f"no: {verdict.limit}"


async def by_an_app(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("by an app", 420)(scope, receive, send)


async def raises(_: Any, __: Any) -> Any:
    raise RuntimeError("oh")


async def raises_as_app(scope: Any, receive: Any, send: Any) -> Any:
    raise RuntimeError("oh")


@KINDS
@pytest.mark.parametrize(
    ("on_refused", "status", "body"),
    [(plainly, 418, b"no: 1"), (by_an_app, 420, b"by an app"), (raises, 429, None), (raises_as_app, 429, None)],
    ids=["plain", "asgi", "raises", "an app that raises"],
)
def test_on_refused_builds_the_refusal_response(kind: str, on_refused: Any, status: int, body: bytes | None) -> None:
    _, settings = recording(on_refused=on_refused)
    endpoint = made(kind, limit("1/minute", name="own"))
    answer = answers(app_of(Route("/", endpoint), **settings), "/", "/")[1]
    assert answer.status == status
    assert body is None or answer.body == body
    assert items(answer) == [("own", {"r": 0, "t": 60})]
    assert answer.field("retry-after") == ["60"]


def test_an_outer_decorator_receives_a_response_for_a_refusal() -> None:
    def stamped(endpoint: Any) -> Any:
        async def wrapper(request: Request) -> Any:
            response = await endpoint(request)
            response.headers["X-Stamp"] = str(response.status_code)
            return response

        return wrapper

    app = app_of(Route("/", stamped(limit("1/minute", name="own")(as_async))), **recording()[1])
    assert [answer.field("x-stamp") for answer in answers(app, "/", "/")] == [["200"], ["429"]]


def test_a_refused_head_request_gets_a_content_length_but_no_body() -> None:
    app = app_of(Route("/", limit("1/minute", name="own")(as_async)), **recording()[1])
    get, head = answers(app, "/", "/")[1], answers(app, ("HEAD", "/"))[0]
    assert (head.status, head.body) == (429, b"")
    assert head.field("content-length") == get.field("content-length")


# websockets

CONNECT = {"type": "websocket.connect"}


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


class Socket(WebSocketEndpoint):
    async def on_connect(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()


@pytest.mark.parametrize("kind", ["function", "class", "route"])
@pytest.mark.parametrize("outside", [True, False], ids=["inside of the middleware", "alone"])
def test_endpoint_limits_refuse_websockets_like_the_middleware(kind: str, *, outside: bool) -> None:
    store, settings = recording()
    options: dict[str, Any] = {"name": "own"} if outside else {"name": "own", "store": store}
    decorate = limit("1/minute", **options)
    route = {
        "function": lambda: WebSocketRoute("/", decorate(socket)),
        "class": lambda: WebSocketRoute("/", decorate(type("Socket", (Socket,), {}))),
        "route": lambda: WebSocketRoute("/", socket, middleware=[Middleware(RateLimit, "1/minute", **options)]),
    }[kind]()
    app = app_of(route, **(settings if outside else {}))
    gone = {"type": "websocket.disconnect"}
    assert talk(app, WEBSOCKET, CONNECT, gone).types == ["websocket.accept", "websocket.close"]
    refused = {"type": "websocket.close", "code": 1013, "reason": "Too Many Requests"}
    assert talk(app, WEBSOCKET, CONNECT).sent == [refused]
    start, body = talk(app, WEBSOCKET, CONNECT, **OFFERS_HTTP).sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert body["type"] == "websocket.http.response.body"


# routes, mounts and routers


def test_a_limit_on_a_route_is_named_after_the_route() -> None:
    _, settings = recording()
    route = Route("/items/{item}", as_async, middleware=[Middleware(RateLimit, "2/minute")])
    app = app_of(route, Route("/other", as_plain), **settings)
    *_, last, other = answers(app, "/items/1", "/items/2", "/items/3", "/other")
    check_refusal(last, [("GET_items_item", 2, 0)], ["GET_items_item"])
    assert (other.status, items(other)) == (200, [])


def test_a_limit_on_a_route_adds_the_headers_without_the_middleware() -> None:
    store, _ = recording()
    app = app_of(Route("/", hello, middleware=[Middleware(RateLimit, "2/minute", name="own", store=store)]))
    first, _, last = answers(app, "/", "/", "/")
    assert items(first) == [("own", {"r": 1, "t": 60})]
    check_refusal(last, [("own", 2, 0)], ["own"])


@pytest.mark.parametrize("around", ["mount", "router"])
def test_a_limit_on_a_mount_or_router_counts_in_one_bucket(around: str) -> None:
    store, settings = recording()
    routes = [Route("/a/{item}", as_async), Route("/b", hello), Route("/c", as_plain)]
    own = [Middleware(RateLimit, "2/minute")]
    if around == "mount":
        part = Mount("/part/{tenant}", routes=routes, middleware=own)
    else:
        part = Mount("/part/{tenant}", app=Router(routes, middleware=own))
    app = app_of(part, Route("/b", hello), **settings)
    assert statuses(app, "/part/x/a/1", "/part/y/b", "/part/z/a/2", "/part/x/none", "/b") == [200, 200, 429, 429, 200]
    assert {call[0].partition("@")[2].rpartition("-")[0] for call in taken(store)} == {"part_tenant"}


def test_exempt_endpoints_skip_the_limits_of_mounts_around_them() -> None:
    _, settings = recording()
    free = exempt(limit("2/minute", name="own")(as_plain))

    @exempt
    async def too(_: Request) -> Response:
        return Response()

    inside = [Route("/{item}/taken", as_async), Route("/free", free), Route("/{item}/free", too)]
    routes = [Route("/hidden", as_async), Mount("/in", routes=inside), Route("/hidden", too)]
    app = app_of(Mount("/part", routes=routes, middleware=[Middleware(RateLimit, "1/minute")]), **settings)
    assert statuses(app, "/part/in/x/free", "/part/in/x/free", "/part/in/x/taken", "/part/in/x/taken") == [200] * 3 + [
        429
    ]
    assert statuses(app, "/part/hidden") == [429]  # another route has that path first
    assert statuses(app, *["/part/in/free"] * 3) == [200, 200, 429]  # a limit on the endpoint itself applies
    assert statuses(app, ("DELETE", "/part/in/x/free"), "/part/none") == [429, 429]


def test_lifespan_messages_pass_through() -> None:
    given = [{"type": f"lifespan.{name}"} for name in ("startup", "shutdown")]
    types = talk(RateLimit(Starlette(), "1/minute"), LIFESPAN, *given).types
    assert types == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_an_exemption_without_effect_is_reported_at_startup(caplog: pytest.LogCaptureFixture) -> None:
    heeding = [Middleware(RateLimit, "1/minute")]
    free = exempt(type("Free", (AsClass,), {}))
    routes = [
        Route("/none/{item}", free),
        Mount("/mount", routes=[Mount("/deep", routes=[Route("/x", free)])], middleware=heeding),
        Mount("/router", app=Router([Route("/x", free)], middleware=heeding)),
        Mount("/none", routes=[Route("/x", free)]),
        Route("/taken", hello),
    ]
    given = [{"type": f"lifespan.{name}"} for name in ("startup", "shutdown")]
    with caplog.at_level(logging.WARNING):
        talk(app_of(*routes, **recording()[1]), LIFESPAN, *given)
        talk(
            Starlette(routes=[Route("/app", free)], middleware=[*heeding, Middleware(RateLimitMiddleware, limits=[])]),
            LIFESPAN,
            *given,
        )
        inner = RateLimit(Starlette(routes=[Route("/wrapped", free)]), "1/minute")
        talk(RateLimitMiddleware(inner, limits=[]), LIFESPAN, *given)
    assert [message.partition(", but")[0] for message in caplog.messages] == [
        "ratelimit_mw: /none/{item} is exempt",
        "ratelimit_mw: /none/x is exempt",
    ]


def test_a_route_registered_before_its_endpoints_limit_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def view(_: Request) -> Response:
        return Response()

    route = Route("/view/{item}", view)
    held = limit("1/minute")(view)  # its route was registered before
    app, alone = app_of(route, Route("/held", held), **recording()[1]), app_of(route, Route("/held", held))
    given = [{"type": f"lifespan.{name}"} for name in ("startup", "shutdown")]
    with caplog.at_level(logging.WARNING):
        talk(app, LIFESPAN, *given)
        assert statuses(alone, "/view/1", "/held", "/held") == [200, 200, 429]
    told = "ratelimit_mw: /view/{item} has no limit: its route was registered before `limit` wrapped "
    assert [message.partition("test_a_route")[0] for message in caplog.messages if "/view/" in message] == [told] * 2


def test_a_response_of_on_refused_keeps_its_repeated_headers() -> None:
    fields = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")]
    _, settings = recording(on_refused=lambda _, __: (429, fields, "no"))
    refused = answers(app_of(Route("/", limit("1/minute")(as_async)), **settings), "/", "/")[1]
    assert refused.field("set-cookie") == ["a=1", "b=2"]


@pytest.mark.parametrize("name", ["on_receive", "on_disconnect"])
def test_limit_on_a_method_for_websocket_messages_is_an_error(name: str) -> None:
    async def called(self: Any, websocket: WebSocket, data: Any) -> None: ...

    called.__name__ = name
    with pytest.raises(TypeError, match="is called for each message, and a limit is for the handshake"):
        limit("5/minute")(called)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_limit_on_a_staticmethod_or_classmethod_is_an_error(kind: Any) -> None:
    with pytest.raises(TypeError, match=f"got a {kind.__name__}; put the limit below it"):
        limit("5/minute")(kind(lambda request: request))
