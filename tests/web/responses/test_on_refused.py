"""Tests on_refused: its responses to refusals, and the header fields that the middleware still adds."""

import asyncio
import gc
import re
from collections.abc import Iterable, Mapping
from typing import Any

import http_sf
import pytest
from fastapi import FastAPI
from flask import Flask
from msgspec import json
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route
from werkzeug.wrappers import Response as WerkzeugResponse

from ratelimit_mw import ConfigError, MemoryStore, Verdict, asgi, wsgi
from ratelimit_mw.core import log as notices
from ratelimit_mw.http import on_refused, response
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import HTTP, OFFERS_HTTP, WEBSOCKET, App200, talk
from web.faces import FACES
from web.scenario import Answer, Face, Step
from web.wsgi_talk import Server, hello

ASYNC = {name: FACES[name] for name in ("starlette", "fastapi")}
SYNC = {name: FACES[name] for name in ("flask", "wsgi")}
APPS = [*ASYNC, *SYNC]  # not Django, where on_refused cannot be an app: see test_django.py
JOINED = ("django", "django async")  # Django joins repeated headers in one line
OWN = [
    ("cache-control", "no-store"),
    ("retry-after", "60"),
    ("ratelimit-policy", '"default";q=1;w=60'),
    ("ratelimit", '"default";r=0;t=60'),
]
TEXT = ("content-type", "text/plain; charset=utf-8")
LIMITED: dict[str, Any] = {"limits": "1/minute"}
REFUSALS = {
    429: LIMITED,
    403: {"limits": "1/minute", "blocklist": ["192.0.2.1"]},
    503: {"limits": "1/minute", "on_store_error": "deny"},
}


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_quiet_until", {})


def refused(face: Face, step: Step = Step(), **settings: Any) -> Answer:  # noqa: B008  # a Step is frozen
    """Return the response to a request over its limit, of a blocked client, or whose store fails."""
    store = RecordingStore(clock=Clock())
    if settings.get("on_store_error") == "deny":
        store.error = ConnectionError("down")
    send = face({"store": store, **LIMITED, **settings})
    if settings.get("on_store_error") != "deny" and "blocklist" not in settings:
        assert send(Step()).status == 200
    return send(step)


def fields(answer: Answer) -> list[tuple[str, str]]:
    return sorted(answer.headers)


def problem(answer: Answer, status: int) -> None:
    """Assert that the response is the default one of the middleware."""
    assert answer.status == status
    assert answer.field("content-type") == ["application/problem+json"]
    assert json.decode(answer.body)["status"] == status
    assert answer.field("content-length") == [str(len(answer.body))]


def teapot(request: Request, verdict: Verdict) -> Any:
    return 418, {"X-Rule": verdict.rule or "", "X-Client": request.client or ""}, "no tea"


async def later(request: Request, verdict: Verdict) -> Any:
    await asyncio.sleep(0)
    return teapot(request, verdict)


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("busy", 420, headers={"X-Seen": scope["path"]})(scope, receive, send)


def wsgi_app(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("420 Busy", [("Content-Type", TEXT[1]), ("X-Seen", environ["PATH_INFO"])])
    return [b"busy"]


async def asks(request: StarletteRequest) -> PlainTextResponse:
    return PlainTextResponse(f"busy: {request.url.path}", 420)


def flask_app() -> Flask:
    app = Flask(__name__, static_folder=None)

    @app.route("/<path:rest>")
    def busy(rest: str) -> tuple[str, int]:
        return f"busy: /{rest}", 420

    return app


def fastapi_app() -> FastAPI:
    app = FastAPI()
    app.add_api_route("/{rest:path}", lambda rest: JSONResponse(f"busy: {rest}", 420))
    return app


# callables


@pytest.mark.parametrize("face", FACES)
def test_a_callable_sets_the_response_and_the_middleware_adds_its_fields(face: str) -> None:
    answer = refused(FACES[face], on_refused=teapot)
    assert (answer.status, answer.body) == (418, b"no tea")
    own = [TEXT, ("content-length", "6"), ("x-client", "192.0.2.1"), ("x-rule", "default")]
    assert fields(answer) == sorted([*own, *OWN])


def busy(request: Request, verdict: Verdict) -> tuple[int, dict[str, str], str]:
    return 420, {}, f"{request.path} {verdict.rule}"


@pytest.mark.parametrize("face", FACES)
def test_a_rule_has_a_callable_of_its_own_and_others_the_global_one(face: str) -> None:
    store = RecordingStore(clock=Clock())
    rules = [{"path": "/a", "limits": "1/minute", "on_refused": teapot}, {"path": "/b", "limits": "1/minute"}]
    send = FACES[face]({"limits": [], "rules": rules, "store": store, "on_refused": busy})
    assert [send(Step(path=path)).status for path in ("/a", "/b", "/a", "/b")] == [200, 200, 418, 420]


def test_a_wrong_callable_of_a_rule_is_named_with_its_place() -> None:
    async def later(request: Request, verdict: Verdict) -> None: ...

    rules = [{"name": "login", "path": "/a", "limits": "1/minute", "on_refused": later}]
    with pytest.raises(ConfigError, match=r"^rules\[0\] \(login\)\.on_refused: .*later"):
        wsgi.RateLimitMiddleware(hello, limits="9/minute", rules=rules)


@pytest.mark.parametrize("face", FACES)
def test_a_callable_receives_the_client_behind_the_proxy(face: str) -> None:
    step = Step(client="10.0.0.1", headers={"X-Forwarded-For": "192.0.2.1"})
    answer = refused(FACES[face], step, trusted_proxies=["10.0.0.0/8"], on_refused=teapot)
    assert (answer.status, answer.field("x-client")) == (418, ["192.0.2.1"])


def sends_200(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b"slow"]


@pytest.mark.parametrize(
    ("face", "handler"),
    [
        *((face, lambda _, __: (200, {}, "slow")) for face in FACES),
        *((face, JSONResponse("slow")) for face in ASYNC),
        *((face, sends_200) for face in SYNC),
    ],
)
def test_a_refusal_with_a_2xx_is_logged_once(face: str, handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    send = FACES[face]({"store": RecordingStore(clock=Clock()), **LIMITED, "on_refused": handler})
    assert [send(Step()).status for _ in range(3)] == [200] * 3
    (logged,) = [record.getMessage() for record in caplog.records if "on_refused" in record.getMessage()]
    assert logged.endswith(
        ": answered a refused request with 200, which looks like an admission; answer with a status such as 429"
    )


@pytest.mark.parametrize("status", [199, 300, 302, 429])
def test_a_refusal_with_another_status_is_not_logged(status: int, caplog: pytest.LogCaptureFixture) -> None:
    on_refused.warn_of_success(teapot, status)
    assert caplog.messages == []


@pytest.mark.parametrize("face", ASYNC)
def test_asgi_accepts_an_async_callable(face: str) -> None:
    answer = refused(ASYNC[face], on_refused=later)
    assert (answer.status, answer.body) == (418, b"no tea")
    assert answer.field("retry-after") == ["60"]


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("face", FACES)
def test_a_callable_responds_to_each_kind_of_refusal(face: str, status: int) -> None:
    seen: list[tuple[bool, str | None, str]] = []

    def kept(_: Request, verdict: Verdict) -> Any:
        seen.append((verdict.allowed, verdict.rule, verdict.source))
        return status, None, b""

    answer = refused(FACES[face], on_refused=kept, **REFUSALS[status])
    assert (answer.status, answer.body) == (status, b"")
    rule, source = {403: "blocklist"}.get(status, "default"), {503: "denied_on_error"}.get(status, "store")
    assert seen == [(False, rule, source)]
    assert answer.field("cache-control") == ["no-store"]
    assert answer.field("retry-after") == {429: ["60"], 403: [], 503: ["1"]}[status]
    assert len(answer.field("ratelimit")) == (status == 429)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"Retry-After": "7"}, ("retry-after", ["7"])),
        ({"retry-after": "7"}, ("retry-after", ["7"])),
        ({"RETRY-AFTER": "Mon, 05 Aug 2019 09:27:05 GMT"}, ("retry-after", ["Mon, 05 Aug 2019 09:27:05 GMT"])),
        ({"Cache-Control": "private"}, ("cache-control", ["private"])),
        ({"Content-Type": "text/html"}, ("content-type", ["text/html"])),
        ({"Content-Length": "9999"}, ("content-length", ["2"])),
        ([("X-A", "1"), ("X-A", "2")], ("x-a", ["1", "2"])),
        ((["X-A", "1"],), ("x-a", ["1"])),
        ({"X-A": "k\xe4se"}, ("x-a", ["k\xe4se"])),
        ({"X-A": ""}, ("x-a", [""])),
        (None, ("retry-after", ["60"])),
        ({}, ("cache-control", ["no-store"])),
    ],
)
def test_header_fields_of_a_callable_are_kept(face: str, given: Any, kept: tuple[str, list[str]]) -> None:
    answer = refused(FACES[face], on_refused=lambda _, __: (429, given, "no"))
    assert (answer.status, answer.body) == (429, b"no")
    assert answer.field(kept[0]) == ([", ".join(kept[1])] if face in JOINED else kept[1])
    once = [name for name in ("retry-after", "cache-control", "content-type", "content-length") if name != kept[0]]
    assert [len(answer.field(name)) for name in once] == [1] * len(once)


@pytest.mark.parametrize("face", FACES)
def test_the_ratelimit_field_of_a_callable_replaces_the_default_one(face: str) -> None:
    answer = refused(FACES[face], on_refused=lambda _, __: (429, {"RateLimit": '"own";r=0;t=5'}, ""))
    assert parsed(answer, "ratelimit") == [("own", {"r": 0, "t": 5})]


def parsed(answer: Answer, name: str) -> list[Any]:
    found: Any = http_sf.parse(", ".join(answer.field(name)).encode("ascii"), tltype="list")
    return list(found)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("body", ["caf\xe9 \u6771", b"\x00\xff", ""])
def test_a_callable_may_return_a_body_of_text_or_bytes(face: str, body: str | bytes) -> None:
    answer = refused(FACES[face], on_refused=lambda _, __: (429, {}, body))
    content = body.encode() if isinstance(body, str) else body
    assert answer.body == content
    assert answer.field("content-length") == [str(len(content))]


@pytest.mark.parametrize("face", FACES)
def test_a_refused_head_request_gets_the_content_length_and_no_body(face: str) -> None:
    answer = refused(FACES[face], Step(method="HEAD"), on_refused=teapot)
    assert (answer.status, answer.body) == (418, b"")
    assert answer.field("content-length") == ["6"]


def explodes(request: Request, verdict: Verdict) -> Any:
    raise RuntimeError(request.path)


NONSENSE: dict[str, Any] = {
    "nothing": None,
    "a number": 429,
    "a text": "429",
    "two": (429, {}),
    "four": (429, {}, "", 1),
    "a status as text": ("429", {}, ""),
    "a status as bool": (True, {}, ""),
    "a status that is not final": (101, {}, ""),
    "a status of no kind": (600, {}, ""),
    "a status below all": (0, {}, ""),
    "a body that is a number": (429, {}, 5),
    "a body that is a list": (429, {}, [b"x"]),
    "a body of half a letter": (429, {}, "\ud800"),
    "a header with a line feed": (429, {"X-A": "1\r\nSet-Cookie: a=b"}, ""),
    "a name with a line feed": (429, {"X-A\n": "1"}, ""),
    "a header with NUL": (429, {"X-A": "\0"}, ""),
    "a header of no latin-1": (429, {"X-A": "\u6771"}, ""),
    "a header that is a number": (429, {"X-A": 5}, ""),
    "a name that is bytes": (429, {b"X-A": "5"}, ""),
    "a name of other letters": (429, {"X-\xc4": "5"}, ""),
    "an empty name": (429, {"": "5"}, ""),
    "a name with a space": (429, {"X A": "5"}, ""),
    "a name with a colon": (429, {"X-A:": "5"}, ""),
    "a body of a status that has none": (204, {}, "x"),
    "a body of what is not modified": (304, {}, b"x"),
    "a header of the connection": (429, {"Transfer-Encoding": "chunked"}, ""),
    "another header of the connection": (429, {"connection": "close"}, ""),
    "headers that are a text": (429, "X-A: 1", ""),
    "headers that are triples": (429, [("X-A", "1", "2")], ""),
    "a response of Starlette": PlainTextResponse("no"),
}


@pytest.mark.promise(8)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("answer", NONSENSE)
def test_an_invalid_return_value_causes_the_default_response(
    face: str, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    on_refused = lambda _, __: NONSENSE[answer]  # noqa: E731  # the message contains its location
    got = refused(FACES[face], on_refused=on_refused)
    problem(got, 429)
    assert fields(got) == sorted([*OWN, *[pair for pair in got.headers if pair[0].startswith("content-")]])
    place = f"test_on_refused.py:{on_refused.__code__.co_firstlineno}:32"
    name = f"test_an_invalid_return_value_causes_the_default_response.<locals>.<lambda> at {place}"
    (said,) = caplog.messages
    assert said.startswith(f"ratelimit_mw: on_refused {name}: returned no valid response, the default one is sent: ")


OF_ANOTHER_KIND = {
    "text": ("no", "str"),
    "a table": ({"status": 429}, "dict"),
    "nothing": (None, "NoneType"),
    "a response of Starlette": (PlainTextResponse("no"), "PlainTextResponse"),
    "a response of Flask": (WerkzeugResponse("no"), "Response"),
    "two values": ((429, "no"), "2 values"),
}


@pytest.mark.promise(8)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("answer", OF_ANOTHER_KIND)
def test_the_log_describes_an_invalid_return_value_of_a_callable(
    face: str, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    value, name = OF_ANOTHER_KIND[answer]
    problem(refused(FACES[face], on_refused=lambda _, __: value), 429)
    (said,) = caplog.messages
    assert said.partition("the default one is sent: ")[2] == (
        f"got {name}, expected status, headers and body, such as (429, {{}}, 'text')"
    )


def test_the_error_locates_a_callable_with_wrong_parameters() -> None:
    on_refused: Any = lambda request: (429, {}, "")  # noqa: E731, ARG005  # the message contains its location
    with pytest.raises(ConfigError) as caught:
        asgi.RateLimitMiddleware(App200(), limits="1/minute", on_refused=on_refused)
    name = "test_the_error_locates_a_callable_with_wrong_parameters.<locals>.<lambda> at test_on_refused.py"
    text = re.sub(r"py:\d+:\d+", "py", str(caught.value))
    assert text == (
        f"on_refused: got {name}, which takes (request), expected an ASGI app, a WSGI app (environ, start_response), "
        "or a callable (request, verdict) that returns status, headers and body"
    )


OF_THEIRS = {
    "all": {"RateLimit": "x", "ratelimit-policy": "y", "RETRY-AFTER": "7", "Cache-Control": "no-cache"},
    "RateLimit": {"RateLimit": "x"},
    "RateLimit-Policy": {"RateLimit-Policy": "y"},
}


def expected_of(theirs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the given fields and the default ones that they leave. Each given RateLimit field replaces both."""
    lower = {name.lower(): value for name, value in theirs.items()}
    return sorted([*lower.items(), *[pair for pair in OWN if pair[0] not in lower and "ratelimit" not in pair[0]]])


@pytest.mark.parametrize("which", OF_THEIRS)
@pytest.mark.parametrize("face", FACES)
def test_header_fields_of_a_callable_replace_the_default_ones(face: str, which: str) -> None:
    answer = refused(FACES[face], on_refused=lambda _, __: (429, OF_THEIRS[which], None))
    own = [TEXT, ("content-length", "0")]
    assert fields(answer) == sorted([*own, *expected_of(OF_THEIRS[which])])


def test_an_outer_middleware_adds_no_ratelimit_field_to_an_inner_callables() -> None:
    app = asgi.RateLimitMiddleware(
        App200(), limits="1/minute", on_refused=lambda _, __: (429, {"RateLimit": "x"}, None)
    )
    for headers in ("ietf", "both"):
        outer = asgi.RateLimitMiddleware(app, limits="9/minute", headers=headers)
        talk(outer, HTTP)
        names = [name for name, _ in talk(outer, HTTP).sent[0]["headers"]]
        assert [name for name in names if name.startswith(b"ratelimit")] == [b"ratelimit"]


@pytest.mark.parametrize("which", OF_THEIRS)
@pytest.mark.parametrize("face", APPS)
def test_header_fields_of_an_app_replace_the_default_ones(face: str, which: str) -> None:
    def by_wsgi(_: Any, start_response: Any) -> Any:
        start_response("429 Slow", list(OF_THEIRS[which].items()))
        return [b""]

    of_asgi = StarletteResponse(None, 429, OF_THEIRS[which])
    answer = refused(FACES[face], on_refused=of_asgi if face in ASYNC else by_wsgi)
    got = [pair for pair in fields(answer) if pair[0] not in ("content-length", "content-type")]
    assert got == expected_of(OF_THEIRS[which])


@pytest.mark.promise(8)
@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("face", FACES)
def test_a_callable_that_raises_causes_the_default_response(
    face: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    problem(refused(FACES[face], on_refused=explodes, **REFUSALS[status]), status)
    assert "ratelimit_mw: on_refused explodes: raised an error, the default response is sent" in caplog.messages


@pytest.mark.parametrize("face", SYNC)
def test_wsgi_rejects_an_async_callable(face: str) -> None:
    with pytest.raises(ConfigError, match="on_refused: got later, "):
        SYNC[face]({**LIMITED, "on_refused": later})


@pytest.mark.parametrize("face", SYNC)
def test_a_coroutine_under_wsgi_causes_the_default_response_and_no_warning(
    face: str, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices.logger, "disabled", True)  # log records would keep the coroutine alive
    problem(refused(SYNC[face], on_refused=lambda request, verdict: later(request, verdict)), 429)  # noqa: PLW0108
    gc.collect()
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []


# apps


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("face", ASYNC)
def test_an_asgi_app_responds_and_the_middleware_adds_its_fields(face: str, status: int) -> None:
    answer = refused(ASYNC[face], Step(path="/x"), on_refused=asgi_app, **REFUSALS[status])
    assert (answer.status, answer.body) == (420, b"busy")
    own = [TEXT, ("content-length", "4"), ("x-seen", "/x")]
    ours = {429: OWN, 403: OWN[:1], 503: [*OWN[:1], ("retry-after", "1")]}[status]
    assert fields(answer) == sorted([*own, *ours])


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("face", SYNC)
def test_a_wsgi_app_responds_and_the_middleware_adds_its_fields(face: str, status: int) -> None:
    answer = refused(SYNC[face], Step(path="/x"), on_refused=wsgi_app, **REFUSALS[status])
    assert (answer.status, answer.body) == (420, b"busy")
    ours = {429: OWN, 403: OWN[:1], 503: [*OWN[:1], ("retry-after", "1")]}[status]
    assert fields(answer) == sorted([TEXT, ("x-seen", "/x"), *ours])


@pytest.mark.parametrize(
    ("app", "body"),
    [
        (Starlette(routes=[Route("/{rest:path}", asks)]), b"busy: /x"),
        (fastapi_app(), b'"busy: x"'),
        (PlainTextResponse("busy", 420), b"busy"),
    ],
    ids=["starlette", "fastapi", "a response of Starlette"],
)
@pytest.mark.parametrize("face", ASYNC)
def test_an_asgi_app_of_a_framework_can_respond(face: str, app: Any, body: bytes) -> None:
    answer = refused(ASYNC[face], Step(path="/x"), on_refused=app)
    assert (answer.status, answer.body, answer.field("retry-after")) == (420, body, ["60"])


@pytest.mark.parametrize(
    ("app", "body"),
    [(flask_app(), b"busy: /x"), (WerkzeugResponse("busy", 420), b"busy")],
    ids=["flask", "a response of Werkzeug"],
)
@pytest.mark.parametrize("face", SYNC)
def test_a_wsgi_app_of_a_framework_can_respond(face: str, app: Any, body: bytes) -> None:
    answer = refused(SYNC[face], Step(path="/x"), on_refused=app)
    assert (answer.status, answer.body, answer.field("retry-after")) == (420, body, ["60"])


@pytest.mark.parametrize("headers", ["ietf", "legacy", "both", "none"])
@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("face", APPS)
def test_header_fields_of_an_app_are_kept(face: str, status: int, headers: str) -> None:
    own = [("Retry-After", "7"), ("Cache-Control", "private"), ("X-RateLimit-Limit", "5")]

    def wsgi_own(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("420 Busy", [*own, ("Content-Length", "4")])
        return [b"busy"]

    async def asgi_own(scope: Any, receive: Any, send: Any) -> None:
        fields = [(name.encode(), value.encode()) for name, value in [*own, ("Content-Length", "4")]]
        await send({"type": "http.response.start", "status": 420, "headers": fields})
        await send({"type": "http.response.body", "body": b"busy"})

    app = asgi_own if face in ASYNC else wsgi_own
    answer = refused(FACES[face], on_refused=app, headers=headers, **REFUSALS[status])
    assert answer.status == 420
    assert [answer.field(name.lower()) for name, _ in own] == [[value] for _, value in own]
    assert answer.field("content-length") == ["4"]


@pytest.mark.promise(8)
@pytest.mark.parametrize("face", APPS)
def test_an_app_that_raises_causes_the_default_response(face: str) -> None:
    async def asgi_raises(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError(scope["path"])

    def wsgi_raises(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise RuntimeError(environ["PATH_INFO"])

    problem(refused(FACES[face], on_refused=asgi_raises if face in ASYNC else wsgi_raises), 429)


@pytest.mark.promise(8)
def test_an_asgi_app_that_sends_nothing_causes_the_default_response() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None: ...

    problem(refused(FACES["starlette"], on_refused=silent), 429)


@pytest.mark.promise(8)
def test_errors_of_a_wsgi_app_after_start_response_propagate() -> None:
    """A second call of start_response would raise (PEP 3333), and hide the error of the app."""

    def begins(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("420 Busy", [("Content-Type", "text/plain")])
        raise RuntimeError(environ["PATH_INFO"])

    store = MemoryStore(clock=Clock())
    middleware = wsgi.RateLimitMiddleware(hello, {"limits": "1/minute", "store": store, "on_refused": begins})
    Server().ask(middleware)
    server = Server()
    with pytest.raises(RuntimeError, match=r"^/$"):
        server.ask(middleware)
    assert [started[0] for started in server.started] == ["420 Busy"]


def test_errors_of_an_asgi_app_after_the_response_start_propagate() -> None:
    async def begins(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 420, "headers": []})
        raise RuntimeError(scope["path"])

    store = MemoryStore(clock=Clock())
    middleware = asgi.RateLimitMiddleware(App200(), {"limits": "1/minute", "store": store, "on_refused": begins})
    talk(middleware, HTTP)
    with pytest.raises(RuntimeError, match=r"^/$"):
        talk(middleware, HTTP)


async def takes_three(scope: Any, receive: Any, send: Any) -> None: ...


@pytest.mark.promise(9)
@pytest.mark.parametrize("store", ["memory://", MemoryStore()], ids=["own", "given"])
def test_an_app_of_the_other_protocol_is_a_config_error(store: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        wsgi.RateLimitMiddleware(hello, {"limits": "1/minute", "on_refused": takes_three, "store": store})
    assert str(caught.value) == (
        "on_refused: got takes_three, which cannot answer here: expected a WSGI app, or a callable (request, verdict)"
    )
    with pytest.raises(ConfigError) as caught:
        asgi.RateLimitMiddleware(App200(), {"limits": "1/minute", "on_refused": wsgi_app, "store": store})
    assert str(caught.value) == (
        "on_refused: got wsgi_app, which cannot answer here: expected an ASGI app, or a callable (request, verdict)"
    )


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    "given",
    [5, "no", "call:nowhere:nothing", "call:math", [], lambda: None, lambda _: None, lambda _, __, ___, ____: None],
)
def test_a_value_that_cannot_respond_is_a_config_error(given: Any) -> None:
    for made in (lambda: asgi.RateLimitMiddleware(App200(), limits=[], on_refused=given),
                 lambda: wsgi.RateLimitMiddleware(hello, limits=[], on_refused=given)):  # fmt: skip
        with pytest.raises(ConfigError, match=r"^on_refused: "):
            made()


@pytest.mark.parametrize("face", FACES)
def test_a_callable_can_be_given_by_name(face: str) -> None:
    answer = refused(FACES[face], on_refused="call:web.responses.test_on_refused:teapot")
    assert (answer.status, answer.body) == (418, b"no tea")


def test_settings_accept_callables_and_apps_of_both_protocols() -> None:
    for given in (teapot, later, asgi_app, wsgi_app):
        assert Settings(limits=[], on_refused=given).on_refused is given


# websockets


@pytest.mark.parametrize("call", [teapot, later])
def test_a_callable_responds_to_a_handshake_if_the_server_supports_it(call: Any) -> None:
    app = App200({"type": "websocket.accept"})
    middleware = asgi.RateLimitMiddleware(app, limits="1/minute", store=MemoryStore(clock=Clock()), on_refused=call)
    talk(middleware, WEBSOCKET)
    start, body = talk(middleware, WEBSOCKET, **OFFERS_HTTP).sent
    assert (start["type"], start["status"], body["body"]) == ("websocket.http.response.start", 418, b"no tea")
    assert dict(start["headers"])[b"retry-after"] == b"60"
    (closed,) = talk(middleware, WEBSOCKET).sent
    assert closed["type"] == "websocket.close"


def test_an_app_does_not_respond_to_a_handshake() -> None:
    app = App200({"type": "websocket.accept"})
    store = MemoryStore(clock=Clock())
    middleware = asgi.RateLimitMiddleware(app, {"limits": "1/minute", "store": store, "on_refused": asgi_app})
    talk(middleware, WEBSOCKET)
    start, _ = talk(middleware, WEBSOCKET, **OFFERS_HTTP).sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    (closed,) = talk(middleware, WEBSOCKET).sent
    assert closed["type"] == "websocket.close"


# jitter


@pytest.mark.promise(4)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("jitter", "chance", "retry_after"),
    [
        (0.0, 1.0, 60), (0.5, 0.0, 60), (0.5, 0.5, 61), (0.5, 1.0, 61), (10, 0.0, 60), (10, 0.0999, 61),
        (10, 0.1, 61), (10, 0.1001, 62), (10, 1.0, 70), (3600, 1.0, 3660),
    ],
)  # fmt: skip
def test_jitter_only_increases_retry_after(
    face: str, jitter: float, chance: float, retry_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "uniform", lambda low, high: low + (high - low) * chance)
    answer = refused(FACES[face], jitter=jitter)
    assert answer.field("retry-after") == [str(retry_after)]
    assert f"Try again in {retry_after} seconds." in answer.body.decode()
    assert answer.field("ratelimit") == ['"default";r=0;t=60']


@pytest.mark.promise(4)
@pytest.mark.parametrize("face", FACES)
def test_random_jitter_stays_within_its_maximum(face: str) -> None:
    send = FACES[face]({**LIMITED, "store": MemoryStore(clock=Clock()), "jitter": 5})
    send(Step())
    waits = {int(send(Step()).field("retry-after")[0]) for _ in range(60)}
    assert waits <= set(range(60, 66))
    assert len(waits) > 1


@pytest.mark.parametrize("face", FACES)
def test_jitter_does_not_apply_to_store_errors_or_impossible_costs(face: str) -> None:
    assert refused(FACES[face], jitter=50, on_store_error="deny").field("retry-after") == ["1"]
    limits = {"limits": [{"limit": "1/minute", "cost": lambda _: 2}], "jitter": 50, "store": MemoryStore(clock=Clock())}
    answer = FACES[face](limits)(Step())
    assert (answer.status, answer.field("retry-after")) == (429, [])


def test_a_custom_status_has_the_reason_refused_under_wsgi() -> None:
    store = MemoryStore(clock=Clock())
    middleware = wsgi.RateLimitMiddleware(hello, {"limits": "1/minute", "store": store, "on_refused": teapot})
    Server().ask(middleware)
    server = Server()
    server.ask(middleware)
    ((status, _),) = server.started
    assert status == "418 Refused"
