"""Tests limits as FastAPI dependencies. tox also runs them with the last release before routes became a tree."""

import asyncio
import logging
from collections.abc import Iterator
from types import MappingProxyType
from typing import Annotated, Any

import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Body,
    Depends,
    FastAPI,
    HTTPException,
    Request,
    Response,
    WebSocket,
    WebSocketException,
)
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from msgspec import json
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from ratelimit_mw import ConfigError, MemoryStore, RateLimited
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware, exempt, limit, openapi_responses
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import HTTP, LIFESPAN, OFFERS_HTTP, WEBSOCKET, talk
from web.in_process import Call, answers, check_refusal, items, recording, statuses, taken

pytestmark = pytest.mark.usefixtures("at_first_and_settled")
IP = "{ip=192.0.2.1}:"
REFUSED = {"ratelimit", "ratelimit-policy", "retry-after", "cache-control"}


async def hello() -> str:
    return "hello"


def app_of(*dependencies: RateLimit, endpoint: Any = hello, **settings: Any) -> FastAPI:
    """Return an app with these dependencies on one route, and with the middleware if there are settings."""
    app = FastAPI()
    app.add_api_route("/", endpoint, dependencies=[Depends(one) for one in dependencies], methods=["GET", "HEAD"])
    app.add_api_route("/other", hello)
    if settings:
        app.add_middleware(RateLimitMiddleware, **settings)
    return app


# refusals


def plain() -> str:
    return "hello"


def with_a_response(response: Response) -> str:
    response.headers["X-Own"] = "1"
    return "hello"


async def its_own_response() -> Response:
    return JSONResponse("hello")


async def streaming() -> Response:
    return StreamingResponse(iter(['"', "hello", '"']))


ENDPOINTS = [hello, plain, with_a_response, its_own_response, streaming]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.__name__)
@pytest.mark.parametrize("outside", [True, False], ids=["inside of the middleware", "alone"])
def test_requests_over_the_limit_are_refused(endpoint: Any, *, outside: bool) -> None:
    store, settings = recording()
    one = RateLimit("2/minute", name="own", store=None if outside else store)
    app = app_of(one, endpoint=endpoint, **(settings if outside else {}))
    first, second, third, other = answers(app, "/", "/", "/", "/other")
    assert (first.status, second.status, other.status) == (200, 200, 200)
    assert first.body == b'"hello"'
    shown = outside or endpoint not in (its_own_response, streaming)  # otherwise FastAPI drops the fields
    assert [items(one) for one in (first, second, other)] == [
        [("own", {"r": left, "t": 60})] if shown and left is not None else [] for left in (1, 0, None)
    ]
    assert first.field("retry-after") == []
    check_refusal(third, [("own", 2, 0)], ["own"])
    assert [len(charges) for charges in taken(store)] == [1, 1, 1]


def test_refusals_without_middleware_equal_those_of_the_middleware() -> None:
    behind = FastAPI()
    behind.add_api_route("/", hello)
    behind.add_middleware(RateLimitMiddleware, limits=[{"limit": "1/minute", "name": "own"}], store=recording()[0])
    theirs, ours = (answers(app, "/", "/")[1] for app in (behind, app_of(RateLimit("1/minute", name="own"))))
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    assert sorted(ours.headers) == sorted(theirs.headers)


def test_a_refusal_runs_neither_the_endpoint_nor_its_background_tasks() -> None:
    done: list[str] = []

    async def endpoint(tasks: BackgroundTasks) -> str:
        done.append("called")
        tasks.add_task(done.append, "task")
        return "hello"

    assert statuses(app_of(RateLimit("1/minute"), endpoint=endpoint), "/", "/") == [200, 429]
    assert done == ["called", "task"]


def test_invalid_requests_are_charged() -> None:
    app = FastAPI()

    @app.get("/{item}", dependencies=[Depends(RateLimit("1/minute"))])
    async def item(item: int) -> int:
        return item

    assert statuses(app, "/x", "/x") == [422, 429]


def test_the_endpoint_can_read_the_verdict() -> None:
    async def endpoint(request: Request) -> int:
        left: int = request.state.ratelimit.verdict.remaining
        return left

    for settings in ({}, recording(limits="9/minute")[1]):
        assert answers(app_of(RateLimit("5/minute"), endpoint=endpoint, **settings), "/")[0].body == b"4"


@pytest.mark.promise(8)
def test_a_failing_store_causes_no_500_response() -> None:
    store, settings = recording()
    store.error = ConnectionError("down")
    denied = answers(app_of(RateLimit("1/minute", on_store_error="deny"), **settings), "/")[0]
    assert (denied.status, denied.field("retry-after")) == (503, ["1"])
    assert json.decode(denied.body)["type"].endswith("#temporary-reduced-capacity")
    assert statuses(app_of(RateLimit("1/minute"), **settings), "/", "/") == [200, 429]


@pytest.mark.promise(8)
def test_a_failing_store_is_called_once_for_all_dependencies() -> None:
    store, settings = recording(on_store_error="allow")
    store.error = ConnectionError("down")
    assert statuses(app_of(RateLimit("1/minute"), RateLimit("2/hour"), **settings), "/") == [200]
    assert [len(charges) for charges in taken(store)] == [2]


def test_requests_without_a_key_get_403_under_missing_key_deny() -> None:
    _, settings = recording(missing_key="deny")
    refused = answers(app_of(RateLimit("1/minute", key="header:x-key"), **settings), "/")[0]
    assert (refused.status, json.decode(refused.body)["type"]) == (403, "about:blank")


def test_a_refused_head_request_has_no_body() -> None:
    refused = answers(app_of(RateLimit("1/minute")), ("HEAD", "/"), ("HEAD", "/"))[1]
    assert (refused.status, refused.body) == (429, b"")


# several limits


def app_with_all(**settings: Any) -> FastAPI:
    """Return an app with limits on the app, a router, a route and its signature. Two limits are used twice."""
    whole, part = RateLimit("9/minute", name="whole"), RateLimit("8/minute", name="part")
    app = FastAPI(dependencies=[Depends(whole)])
    router = APIRouter(dependencies=[Depends(part), Depends(whole)])
    narrow = RateLimit("1/minute", name="narrow", key="all")

    @router.get("/items/{item}", dependencies=[Depends(part), Depends(narrow)])
    async def items(item: int, _: Annotated[None, Depends(RateLimit("7/minute", name="own"))]) -> int:
        return item

    outer = APIRouter()
    outer.include_router(router, prefix="/inner")
    app.include_router(outer, prefix="/outer")
    app.add_middleware(RateLimitMiddleware, **settings)
    return app


@pytest.mark.promise(1, 2)
def test_all_limits_of_a_route_are_decided_in_one_store_call() -> None:
    store, settings = recording()
    paths = ["/outer/inner/items/1", "/outer/inner/items/2"]
    first, second = answers(app_with_all(**settings), *paths)
    assert (first.status, second.status) == (200, 429)
    assert taken(store) == [[f"{IP}@whole 9", f"{IP}@part 8", "{all=all}:@narrow 1", f"{IP}@own 7"]] * 2
    whole = [("whole", {"r": 8, "t": 60}), ("part", {"r": 7, "t": 60}), ("own", {"r": 6, "t": 60})]
    assert items(first) == [whole[2], whole[0], whole[1]]  # most restrictive first; shared limits only in refusals
    assert items(second) == [("narrow", {"r": 0, "t": 60}), *whole]  # a refused request charges nothing


async def who(request: Request) -> None:
    request.state.who = request.headers["x-who"]


def by_who(request: Any) -> Any:
    return getattr(request.state, "who", None)


def test_limits_after_another_dependency_are_decided_after_it() -> None:
    store, settings = recording()
    app = FastAPI(
        dependencies=[Depends(RateLimit("9/minute", name="first")), Depends(RateLimit("8/minute", name="second"))]
    )
    later = [Depends(who), Depends(RateLimit("2/minute", key=by_who)), Depends(RateLimit("7/minute", name="last"))]
    app.add_api_route("/", hello, dependencies=later)
    app.add_middleware(RateLimitMiddleware, **settings)
    assert statuses(app, "/", "/", "/", headers={"x-who": "ada"}) == [200, 200, 429]
    assert statuses(app, "/", headers={"x-who": "bob"}) == [200]
    found = taken(store)
    assert found[::2] == [[f"{IP}@first 9", f"{IP}@second 8"]] * 4
    assert found[1] == found[3] == found[5]
    assert (found[1][0].count("ada"), found[7][0].count("bob")) == (1, 1)
    assert found[7][0] == found[1][0].replace("ada", "bob")
    assert [call[1] for call in found[1::2]] == [f"{IP}@last 7"] * 4


def test_a_repeated_limit_is_charged_once_per_request() -> None:
    store, settings = recording()
    one = RateLimit("9/minute", name="one")

    async def needs(_: Annotated[None, Depends(one, use_cache=False)]) -> None: ...

    app = FastAPI(dependencies=[Depends(one)])
    app.add_api_route("/", hello, dependencies=[Depends(needs), Depends(one, use_cache=False)])
    app.add_middleware(RateLimitMiddleware, **settings)
    assert statuses(app, "/") == [200]
    assert taken(store) == [[f"{IP}@one 9"]]


def test_a_dependency_does_not_repeat_the_charge_of_the_middleware() -> None:
    store, settings = recording(limits="9/minute")
    app = app_of(RateLimit("2/minute", name="own"), **settings)
    first, _, third = answers(app, "/", "/", "/")
    assert items(first) == [("own", {"r": 1, "t": 60}), ("default", {"r": 8, "t": 60})]
    check_refusal(third, [("own", 2, 0), ("default", 9, 6)], ["own"])
    assert taken(store) == [[f"{IP}default 9"], [f"{IP}@own 2"]] * 3


def test_each_store_is_called_once_per_request() -> None:
    store, settings = recording()
    own = RecordingStore(clock=Clock())
    shared = [RateLimit("9/minute", name=name) for name in ("one", "two")]
    apart = [RateLimit(quota, name=quota[0], store=own) for quota in ("2/minute", "8/minute")]
    app = app_of(shared[0], apart[0], shared[1], apart[1], **settings)
    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert taken(store) == [[f"{IP}@one 9", f"{IP}@two 9"]] * 3
    assert taken(own) == [[f"{IP}@2 2", f"{IP}@8 8"]] * 3


# names and routes


@pytest.mark.usefixtures("at_first_and_settled")
def test_the_route_key_is_the_full_path_template() -> None:
    own = RecordingStore(clock=Clock())
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute", name="own", key="route", store=own))])
    for path in ("/items/{item}", "/other"):
        app.add_api_route(path, hello)
    assert statuses(app, "/items/1", "/other", "/items/2") == [200, 200, 429]


@pytest.mark.promise(10)
def test_an_unnamed_limit_has_one_bucket_per_route() -> None:
    _, settings = recording()
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute"))])
    for path in ("/items/{item}", "/items", "/items/item/more", "/items_item_more", "/items/{a}/{b}"):
        app.add_api_route(path, hello)
    app.add_api_route("/items", hello, methods=["POST"])
    app.add_middleware(RateLimitMiddleware, **settings)
    calls: list[Call] = ["/items/1", "/items/2", "/items", ("POST", "/items"), "/items/item/more", "/items_item_more"]
    calls += ["/items/a/b", "/items/c/d"]
    assert statuses(app, *calls) == [200, 429, 200, 200, 200, 200, 200, 429]
    names = [name for name, _ in items(answers(app, "/items/3")[0])]
    assert names == ["GET_items_item"]


def test_limits_of_one_route_have_different_policy_names() -> None:
    _, settings = recording()
    refused = answers(app_of(RateLimit("9/minute"), RateLimit("1/minute; 8/minute"), **settings), "/", "/")[1]
    check_refusal(refused, [("GET-2", 1, 0), ("GET", 9, 8), ("GET-2-2", 8, 7)], ["GET-2"])


def test_a_named_limit_has_one_bucket_for_all_routes() -> None:
    app = FastAPI(dependencies=[Depends(RateLimit("2/minute", name="api"))])
    app.add_api_route("/a", hello)
    app.add_api_route("/b", hello)
    assert statuses(app, "/a", "/b", "/a") == [200, 200, 429]


def test_an_app_mounted_twice_has_one_bucket_per_mount() -> None:
    app, mounted = FastAPI(), app_of(RateLimit("1/minute"))
    app.mount("/a", mounted)
    app.mount("/b", mounted)
    assert statuses(app, "/a/", "/b/", "/a/", "/b/") == [200, 200, 429, 429]


# without a middleware


def test_limits_without_middleware_count_in_one_process_and_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    mounted = app_of(RateLimit("1/minute"))
    app = app_of(RateLimit("2/minute"), RateLimit("9/minute"))
    app.mount("/mounted", mounted)
    with caplog.at_level(logging.WARNING):
        assert statuses(app, "/", "/", "/", "/mounted/", "/mounted/") == [200, 200, 429, 200, 429]
    (message,) = caplog.messages
    assert message.startswith("ratelimit_mw: limits on endpoints count in this process alone; add RateLimitMiddleware")


def test_two_apps_do_not_share_counts() -> None:
    one = RateLimit("1/minute", name="one")
    first, second = app_of(one), app_of(one)
    assert [statuses(app, "/", "/") for app in (first, second)] == [[200, 429]] * 2


def test_header_fields_show_limits_before_and_after_another_dependency() -> None:
    store, _ = recording()
    app = FastAPI()
    dependencies: list[Any] = [
        RateLimit("9/minute", name="one", store=store),
        who,
        RateLimit("2/minute", name="two", store=store),
    ]
    app.add_api_route("/", hello, dependencies=[Depends(one) for one in dependencies])
    answer = answers(app, "/", headers={"x-who": "ada"})[0]
    assert items(answer) == [("two", {"r": 1, "t": 60}), ("one", {"r": 8, "t": 60})]


def test_limits_are_decided_separately_if_fastapi_hides_its_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratelimit_mw.fastapi.matched_route", lambda _: None)
    monkeypatch.setattr("ratelimit_mw.http.routes.matched_route", lambda _: None)
    store, settings = recording()
    app = app_of(RateLimit("9/minute", name="one"), RateLimit("1/minute", name="two"), **settings)
    assert statuses(app, "/", "/") == [200, 429]
    assert taken(store) == [[f"{IP}@one 9"], [f"{IP}@two 1"]] * 2


@pytest.mark.parametrize("handlers", [None, (MappingProxyType({}), MappingProxyType({}))], ids=["none", "frozen"])
def test_a_refused_direct_call_raises_an_http_or_websocket_exception(handlers: Any) -> None:
    one = RateLimit("1/minute", name="own")
    app = app_of()

    async def twice(kind: str) -> Exception:
        scope = {**(SOCKET if kind == "websocket" else HTTP), "app": app}
        if handlers:
            scope["starlette.exception_handlers"] = handlers
        connect: Any = WebSocket if kind == "websocket" else Request
        for _ in range(2):
            connection = connect(dict(scope), receive=None, send=None)
            try:
                await one(connection, Response())
            except (HTTPException, WebSocketException) as error:
                return error
        raise AssertionError

    refused: Any = asyncio.run(twice("http"))
    assert RateLimited in type(refused).__mro__
    assert (refused.status_code, refused.headers["Retry-After"], refused.verdict.limit) == (429, "60", 1)
    closed: Any = asyncio.run(twice("websocket"))
    assert closed.code == 1013


# custom responses to refusals


def test_an_app_handler_for_rate_limited_answers_refusals() -> None:
    app = app_of(RateLimit("1/minute"))

    @app.exception_handler(RateLimited)
    async def mine(_: Request, error: Any) -> Response:
        own = {name: error.headers[name] for name in ("Retry-After", "RateLimit")}
        return PlainTextResponse(f"{error.verdict.limit} {error.status_code} {error.detail}", 420, own)

    refused = answers(app, "/", "/")[1]
    assert (refused.status, refused.body) == (420, b"1 429 Try again in 60 seconds.")
    assert refused.field("retry-after") == ["60"]


@pytest.mark.parametrize("key", [429, HTTPException, StarletteHTTPException, RateLimited], ids=str)
def test_app_handlers_for_the_status_or_exception_class_answer_refusals(key: Any) -> None:
    async def mine(_: Request, error: Any) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    app = app_of(RateLimit("1/minute", name="own"), **recording()[1])
    app.add_exception_handler(key, mine)
    refused = answers(app, "/", "/")[1]
    assert (refused.status, json.decode(refused.body)) == (429, {"error": "Try again in 60 seconds."})
    assert dict(refused.headers).keys() == REFUSED | {"content-type", "content-length"}
    assert len(refused.headers) == len(REFUSED) + 2
    assert items(refused) == [("own", {"r": 0, "t": 60})]


def test_the_default_handler_of_fastapi_does_not_answer_refusals() -> None:
    app = app_of(RateLimit("1/minute", name="own"), **recording()[1])
    app.add_exception_handler(StarletteHTTPException, http_exception_handler)  # type: ignore[arg-type]  # FastAPI's own
    check_refusal(answers(app, "/", "/")[1], [("own", 1, 0)], ["own"])
    app.add_api_route("/lost", lambda: (_ for _ in ()).throw(HTTPException(404, "lost")), response_model=None)
    assert json.decode(answers(app, "/lost")[0].body) == {"detail": "lost"}


async def by_an_app(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("by an app", 420)(scope, receive, send)


@pytest.mark.parametrize("generic", [True, False], ids=["and a handler for all errors", "alone"])
@pytest.mark.parametrize(
    ("on_refused", "status", "body"),
    [(lambda _, verdict: (418, {}, f"no: {verdict.limit}"), 418, b"no: 1"), (by_an_app, 420, b"by an app")],
    ids=["plain", "asgi"],
)
def test_on_refused_answers_refusals(on_refused: Any, status: int, body: bytes, *, generic: bool) -> None:
    app = app_of(RateLimit("1/minute", name="own"), **recording(on_refused=on_refused)[1])
    if generic:
        app.add_exception_handler(HTTPException, lambda _, __: PlainTextResponse("generic", 400))
    refused = answers(app, "/", "/")[1]
    assert (refused.status, refused.body) == (status, body)
    assert items(refused) == [("own", {"r": 0, "t": 60})]


def test_on_refused_answers_for_dependencies_and_the_middleware() -> None:
    settings = {"limits": "2/minute", "key": "ip", "on_refused": lambda _, verdict: (418, {}, f"no: {verdict.limit}")}
    app = app_of(RateLimit("1/minute"), **recording(**settings)[1])
    assert [one.body for one in answers(app, "/", "/", "/")] == [b'"hello"', b"no: 1", b"no: 2"]


def test_an_app_handler_answers_only_for_dependencies() -> None:
    app = app_of(RateLimit("1/minute"), **recording(limits="2/minute", key="ip")[1])
    app.add_exception_handler(RateLimited, lambda _, __: PlainTextResponse("by the app", 418))
    _, by_dependency, by_middleware = answers(app, "/", "/", "/")
    assert (by_dependency.status, by_dependency.body) == (418, b"by the app")
    check_refusal(by_middleware, [("default", 2, 0)], ["default"])


# two steps, and one


@limit("3 per 10 seconds")
async def decorated(request: Request) -> str:
    return "hello"


@pytest.mark.promise(2)
@pytest.mark.parametrize(
    "app_with",
    [
        lambda settings: app_of(RateLimit("3 per 10 seconds"), **settings),
        lambda settings: app_of(endpoint=decorated, **settings),
    ],
    ids=["dependency", "decorator"],
)
def test_a_refusal_by_an_endpoint_has_used_the_quota_of_the_middleware(app_with: Any) -> None:
    app = app_with(recording(limits="100/minute", key="ip")[1])
    assert statuses(app, *["/"] * 100) == [200] * 3 + [429] * 97
    assert statuses(app, "/other") == [429]


@pytest.mark.promise(2)
def test_a_refusal_by_a_rule_for_the_path_uses_no_quota() -> None:
    rule = {"path": "/", "limits": "3 per 10 seconds", "final": False}
    app = app_of(**recording(limits="100/minute", key="ip", rules=[rule])[1])
    assert statuses(app, *["/"] * 100) == [200] * 3 + [429] * 97
    assert statuses(app, *["/other"] * 98) == [200] * 97 + [429]


# requests that FastAPI refuses with 422


class Item(BaseModel):
    count: int


@pytest.mark.parametrize(
    ("path", "body", "charged"),
    [
        ("/1", b"{", False),
        ("/1", b'{"count": "x"}', True),
        ("/1", b"", True),
        ("/x", b'{"count": 1}', True),
    ],
    ids=["no JSON", "a field of another type", "no body", "a parameter of another type"],
)
def test_a_422_charges_the_endpoint_unless_the_body_is_no_json(path: str, body: bytes, *, charged: bool) -> None:
    store, settings = recording(limits="9/minute", key="ip")
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, **settings)

    @app.post("/{number}", dependencies=[Depends(RateLimit("1/minute", name="own"))])
    async def post(number: int, item: Item) -> int:
        return number + item.count

    call, options = ("POST", path), {"content": body, "headers": {"content-type": "application/json"}}
    assert statuses(app, call, call, **options) == [422, 429 if charged else 422]
    assert taken(store) == [[f"{IP}default 9"], [f"{IP}@own 1"]][: 1 + charged] * 2


def test_yield_dependencies_see_the_refusal_and_are_closed() -> None:
    seen: list[str] = []

    def session() -> Iterator[str]:
        try:
            yield "session"
        except RateLimited as error:
            seen.append(f"refused by {error.verdict.limit}")
            raise
        finally:
            seen.append("closed")

    app = FastAPI()
    app.add_api_route("/", hello, dependencies=[Depends(session), Depends(RateLimit("1/minute", name="own"))])
    assert statuses(app, "/", "/") == [200, 429]
    assert seen == ["closed", "refused by 1", "closed"]


# overrides, exemptions, errors, the schema


def test_an_overridden_limit_is_not_charged() -> None:
    store, settings = recording()
    one, two, three = (RateLimit(f"{quota}/minute", name=f"of-{quota}") for quota in (1, 2, 3))

    async def needs(_: Annotated[None, Depends(three)]) -> None: ...

    app = FastAPI(dependencies=[Depends(one), Depends(two), Depends(needs)])
    app.add_api_route("/", hello)
    app.add_middleware(RateLimitMiddleware, **settings)
    app.dependency_overrides = {one: lambda: None, needs: lambda: None}
    assert statuses(app, "/", "/", "/") == [200, 200, 429]
    assert taken(store) == [[f"{IP}@of-2 2"]] * 3
    app.dependency_overrides = {one: RateLimit("9/minute", name="instead")}
    statuses(app, "/")
    assert taken(store)[3:] == [[f"{IP}@instead 9"], [f"{IP}@of-2 2", f"{IP}@of-3 3"]]
    app.dependency_overrides = {}
    statuses(app, "/")
    assert taken(store)[5:] == [[f"{IP}@of-1 1", f"{IP}@of-2 2", f"{IP}@of-3 3"]]


def test_exempt_endpoints_are_not_limited() -> None:
    app = FastAPI(dependencies=[Depends(RateLimit("1/minute", name="all"))])
    app.get("/above")(exempt(hello_again))

    @exempt
    @app.get("/below")
    async def below() -> str:
        return "hello"

    app.add_api_route("/taken", hello)
    assert statuses(app, "/above", "/above", "/below", "/below", "/taken", "/taken") == [200] * 5 + [429]


def test_routes_and_exemptions_added_after_the_first_request_apply() -> None:
    store, settings = recording()
    app = FastAPI(dependencies=[Depends(RateLimit("9/minute", name="all"))])

    async def later() -> str:
        return "hello"

    app.add_api_route("/one", later)
    app.add_middleware(RateLimitMiddleware, **settings)
    statuses(app, "/one")
    router = APIRouter(dependencies=[Depends(RateLimit("8/minute", key="route"))])
    router.add_api_route("/{item}", hello)
    app.include_router(router, prefix="/two")
    app.include_router(router, prefix="/three")
    assert statuses(app, "/two/x", "/three/x", "/one") == [200] * 3
    routes = [f"{{route=/{name}/%7Bitem%7D}}:@GET_{name}_item" for name in ("two", "three")]
    assert [call[1].partition("-")[0] for call in taken(store)[1:3]] == routes
    exempt(later)
    assert statuses(app, "/one") == [200]
    assert taken(store)[3:] == [[f"{IP}@all 9"]]


def test_an_exemption_without_effect_is_logged_at_startup(caplog: pytest.LogCaptureFixture) -> None:
    held, free = APIRouter(dependencies=[Depends(RateLimit("1/minute"))]), APIRouter()
    held.add_api_route("/held", exempt(hello_again))
    free.add_api_route("/free", hello_again)
    app = FastAPI()
    app.include_router(held, prefix="/in")
    app.include_router(free, prefix="/in")
    app.add_middleware(RateLimitMiddleware, limits=[])
    given = [{"type": f"lifespan.{name}"} for name in ("startup", "shutdown")]
    with caplog.at_level(logging.WARNING):
        talk(app, LIFESPAN, *given)
    assert [message.partition(", but")[0] for message in caplog.messages] == ["ratelimit_mw: /in/free is exempt"]


async def hello_again() -> str:
    return "hello"


def test_the_limit_decorator_applies_to_an_endpoint_with_a_request() -> None:
    _, settings = recording()
    app = FastAPI()

    @app.get("/{item}")
    @limit("2/minute", name="own")
    def item(item: int, it: Request) -> dict[str, int]:
        return {"item": item}

    app.add_middleware(RateLimitMiddleware, **settings)
    first, _, last = answers(app, "/1", "/2", "/3")
    assert (first.body, items(first)) == (b'{"item":1}', [("own", {"r": 1, "t": 60})])
    check_refusal(last, [("own", 2, 0)], ["own"])
    assert app.openapi()["paths"]["/{item}"]["get"]["parameters"][0]["name"] == "item"


def test_limit_on_an_endpoint_without_a_request_suggests_a_dependency() -> None:
    with pytest.raises(TypeError, match=r"hello has no parameter for the request, .*Depends\(RateLimit\(\.\.\.\)\)"):
        limit("1/minute")(hello)


@pytest.mark.parametrize(
    ("limits", "options", "message"),
    [
        ("5/minut", {}, "unknown period 'minut', did you mean 'minute'"),
        ("5/minute", {"kye": "ip"}, "unknown setting `kye`: did you mean `key`"),
        ("5/minute", {"store": 5}, "store: got int, expected a URL or an AsyncStore"),
    ],
)
def test_invalid_options_raise_config_errors_at_construction(
    limits: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as told:
        RateLimit(limits, **options)
    assert message in str(told.value)


def test_the_openapi_schema_describes_refusals() -> None:
    app = FastAPI(responses=RateLimit.responses, dependencies=[Depends(RateLimit("1/minute"))])

    @app.post("/{item}")
    async def item(item: int, body: Annotated[dict[str, int], Body()]) -> int:
        return item

    operation = app.openapi()["paths"]["/{item}"]["post"]
    assert [one["name"] for one in operation["parameters"]] == ["item"]
    assert set(operation["responses"]) == {"200", "422", "429", "503"}
    refusal = operation["responses"]["429"]
    assert list(refusal["content"]) == ["application/problem+json"]
    assert list(refusal["headers"]) == ["Retry-After", "RateLimit", "RateLimit-Policy"]
    properties = refusal["content"]["application/problem+json"]["schema"]["properties"]
    assert list(properties) == ["type", "title", "status", "detail", "violated-policies"]
    refused = answers(app, ("POST", "/1"), ("POST", "/1"), json={})[1]
    assert json.decode(refused.body).keys() == properties.keys()
    assert all(refused.field(name.lower()) for name in refusal["headers"])


@pytest.mark.parametrize("style", ["ietf", "legacy", "both", "draft-6", "draft-7", "none"])
def test_the_openapi_schema_lists_the_headers_of_each_style(style: Any) -> None:
    app = FastAPI(responses=openapi_responses(style))
    app.add_api_route("/", lambda: "hello")
    app.add_middleware(RateLimitMiddleware, limits="1/minute", headers=style)
    described = app.openapi()["paths"]["/"]["get"]["responses"]
    sent = {name for name, _ in answers(app, ("GET", "/"), ("GET", "/"))[1].headers if "ratelimit" in name}
    assert {name.lower() for name in described["429"]["headers"]} == {"retry-after", *sent}
    assert list(described["503"]["headers"]) == ["Retry-After"]


# websockets

CONNECT = {"type": "websocket.connect"}
SOCKET = {**WEBSOCKET, "query_string": b""}


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


@pytest.mark.parametrize("outside", [True, False], ids=["inside of the middleware", "alone"])
@pytest.mark.parametrize("included", [True, False], ids=["in a router", "on the app"])
def test_refused_websockets_are_closed_or_answered_with_429(*, outside: bool, included: bool) -> None:
    store, settings = recording()
    one, two = (RateLimit("2/minute", name=name, store=None if outside else store) for name in ("one", "two"))
    app, router = FastAPI(dependencies=[Depends(one)]), APIRouter()
    (router if included else app).add_api_websocket_route("/", socket, dependencies=[Depends(two)])
    if included:
        app.include_router(router, prefix="/part")
    if outside:
        app.add_middleware(RateLimitMiddleware, **settings)
    path = {"path": "/part/" if included else "/"}
    for _ in range(2):
        assert talk(app, SOCKET, CONNECT, **path).types == ["websocket.accept", "websocket.close"]
    refused = {"type": "websocket.close", "code": 1013, "reason": "Too Many Requests"}
    assert talk(app, SOCKET, CONNECT, **path).sent == [refused]
    start, body = talk(app, SOCKET, CONNECT, **path, **OFFERS_HTTP).sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert body["type"] == "websocket.http.response.body"
    assert [[charge.key.partition("@")[2] for charge in call] for _, call in store.calls] == [["one", "two"]] * 4


def test_a_refused_websocket_is_closed_if_already_accepted() -> None:
    async def accepting(websocket: WebSocket) -> None:
        await websocket.accept()

    app = FastAPI()
    dependencies = [Depends(accepting), Depends(RateLimit("1/minute"))]
    app.add_api_websocket_route("/", closing, dependencies=dependencies)
    assert talk(app, SOCKET, CONNECT).sent[1]["code"] == 1000
    accepted, closed = talk(app, SOCKET, CONNECT, **OFFERS_HTTP).sent
    assert (accepted["type"], closed["code"], closed["reason"]) == ("websocket.accept", 1013, "Too Many Requests")


async def closing(websocket: WebSocket) -> None:
    await websocket.close()


def test_header_fields_of_another_dependency_are_kept() -> None:
    app = FastAPI()

    def theirs(response: Response) -> None:
        response.headers["X-Own"] = "1"

    app.add_api_route(
        "/", hello, dependencies=[Depends(theirs), Depends(RateLimit("2/minute", store=MemoryStore(clock=Clock())))]
    )
    fields = [name for name, _ in talk(app, {**HTTP, "query_string": b""}).sent[0]["headers"]]
    assert fields == [b"content-length", b"content-type", b"x-own", b"ratelimit-policy", b"ratelimit"]
