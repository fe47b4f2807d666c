"""Django: the responses of the middleware, and the requests that it limits, under WSGI and ASGI."""

import io
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import ResponseHeaders
from django.test import RequestFactory
from django.urls import path
from msgspec import json
from msgspec.structs import replace

from ratelimit_mw import ConfigError
from ratelimit_mw.django import RateLimitMiddleware, limit
from ratelimit_mw.django import endpoint_limits as endpoints
from ratelimit_mw.django import responses as answers
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import RecordingStore
from web.django_ask import BOTH, CLIENT, Site, hello, keeping, settings, taken, under_asgi, under_wsgi
from web.django_site import LOGIN, OURS, wsgi_site

pytestmark = pytest.mark.usefixtures("speaks_again")

ME = __name__
PERIODS = "(us, ms, second, minute, hour, day, week, month, year)"


@limit("5/minute")
def limited(request: Any, **_: Any) -> HttpResponse:
    return hello(request)


# responses


@BOTH
def test_refusal_has_the_exact_status_headers_and_body(site: Site, store: RecordingStore) -> None:
    ask = site([path("", hello)], settings(store, limits="1/minute"))
    first, second = ask(), ask()
    assert (first.status, first.body) == (200, b"0")
    assert [value for name, value in first.headers if name.startswith("ratelimit")] == [
        '"default";q=1;w=60',
        '"default";r=0;t=60',
    ]
    assert second.status == 429
    assert second.headers == [
        ("content-type", "application/problem+json"),
        ("content-length", str(len(second.body))),
        ("cache-control", "no-store"),
        ("retry-after", "60"),
        ("ratelimit-policy", '"default";q=1;w=60'),
        ("ratelimit", '"default";r=0;t=60'),
    ]
    assert json.decode(second.body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Try again in 60 seconds.",
        "violated-policies": ["default"],
    }
    head = ask(method="HEAD")
    assert (head.status, head.body, head.headers) == (429, b"", second.headers)


@BOTH
def test_a_refused_request_does_not_reach_its_view(site: Site, store: RecordingStore) -> None:
    called: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        called.append(request.path)
        return HttpResponse()

    ask = site([path("", view)], settings(store, limits="1/minute"))
    assert [ask().status for _ in range(3)] == [200, 429, 429]
    assert called == ["/"]


@BOTH
def test_ratelimit_field_of_the_view_is_extended_and_its_legacy_field_kept(site: Site, store: RecordingStore) -> None:
    def view(_: HttpRequest) -> HttpResponse:
        return HttpResponse(headers={"RateLimit": '"own";r=1', "X-RateLimit-Limit": "7"})

    answer = site([path("", view)], settings(store, headers="both"))()
    assert answer.field("ratelimit") == ['"own";r=1, "default";r=8;t=60']
    assert answer.field("ratelimit-policy") == ['"default";q=9;w=60']
    assert answer.field("x-ratelimit-limit") == ["7"]
    assert answer.field("x-ratelimit-remaining") == []


@BOTH
def test_ratelimit_or_ratelimit_policy_alone_from_the_view_is_extended(site: Site, store: RecordingStore) -> None:
    fields = [{"RateLimit": '"own";r=1'}, {"ratelimit-policy": '"own";q=2'}]
    ask = site([path(str(n), lambda _, n=n: HttpResponse(headers=fields[n])) for n in range(2)], settings(store))
    first, second = ask("/0"), ask("/1")
    assert (first.field("ratelimit"), first.field("ratelimit-policy")) == (
        ['"own";r=1, "default";r=8;t=60'],
        ['"default";q=9;w=60'],
    )
    assert (second.field("ratelimit"), second.field("ratelimit-policy")) == (
        ['"default";r=7;t=60'],
        ['"own";q=2, "default";q=9;w=60'],
    )


class Noting(ResponseHeaders):
    """Headers of another class than Django's, which record the names that are set."""

    def __init__(self, data: Any) -> None:
        self.noted: list[str] = []
        super().__init__(data)

    def __setitem__(self, name: Any, value: Any) -> None:
        self.noted.append(name)
        super().__setitem__(name, value)


@BOTH
def test_fields_are_set_by_name_on_a_custom_header_class(site: Site, store: RecordingStore) -> None:
    response = HttpResponse()
    response.headers = Noting({"Content-Type": "text/plain"})
    answer = site([path("", lambda _: response)], settings(store))()
    assert answer.field("ratelimit") == ['"default";r=8;t=60']
    assert response.headers.noted[:3] == ["Content-Type", "RateLimit-Policy", "RateLimit"]


@BOTH
def test_fields_are_set_by_name_if_django_keeps_no_dict(
    site: Site, store: RecordingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = []
    put = ResponseHeaders.__setitem__

    def note(fields: ResponseHeaders, name: Any, value: Any) -> None:
        noted.append(name)
        put(fields, name, value)

    monkeypatch.setattr(answers, "_KEEPS_DICT", False)
    monkeypatch.setattr(ResponseHeaders, "__setitem__", note)
    answer = site([path("", hello)], settings(store))()
    assert answer.field("ratelimit") == ['"default";r=8;t=60']
    assert [name for name in noted if name.startswith("RateLimit")] == ["RateLimit-Policy", "RateLimit"]


class Stream:
    """A streamed body that records how it is read."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for part in (b"a", b"b"):
            self.given += 1
            yield part

    def close(self) -> None:
        self.closed = True


@pytest.mark.promise(11)
def test_streams_and_files_go_through_untouched(store: RecordingStore) -> None:
    stream, file, wrapped = Stream(), io.BytesIO(b"a file"), []

    class Wrapper:
        def __init__(self, filelike: Any, block_size: int) -> None:
            wrapped.append(filelike)
            self.close = filelike.close

        def __iter__(self) -> Iterator[bytes]:
            return iter((b"sent by the server",))

    app = wsgi_site(
        [
            path("stream", lambda _: StreamingHttpResponse(stream)),
            path("file", lambda _: FileResponse(file)),
        ],
        settings(store),
    )
    environ = {**RequestFactory(REMOTE_ADDR="192.0.2.1").get("/stream").META, "wsgi.file_wrapper": Wrapper}
    started: list[Any] = []
    response = app(environ, lambda *given: started.append(given))
    assert stream.given == 0
    assert b"".join(response) == b"ab"
    response.close()
    assert stream.closed
    response = app({**environ, "PATH_INFO": "/file"}, lambda *given: started.append(given))
    assert wrapped == [file]
    assert b"".join(response) == b"sent by the server"
    response.close()
    assert file.closed
    assert [("RateLimit" in dict(fields), status) for status, fields in started] == [(True, "200 OK")] * 2


@pytest.mark.promise(11)
def test_an_async_stream_goes_through_untouched(store: RecordingStore) -> None:
    async def parts() -> Any:
        yield b"a"
        yield b"b"

    async def view(_: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(parts())

    answer = under_asgi([path("", view)], settings(store))()
    assert (answer.body, answer.field("ratelimit")) == (b"ab", ['"default";r=8;t=60'])


# requests that do not reach a view


def answers_itself(_: Any) -> Any:
    return lambda _: HttpResponse("from inside")


def raises_itself(_: Any) -> Any:
    def middleware(request: Any) -> Any:
        raise Http404

    return middleware


class AnswersInView:
    """A middleware that responds before the view is called, as LoginRequiredMiddleware does."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)

    def process_view(self, *_: Any) -> HttpResponse:
        return HttpResponse("before the view", status=403)


@BOTH
@pytest.mark.promise(9)
def test_a_path_without_a_view_is_charged_and_refused(site: Site, store: RecordingStore) -> None:
    rules = [{"path": "/none/{rest:path}", "limits": "1/minute", "name": "none"}]
    ask = site([path("some", hello)], settings(store, limits="2/minute", rules=rules))
    assert [ask("/nowhere").status for _ in range(3)] == [404, 404, 429]
    assert [ask("/none/x").status for _ in range(2)] == [404, 429]
    refused = ask("/nowhere")
    assert refused.field("content-type") == ["application/problem+json"]
    assert refused.field("retry-after") == ["60"]
    assert refused.field("ratelimit") == ['"default";r=0;t=60']
    assert ask("/some").status == 429


@BOTH
@pytest.mark.promise(1, 9)
@pytest.mark.parametrize(
    ("inner", "status"),
    [("answers_itself", 200), ("raises_itself", 404), ("AnswersInView", 403)],
)
@pytest.mark.filterwarnings("ignore:.*event loop:DeprecationWarning")
def test_requests_answered_by_inner_middleware_are_charged_and_refused(
    site: Site, store: RecordingStore, inner: str, status: int
) -> None:
    ask = site([path("", hello)], settings(store, limits="2/minute"), LOGIN, OURS, f"{ME}.{inner}")
    assert [ask().status for _ in range(3)] == [status, status, 429]
    assert len(store.calls) == 3


@BOTH
def test_redirect_that_appends_a_slash_is_charged(site: Site, store: RecordingStore) -> None:
    common = "django.middleware.common.CommonMiddleware"
    ask = site([path("x/", hello)], settings(store, limits="2/minute"), OURS, common)
    assert [ask("/x").status, ask("/x/").status, ask("/x").status] == [301, 200, 429]


@BOTH
def test_limit_of_a_view_applies_if_other_middleware_responds_before_it(site: Site, store: RecordingStore) -> None:
    ask = site([path("", limited)], settings(store), f"{ME}.AnswersInView", OURS)
    answer = ask()
    assert (answer.status, taken(store)) == (403, [[f"{CLIENT}@{ME}.limited() 5"]])
    assert answer.field("ratelimit") == ['"root";r=4;t=60']


@BOTH
@pytest.mark.promise(1)
@pytest.mark.parametrize("where", ["/", "/raises", "/missing", "/http404"])
def test_request_is_charged_once_even_if_its_view_fails_or_is_missing(
    site: Site, store: RecordingStore, where: str
) -> None:
    def raises(_: HttpRequest) -> HttpResponse:
        raise LookupError

    def http404(_: HttpRequest) -> HttpResponse:
        raise Http404

    urls = [path("", hello), path("raises", raises), path("http404", http404)]
    ask = site(urls, settings(store), DEBUG_PROPAGATE_EXCEPTIONS=False)
    assert ask(where).status == {"/": 200, "/raises": 500}.get(where, 404)
    assert taken(store) == [[f"{CLIENT}default 9"]]


def asks_twice(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        get_response(request)
        return get_response(request)

    return middleware


@pytest.mark.promise(1, 9)
def test_request_processed_twice_is_charged_once_and_stays_refused(store: RecordingStore) -> None:
    ask = under_wsgi([path("", hello)], settings(store, limits="1/minute"), f"{ME}.asks_twice", OURS)
    first, second = ask(), ask()
    assert (first.status, second.status) == (200, 429)
    assert first.field("ratelimit") == second.field("ratelimit") == ['"default";r=0;t=60']
    assert len(store.calls) == 2


# inside another RateLimitMiddleware


@BOTH
@pytest.mark.promise(1)
def test_django_middleware_in_an_outer_middleware_charges_nothing_twice(site: Site, store: RecordingStore) -> None:
    outer = settings(store, headers="both")
    ask = site([path("", hello), path("limited", limited)], outer, around=outer)
    assert [ask().status for _ in range(10)] == [200] * 9 + [429]
    assert taken(store) == [[f"{CLIENT}default 9"]] * 10
    store.calls.clear()
    answer = ask("/limited", client="192.0.2.2")
    assert taken(store) == [["{ip=192.0.2.2}:default 9"], [f"{{ip=192.0.2.2}}:@{ME}.limited() 5"]]
    assert answer.body == b"4"
    assert answer.field("ratelimit") == ['"limited";r=4;t=60, "default";r=8;t=60']
    assert answer.field("x-ratelimit-remaining") == ["4"]


@BOTH
def test_inner_middleware_adds_fields_if_the_outer_one_exempts_the_path(site: Site, store: RecordingStore) -> None:
    outer = settings(store, exempt=["/"])
    answer = site([path("", hello)], settings(store), around=outer)()
    assert answer.field("ratelimit") == ['"default";r=8;t=60']


class Stricter(RateLimitMiddleware):
    """A second middleware, a subclass in the project."""


class OfAnother(RateLimitMiddleware):
    """A second middleware with limits of its own."""

    def __init__(self, get_response: Any) -> None:
        super().__init__(get_response)
        self._use(self._build(replace(self.gate.settings, app_limits="7/minute")))


@BOTH
@pytest.mark.promise(2)
def test_second_middleware_does_not_charge_a_request_that_the_first_refused(site: Site, store: RecordingStore) -> None:
    ask = site([path("", hello)], settings(store, limits="1/minute"), LOGIN, OURS, f"{ME}.OfAnother")
    assert [ask().status for _ in range(2)] == [200, 429]
    assert taken(store) == [[f"{CLIENT}default 1"], [f"{CLIENT}app 7"], [f"{CLIENT}default 1"]]


@BOTH
def test_middleware_that_is_installed_twice_charges_once(site: Site, store: RecordingStore) -> None:
    ask = site([path("", limited)], settings(store), LOGIN, OURS, f"{ME}.Stricter")
    answers = [ask() for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 5 + [429]
    assert len(taken(store)) == 6
    assert answers[0].field("ratelimit") == ['"root";r=4;t=60']


# on_refused


def page(request: Request, verdict: Any) -> Any:
    return 429, {"Content-Type": "text/html", "Set-Cookie": "seen=1; Path=/", "X-Rule": verdict.rule}, "<p>slow</p>"


async def apage(request: Request, verdict: Any) -> Any:
    return page(request, verdict)


def raising_page(request: Request, verdict: Any) -> Any:
    raise LookupError


@BOTH
@pytest.mark.parametrize("refusal_handler", [page, apage])
def test_on_refused_sets_status_headers_and_body_of_the_refusal(
    site: Site, store: RecordingStore, refusal_handler: Any
) -> None:
    ask = site([path("", hello)], settings(store, limits="1/minute", on_refused=refusal_handler))
    ask()
    refused = ask()
    assert (refused.status, refused.body) == (429, b"<p>slow</p>")
    fields = [(name, value.strip()) for name, value in refused.headers]  # older Djangos begin a cookie with a space
    assert sorted(fields) == [
        ("cache-control", "no-store"),
        ("content-length", "11"),
        ("content-type", "text/html"),
        ("ratelimit", '"default";r=0;t=60'),
        ("ratelimit-policy", '"default";q=1;w=60'),
        ("retry-after", "60"),
        ("set-cookie", "seen=1; Path=/"),
        ("x-rule", "default"),
    ]


@BOTH
@pytest.mark.promise(8)
def test_default_refusal_is_sent_if_on_refused_raises(site: Site, store: RecordingStore) -> None:
    ask = site([path("", hello)], settings(store, limits="1/minute", on_refused=raising_page))
    first, refused = ask(), ask()
    assert (first.status, refused.status) == (200, 429)
    assert refused.field("content-type") == ["application/problem+json"]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError


def wsgi_app(environ: Any, start_response: Any) -> Any:
    raise AssertionError


@BOTH
@pytest.mark.promise(9)
@pytest.mark.parametrize("app", [asgi_app, wsgi_app])
def test_asgi_or_wsgi_app_as_on_refused_is_an_error(site: Site, store: RecordingStore, app: Any) -> None:
    told = f"got {app.__name__}, which cannot answer here: expected a callable (request, verdict)"
    with pytest.raises(ConfigError) as error:
        site([path("", hello)], settings(store, on_refused=app))
    assert error.value.problems == (f"RATELIMIT_MW.on_refused: {told}",)


# settings


@BOTH
@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("limits", "problems"),
    [
        (None, ("RATELIMIT_MW.limits: required, such as '100/minute'; [] means no limits",)),
        (
            {"limits": "5/minut", "headers": "all"},
            (
                f"RATELIMIT_MW.limits: '5/minut': unknown period 'minut', did you mean 'minute'? {PERIODS}",
                "RATELIMIT_MW.headers: got 'all', expected one of ietf, legacy, both, draft-6, draft-7, none",
            ),
        ),
        (
            7,
            ("RATELIMIT_MW.settings: got int, expected Settings or a mapping; Settings.load(path) reads a file",),
        ),
    ],
    ids=["none", "several", "no mapping"],
)
def test_wrong_settings_keep_the_project_from_loading(site: Site, limits: Any, problems: Sequence[str]) -> None:
    with pytest.raises(ConfigError) as error:
        site([path("", hello)], limits)
    assert error.value.problems == problems


@BOTH
def test_settings_may_be_an_object(site: Site, store: RecordingStore) -> None:
    ask = site([path("", hello)], Settings(limits="1/minute", store=store))
    assert [ask().status for _ in range(2)] == [200, 429]


@BOTH
@pytest.mark.promise(8)
def test_store_outage_gives_503_and_logs_no_error(
    site: Site, store: RecordingStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.error = ConnectionError("down")
    ask = site([path("", limited)], settings(store, on_store_error="deny"))
    with caplog.at_level(logging.ERROR):
        assert ask().status == 503
    assert caplog.messages == []
    store.error = None
    assert ask().status == 200


@pytest.mark.parametrize(("server", "count"), [("shop.example", 1), ("testserver", 0)], ids=["a server", "tests"])
def test_memory_store_in_several_processes_logs_a_warning_except_in_tests(
    caplog: pytest.LogCaptureFixture, server: str, count: int
) -> None:
    app = wsgi_site([path("", hello)], {"limits": "9/minute"})
    environ = RequestFactory().get("/").META
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        for _ in range(2):
            app({**environ, "SERVER_NAME": server, "wsgi.multiprocess": True}, lambda *_: None).close()
    told = [
        message for message in caplog.messages if "memory:// counts in one process, and there are several" in message
    ]
    assert len(told) == count


def test_first_request_logs_limits_that_nothing_enforces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoints, "MIDDLEWARE_LOADED", threading.Event())
    monkeypatch.setattr(endpoints, "LOCATIONS", WeakKeyDictionary())
    view = limit("5/minute")(keeping(hello))
    ask = under_wsgi([path("", view)], None, LOGIN)
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        assert [ask().status for _ in range(2)] == [500] * 2  # the view reads request.ratelimit
    told = [message for message in caplog.messages if message.startswith("ratelimit_mw")]
    assert len(told) == 1
    assert f"{__file__}:" in told[0]
    assert told[0].endswith("are not enforced: add ratelimit_mw.django.RateLimitMiddleware to MIDDLEWARE")
