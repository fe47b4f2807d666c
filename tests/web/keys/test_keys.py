"""Tests the parts of keys and their order, and that no client can forge the key of another client."""

import os.path
from typing import Any

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.http.callables import FAILED
from ratelimit_mw.http.keys import Key, KeySpec
from ratelimit_mw.http.request import Request
from web.plain_request import PlainRequest
from web.wsgi_talk import Server, limited


def identity(key: KeySpec, request: Request, route: str = "login", **answers: Any) -> str | None:
    compiled = Key(key, 64)
    return compiled.identity(request, route, dict.fromkeys(compiled.callables, answers.get("answer")))


def tenant(request: Request) -> str | None:
    return request.headers.get("x-tenant")


BOB = PlainRequest(user="bob", headers={"x-api-key": "k", "cookie": "sid=s; a=1"})
GUEST = PlainRequest(client="2001:db8::1")
NOBODY = PlainRequest(client=None)

ROWS: list[tuple[str, Request, str | None]] = [
    ("ip", BOB, "ip=192.0.2.1"),
    ("ip", GUEST, "ip=2001:db8::/64"),
    ("ip/48", GUEST, "ip=2001:db8::/48"),
    ("ip/128", GUEST, "ip=2001:db8::1"),
    ("ip/24", BOB, "ip=192.0.2.0/24"),
    ("ip/24", GUEST, "ip=2001:db8::/64"),
    ("ip/31", BOB, "ip=192.0.2.0/31"),
    ("ip/24/56", BOB, "ip=192.0.2.0/24"),
    ("ip/8", BOB, "ip=192.0.0.0/8"),
    ("ip/24/56", GUEST, "ip=2001:db8::/56"),
    ("ip/32/128", BOB, "ip=192.0.2.1"),
    ("ip/24", PlainRequest(client="::ffff:192.0.2.1"), "ip=192.0.2.0/24"),
    ("user + ip/24/56", BOB, "user=bob+ip=192.0.2.0/24"),
    ("ip/24", NOBODY, None),
    ("ip", NOBODY, None),
    ("user", BOB, "user=bob"),
    ("user", GUEST, None),
    ("user | ip", BOB, "user=bob"),
    ("user|ip", GUEST, "ip=2001:db8::/64"),
    ("user | ip", NOBODY, None),
    ("user+ip", BOB, "user=bob+ip=192.0.2.1"),
    ("user + ip", GUEST, None),
    ("user+ip | ip", GUEST, "ip=2001:db8::/64"),
    ("header:X-Api-Key", BOB, "header:x-api-key=k"),
    ("header:x-api-key", GUEST, None),
    ("cookie:sid", BOB, "cookie:sid=s"),
    ("cookie:SID", BOB, None),
    ("route", BOB, "route=login"),
    ("ip+route", BOB, "ip=192.0.2.1+route=login"),
    ("all", NOBODY, "all=all"),
    (" all ", NOBODY, "all=all"),
    ("ip | all", NOBODY, "all=all"),
]


@pytest.mark.parametrize(("key", "request_", "expected"), ROWS)
def test_a_key_builds_the_identity_from_its_parts(key: str, request_: Request, expected: str | None) -> None:
    assert identity(key, request_) == expected


def test_the_identity_from_a_callable_names_the_callable() -> None:
    assert identity(tenant, BOB, answer="acme") == f"call:{__name__}:tenant=acme"
    assert identity(tenant, BOB, answer=None) is None
    assert identity(tenant, BOB, answer=FAILED) is None
    where = f"{__name__}:test_the_identity_from_a_callable_names_the_callable"
    assert identity(lambda _: "", BOB, answer="acme") == f"call:{where}.-locals-.-lambda-=acme"


def test_a_callable_can_be_given_by_name() -> None:
    named: Any = os.path.basename
    key = Key("call:os.path:basename | ip", 64)
    assert key.callables == [named]
    assert key.identity(BOB, "", {named: "x"}) == "call:os.path:basename=x"
    assert key.identity(BOB, "", {named: None}) == "ip=192.0.2.1"


@pytest.mark.promise(10)
@pytest.mark.parametrize("evil", ["a+ip=192.0.2.9", "a=b", "a}b", "a{b", "a:b+c", "~0", "%2B", "a\x00", "\r\n", " "])
def test_a_value_cannot_forge_another_identity(evil: str) -> None:
    plain = {"user": "a", "ip": "192.0.2.9"}
    own = identity("user+ip", PlainRequest(user=evil, client=plain["ip"]))
    others = {
        identity("user", PlainRequest(user=evil)),
        identity("user+ip", PlainRequest(user=plain["user"], client=plain["ip"])),
        identity("user", PlainRequest(user=plain["user"])),
        identity("header:x", PlainRequest(headers={"x": evil})),
    }
    assert own is not None
    assert own not in others
    assert len(others) == 4
    assert not set("{}\r\n\x00 ~") & set(own)


@pytest.mark.promise(10)
def test_long_values_have_short_and_distinct_identities() -> None:
    mebibyte = "x" * 2**20
    one, two = (identity("header:x", PlainRequest(headers={"x": text})) for text in (mebibyte, mebibyte + "x"))
    assert one is not None
    assert two is not None
    assert one != two
    assert len(one) == len("header:x=~") + 64
    forged = one.removeprefix("header:x=")
    assert identity("header:x", PlainRequest(headers={"x": forged})) != one


@pytest.mark.parametrize("text", ["käse", "\xff", "\ud800", "\U0001f600", "ａ"])  # noqa: RUF001
def test_non_ascii_text_is_encoded_in_ascii(text: str) -> None:
    found = identity("header:x", PlainRequest(headers={"x": text}))
    assert found is not None
    assert found.isascii()
    assert found != identity("header:x", PlainRequest(headers={"x": "?"}))


@pytest.mark.parametrize(
    ("one", "other", "can_collide_with"),
    [
        ("ip", "ip", True),
        ("ip", "ip/48", True),
        ("user | ip", "ip", True),
        ("user+ip", "ip+user", False),
        ("user+ip", "user | ip", False),
        ("header:a", "header:A", True),
        ("header:a", "cookie:a", False),
        (tenant, tenant, True),
        (tenant, "ip", False),
    ],
)
def test_can_collide_with_detects_keys_that_can_be_equal(
    one: KeySpec, other: KeySpec, *, can_collide_with: bool
) -> None:
    assert Key(one, 64).can_collide_with(Key(other, 64)) is can_collide_with
    assert Key(other, 64).can_collide_with(Key(one, 64)) is can_collide_with


@pytest.mark.parametrize(
    ("key", "is_client_controlled"),
    [("header:a", True), ("cookie:a | header:b", True), ("header:a+cookie:b", True), ("header:a | ip", True),
     ("user | header:a", True), ("ip | header:a", False), ("header:a+user | all | cookie:b", False),
     ("header:a+ip", False), ("user", False), ("all", False), (tenant, False)],
)  # fmt: skip
def test_is_client_controlled_detects_keys_that_clients_can_choose(key: KeySpec, *, is_client_controlled: bool) -> None:
    assert Key(key, 64).is_client_controlled is is_client_controlled


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, request: Request) -> str:
        return request.path

    def __repr__(self) -> str:
        return "Unhashable()"


def test_an_unhashable_callable_raises_a_config_error() -> None:
    message = "got Unhashable(), expected a callable that can be hashed: unhashable type: 'Unhashable'"
    with pytest.raises(ConfigError) as caught:
        Key(Unhashable(), 64)
    assert str(caught.value) == message


FROM_A_FORM = "from a form or query; give a callable of the request that returns it, or a key such as 'ip'"


@pytest.mark.parametrize(
    ("key", "begin"),
    [
        ("X-Api-Key", "got 'X-Api-Key', did you mean 'header:X-Api-Key'?; expected ip, "),
        ("authorization | ip", "got 'authorization', did you mean 'header:authorization'?; expected ip, "),
        ("ip + usr", "got 'usr', did you mean 'user'?; expected ip, "),
        ("X_Api_Key", "got 'X_Api_Key', expected ip, "),
        ("header:", "got 'header:', expected ip, "),
        ("ip,user", "got 'ip,user', did you mean 'user | ip' or 'ip + user'?; expected ip, "),
        ("user_or_ip", "got 'user_or_ip', did you mean 'user | ip'?; expected ip, "),
        ("user and header:x | ip", "got 'user and header:x', did you mean 'user + header:x'?; expected ip, "),
        ("ip, nothing", "got 'ip, nothing', expected ip, "),
        ("headers:X-Key", "got 'headers:X-Key', did you mean 'header:X-Key'?; expected ip, "),
        ("cookies:sid | ip", "got 'cookies:sid', did you mean 'cookie:sid'?; expected ip, "),
        ("post:username", f"got 'post:username', and a key cannot read 'username' {FROM_A_FORM}; expected ip, "),
        ("ip+form:name", f"got 'form:name', and a key cannot read 'name' {FROM_A_FORM}; expected ip, "),
    ],
)
def test_invalid_keys_raise_errors_that_suggest_valid_keys(key: str, begin: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Key(key, 64)
    assert str(caught.value).startswith(begin)


def raises(request: Request) -> str:
    return str(request.raw["state"]["user"])


@pytest.mark.parametrize(
    ("settings", "admitted"),
    [
        ({"key": raises}, [200, 429, 200]),
        ({"key": [raises, "ip"]}, [200, 429, 200]),
        ({"key": [lambda _: None, "ip/48 | user"]}, [200, 429, 200]),
        ({"key": [raises, "ip"], "missing_key": "shared"}, [200, 429, 200]),
        ({"key": raises, "missing_key": "shared"}, [200, 429, 429]),
        ({"key": lambda _: None}, [200, 429, 429]),
    ],
)
def test_a_key_whose_callable_raises_is_the_address_unless_missing_key_is_set(
    settings: dict[str, Any], admitted: list[int]
) -> None:
    app = limited(limits="1/hour", **settings)
    servers = [Server(REMOTE_ADDR=client) for client in ("192.0.2.1", "192.0.2.1", "198.51.100.1")]
    for server in servers:
        server.ask(app)
    assert [int(server.started[0][0][:3]) for server in servers] == admitted
