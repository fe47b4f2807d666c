"""Tests the request attributes that rules and keys read, also of malicious requests."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from function_calls import function_calls
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.request import Request, as_text, strip_root, user_id
from ratelimit_mw.http.views import AsgiRequest, WsgiRequest
from web.asgi_talk import HTTP


def asgi(*headers: tuple[bytes, bytes], **more: Any) -> Request:
    return AsgiRequest({**HTTP, "headers": headers, **more}, None)


def wsgi(**environ: Any) -> Request:
    return WsgiRequest({"REQUEST_METHOD": "GET", "PATH_INFO": "/", **environ}, None)


@pytest.mark.parametrize("method", ["post", "POST", "Post"])
@pytest.mark.promise(9)
def test_methods_are_converted_to_upper_case(method: str) -> None:
    assert asgi(method=method).method == "POST"
    assert wsgi(REQUEST_METHOD=method).method == "POST"


def test_repeated_headers_are_joined_and_names_are_lower_case() -> None:
    assert asgi((b"X-Key", b"a"), (b"x-other", b""), (b"x-KEY", b"b")).headers == {"x-key": "a, b", "x-other": ""}
    assert wsgi(HTTP_X_KEY="a,b", CONTENT_TYPE="text/plain", CONTENT_LENGTH="", SERVER_NAME="x").headers == {
        "x-key": "a,b",
        "content-type": "text/plain",
    }


@pytest.mark.parametrize("request_", [asgi((b"X-Key", b"a")), wsgi(HTTP_X_KEY="a")], ids=["asgi", "wsgi"])
def test_headers_are_found_in_any_case_of_their_names(request_: Request) -> None:
    for name in ("x-key", "X-Key", "X-KEY"):
        assert (request_.header(name), list(request_.header_lines(name))) == ("a", ["a"])
        assert (request_.headers[name], request_.headers.get(name), name in request_.headers) == ("a", "a", True)
    assert (request_.header("X-Other"), request_.headers.get("X-Other"), "X-Other" in request_.headers) == (
        *(None, None, False),
    )
    assert (dict(request_.headers), repr(request_.headers)) == ({"x-key": "a"}, "Headers({'x-key': 'a'})")


def test_headers_may_contain_any_bytes() -> None:
    every = bytes(range(256))
    assert asgi((b"x", every)).headers == {"x": every.decode("latin-1")}
    headers = asgi((every, b"x")).headers
    assert dict(headers) == {every.lower().decode("latin-1"): "x"}


@pytest.mark.promise(10)
def test_many_lines_of_one_header_are_joined_efficiently() -> None:
    lines = [(b"x-key", b"a")] * 300_000  # joined one by one, this would copy 135 GB
    assert asgi(*lines).headers == {"x-key": ", ".join(["a"] * 300_000)}


@pytest.mark.parametrize(
    ("cookie", "found"),
    [
        ("", {}),
        ("sid=a", {"sid": "a"}),
        ("sid=a; x=1", {"sid": "a", "x": "1"}),
        ("  sid = a ;x=1;;", {"sid": "a", "x": "1"}),
        ("sid=a; sid=a", {"sid": "a"}),
        ("sid=a; sid=b", {}),  # Starlette reads the last value, other frameworks the first
        ("sid=a, sid=b", {}),
        ("sid=a; sid=b; sid=a", {}),
        ('sid="\\113"', {}),  # an escape that only some parsers decode
        ('sid="a b"', {"sid": "a b"}),
        ("sid=a=b=", {"sid": "a=b="}),
        ("sid", {"sid": ""}),
        ("sid=", {"sid": ""}),
        ("=a", {}),
        ("SID=a", {"SID": "a"}),
        ("sid=\xff", {"sid": "\xff"}),
        ("sid=" + "x" * 8188, {"sid": "x" * 8188}),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_cookies_are_parsed_and_ambiguous_ones_are_left_out(cookie: str, found: dict[str, str]) -> None:
    for request in (asgi((b"cookie", cookie.encode("latin-1"))), wsgi(HTTP_COOKIE=cookie)):
        assert {name: value for name, value in request.cookies.items() if name} == found


def test_many_cookies_are_parsed() -> None:
    names = [f"c{number}" for number in range(1000)]
    cookies = wsgi(HTTP_COOKIE=";".join(f"{name}=1" for name in names)).cookies
    assert (cookies.get("c7"), cookies.get("C7"), "c7" in cookies, len(cookies)) == ("1", None, True, 1000)
    assert list(cookies) == names
    assert (cookies.only("c7"), cookies.only("C7")) == ("1", None)


@pytest.mark.promise(10)
def test_cookies_beyond_their_bound_are_ambiguous() -> None:
    """The bound is for all Cookie headers together."""
    half = b"sid=" + b"x" * 4092
    within, beyond = asgi((b"cookie", half), (b"cookie", half)), asgi((b"cookie", half), (b"cookie", half + b";"))
    assert (within.cookies.only("sid"), within.cookies.is_ambiguous("sid")) == ("x" * 4092, False)
    assert (within.cookies.only("a"), within.cookies.is_ambiguous("a")) == (None, False)
    assert (beyond.cookies.only("sid"), beyond.cookies.is_ambiguous("sid")) == (None, True)
    assert beyond.cookies.is_ambiguous("a")
    for read in (lambda: beyond.cookies["a"], lambda: list(beyond.cookies), lambda: beyond.cookies.get("a")):
        with pytest.raises(ValueError, match="more than 8192 characters"):
            read()


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    "cookie", ["sid;" * 2048, "sid=1;" * 1365, ";" * 8192, ";".join(f"sid{each}" for each in range(1100)), "a;" * 32768]
)
def test_cookies_are_read_once_however_often_they_are_needed(cookie: str) -> None:
    """Counts the calls of functions, which are nearly all of the work."""
    request = asgi((b"cookie", cookie.encode()))
    keys = [Key("cookie:sid", 64) for _ in range(7)]

    def reads() -> None:
        for key in keys:
            key.identity(request, "", {})
            key.is_ambiguous(request)

    first, again = function_calls(reads), function_calls(reads)
    assert first <= 8 * 2048 + again
    assert again <= 7 * 25


@pytest.mark.promise(10)
def test_header_lines_are_searched_once_for_all_rules_and_limits() -> None:
    request = asgi(*[(b"a", b"")] * 16_000, (b"X-Key", b"k"))
    assert function_calls(lambda: request.header_lines("x-key")) >= 16_000
    assert function_calls(lambda: [request.header_lines("x-key") for _ in range(100)]) <= 100 * 10
    assert request.header_lines("x-key") == ["k"]


@pytest.mark.parametrize(
    ("root", "path", "found"),
    [
        ("", "/a", "/a"),
        ("", "", "/"),
        ("/sub", "/sub", "/"),
        ("/sub", "/sub/", "/"),
        ("/sub", "/sub/a", "/a"),
        ("/sub", "/sub//a", "//a"),
        ("/sub", "/subway", "/subway"),
        ("/sub", "/a", "/a"),
        ("/sub", "/sub/sub/a", "/sub/a"),
        ("/sub", "/Sub/a", "/Sub/a"),
    ],
)
def test_the_root_is_stripped_from_the_path(root: str, path: str, found: str) -> None:
    assert strip_root(root, path) == found
    assert asgi(path=path, root_path=root).path == found


def raising(error: Exception) -> property:
    def fails(_: object) -> Any:
        raise error

    return property(fails)


class Base:
    is_authenticated: Any = True


class LikeStarlettes(Base):
    identity = raising(NotImplementedError())
    username = "bob"


class AllRaise(Base):
    identity = pk = id = username = display_name = raising(RuntimeError())


class DatabaseDown(Base):
    is_authenticated = raising(ConnectionError())
    identity = "bob"


class OldDjango(Base):
    identity = "bob"

    def __init__(self, *, known: bool) -> None:
        self.known = known

    def is_authenticated(self) -> bool:
        return self.known


class MethodRaises(Base):
    identity = "bob"

    def is_authenticated(self) -> bool:
        raise ConnectionError


class OddText(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError


def known(**names: Any) -> SimpleNamespace:
    return SimpleNamespace(is_authenticated=True, **names)


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("user", "counted_as"),
    [
        (None, None),
        ("bob", None),
        (object(), None),
        (SimpleNamespace(is_authenticated=False, identity="bob"), None),
        (SimpleNamespace(identity="bob"), None),
        (known(identity="bob", id=7), "bob"),
        (known(id=7, username="bob"), "7"),
        (known(id=0), "0"),
        (known(pk=8, id=7), "8"),
        (known(identity="", display_name="Bob"), "Bob"),
        (known(identity=None, id=True, username=b"bob"), None),
        (known(identity=object(), username="bob"), "bob"),
        (known(identity=lambda: "bob", username="eve"), "eve"),
        (known(id=10**5000, username="bob"), "bob"),
        (known(id=OddText("x"), username="bob"), "x"),
        (known(id=UUID(int=7)), "00000000-0000-0000-0000-000000000007"),
        (known(), None),
        (LikeStarlettes(), "bob"),
        (AllRaise(), None),
        (DatabaseDown(), None),
        (OldDjango(known=True), "bob"),
        (OldDjango(known=False), None),
        (MethodRaises(), None),
    ],
)
def test_user_ids_are_read_from_authenticated_user_objects_only(user: object, counted_as: str | None) -> None:
    assert user_id(user) == counted_as
    assert asgi(user=user).user == counted_as


@pytest.mark.parametrize(("value", "found"), [("bob", "bob"), ("", None), (None, None), (b"bob", None), (7, "7")])
def test_wsgi_reads_the_user_from_remote_user(value: Any, found: str | None) -> None:
    assert wsgi(REMOTE_USER=value).user == found
    assert as_text(value) == found
    assert wsgi().user is None
