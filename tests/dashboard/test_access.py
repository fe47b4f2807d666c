"""Tests who may see the dashboard and change something, on both faces."""

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from dashboard.asked import MOUNT, SECRET, SIGNED_IN, ask, data, made, post
from ratelimit_mw import ConfigError
from ratelimit_mw.dashboard import dashboard
from ratelimit_mw.dashboard.fronts import Dashboard
from ratelimit_mw.dashboard.reader import Reader
from ratelimit_mw.stores.sqlite import SQLiteStore

PATHS = ["/", "/data.json", "/index.html", "/dashboard.js", "/nothing", "/look", "/change", "/login"]


@pytest.fixture(params=["asgi", "wsgi"])
def face(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(autouse=True)
def no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RATELIMIT_MW_DASHBOARD_SECRET", raising=False)


def basic(name: str, secret: str) -> str:
    return f"Basic {b64encode(f'{name}:{secret}'.encode()).decode()}"


def settings(**options: Any) -> Any:
    return {"limits": "5/minute", "metrics": True, **options}


@pytest.mark.parametrize(
    ("method", "path"),
    [(method, path) for method in ("GET", "POST", "PUT") for path in PATHS if (method, path) != ("POST", "/login")],
)
@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer wrong"}, {"Cookie": "ratelimit_mw=9999999999.a.b"}])
def test_without_the_secret_every_path_answers_401_and_reads_nothing(
    face: str, path: str, method: str, sent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "_read", lambda *_: pytest.fail("read the store"))
    monkeypatch.setattr("ratelimit_mw.admin.target.open_existing", lambda *_: pytest.fail("opened the store"))
    app = made(face, settings(store="redis://127.0.0.1:1/0"), secret=SECRET, write=True)
    got = ask(app, path, method, **sent)
    assert (got.status, got.headers["www-authenticate"], got.headers["cache-control"]) == (401, "Bearer", "no-store")


@pytest.mark.parametrize(
    "sent", [f"Bearer {SECRET}", f"bearer  {SECRET}", basic("ann", SECRET), basic("", SECRET)], ids=str
)
def test_the_secret_opens_as_bearer_and_as_password(face: str, sent: str) -> None:
    app = made(face, settings(), secret=SECRET)
    you = data(app, Authorization=sent)["you"]
    assert you == {"name": "ann" if "YW5u" in sent else "dashboard", "role": "operator", "until": None}


@pytest.mark.parametrize("sent", ["Bearer", "Basic", "Basic %%%", basic("ann", "wrong"), f"Digest {SECRET}", SECRET])
def test_other_credentials_do_not(face: str, sent: str) -> None:
    assert ask(made(face, settings(), secret=SECRET), "/data.json", Authorization=sent).status == 401


def test_a_login_sets_a_cookie_that_opens(face: str) -> None:
    app = made(face, settings(), secret=SECRET)
    got = ask(app, "/login", "POST", body=f"secret={SECRET}".encode(), scheme="https")
    cookie, *attributes = got.headers["set-cookie"].split("; ")
    assert (got.status, got.headers["location"]) == (303, f"{MOUNT}/")
    assert attributes == [f"Path={MOUNT}", "HttpOnly", "SameSite=Strict", "Max-Age=43200", "Secure"]
    assert data(app, Cookie=cookie)["you"]["role"] == "operator"
    assert ask(app, "/data.json", Cookie=f"{cookie}a").status == 401
    assert "Secure" not in ask(app, "/login", "POST", body=f"secret={SECRET}".encode()).headers["set-cookie"]
    assert ask(made(face, settings(), secret=f"{SECRET}!"), "/data.json", Cookie=cookie).status == 401


def test_a_cookie_opens_beside_those_of_the_app(face: str) -> None:
    app = made(face, settings(), secret=SECRET)
    cookie = ask(app, "/login", "POST", body=f"secret={SECRET}".encode()).headers["set-cookie"].split("; ")[0]
    assert ask(app, "/data.json", Cookie=f'seen={{"a": 1}}; {cookie}; b[]=c d').status == 200


@pytest.mark.parametrize(
    ("mount", "shown"),
    [
        ("/t\r\nX: 1; é", "/t%0D%0AX%3A%201%3B%20%C3%A9"),
        ("//evil.example", "/evil.example"),
        ("", ""),
    ],
)
def test_a_client_adds_no_header_with_its_part_of_the_mount(face: str, mount: str, shown: str) -> None:
    app = made(face, settings(), secret=SECRET)
    got = ask(app, "/login", "POST", body=f"secret={SECRET}".encode(), mount=mount)
    assert (got.status, got.headers["location"]) == (303, f"{shown}/")
    assert f"; Path={shown or '/'}; HttpOnly; " in got.headers["set-cookie"]


def test_a_session_ends(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = made(face, settings(), secret=SECRET)
    now = [1000.0]
    monkeypatch.setattr(app.page.access, "_clock", lambda: now[0])
    cookie = ask(app, "/login", "POST", body=f"secret={SECRET}".encode()).headers["set-cookie"].split("; ")[0]
    now[0] += 12 * 3600 - 1
    assert ask(app, "/data.json", Cookie=cookie).status == 200
    now[0] += 1
    assert ask(app, "/data.json", Cookie=cookie).status == 401


@pytest.mark.promise(9)
def test_wrong_secrets_of_an_address_are_limited(face: str) -> None:
    app = made(face, settings(trusted_proxies=["127.0.0.1"]), secret=SECRET)
    first: dict[str, Any] = {"X_Forwarded_For": "192.0.2.1"}
    for number in range(10):
        sent = {"Authorization": "Bearer wrong"} if number % 2 else {}
        body = b"" if number % 2 else b"secret=wrong"
        got = ask(
            app, "/data.json" if number % 2 else "/login", "GET" if number % 2 else "POST", body=body, **sent, **first
        )
        assert got.status == 401
    refused = ask(app, "/data.json", Authorization="Bearer wrong", **first)
    assert (refused.status, 0 < int(refused.headers["retry-after"]) <= 60) == (429, True)
    assert ask(app, "/login", "POST", body=b"secret=wrong", **first).status == 429
    assert ask(app, "/data.json", Authorization="Bearer wrong", X_Forwarded_For="192.0.2.2").status == 401
    assert ask(app, "/data.json", **SIGNED_IN, **first).status == 200  # the right one, as of the operator beside
    assert ask(app, "/login", "POST", body=f"secret={SECRET}".encode(), **first).status == 303


HTTPS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({}, {"X_Forwarded_Proto": "https"}, False),  # from anybody
    ({"trusted_proxies": ["127.0.0.1"]}, {"X_Forwarded_Proto": "https"}, True),
    ({"trusted_proxies": ["127.0.0.1"]}, {"X_Forwarded_Proto": "https, http"}, False),
    ({"trusted_proxies": ["127.0.0.1"], "proxy_header": "forwarded"}, {"Forwarded": 'for=::1;Proto="https"'}, True),
    ({"trusted_proxies": ["127.0.0.1"], "proxy_header": "forwarded"}, {"X_Forwarded_Proto": "https"}, False),
]


@pytest.mark.parametrize(("options", "sent", "is_secure"), HTTPS, ids=str)
def test_a_trusted_proxy_says_whether_the_cookie_is_secure(
    face: str, options: dict[str, Any], sent: dict[str, Any], is_secure: bool
) -> None:
    app = made(face, settings(**options), secret=SECRET)
    cookie = ask(app, "/login", "POST", body=f"secret={SECRET}".encode(), **sent).headers["set-cookie"]
    assert cookie.endswith("; Secure") is is_secure


def test_a_cookie_is_that_of_one_page_until_its_logout(face: str, tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text('limits = "5/minute"\nmetrics = true\n')
    app, other = made(face, settings(), secret=SECRET), made(face, tmp_path / "shop.toml", secret=SECRET)
    login = ask(app, "/login", "POST", body=f"secret={SECRET}".encode())
    cookie = login.headers["set-cookie"].split("; ")[0]
    assert [ask(one, "/data.json", Cookie=cookie).status for one in (app, other)] == [200, 401]
    assert ask(app, "/data.json", Cookie=cookie, mount="/elsewhere").status == 401
    assert post(app, "logout", {}, Cookie=cookie).status == 200
    assert ask(app, "/data.json", Cookie=cookie).status == 401


def test_a_body_that_does_not_arrive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratelimit_mw.dashboard.fronts._BODY_SECONDS", 0.01)
    monkeypatch.setattr("dashboard.asked.arrives", lambda: asyncio.sleep(60))
    got = ask(made("asgi", settings(), secret=SECRET), "/login", "POST")
    assert (got.status, got.headers["connection"]) == (408, "close")


def test_a_post_needs_the_token(face: str) -> None:
    app = made(face, settings(), secret=SECRET, write=True)
    token = data(app)["token"]
    body = b'{"do": "switch", "state": "shadow"}'
    for sent in ({}, {"X_Token": ""}, {"X_Token": token[:-1]}, {"X_Token": token, "Sec_Fetch_Site": "cross-site"}):
        assert ask(app, "/change", "POST", body=body, **SIGNED_IN, **sent).status == 403
    cookie = ask(app, "/login", "POST", body=f"secret={SECRET}".encode()).headers["set-cookie"].split("; ")[0]
    assert ask(app, "/look", "POST", body=b"{}", Cookie=cookie, X_Token=token).status == 403  # that of another session
    own = data(app, Cookie=cookie)["token"]
    assert ask(app, "/look", "POST", body=b"{}", Cookie=cookie, X_Token=own).status == 200
    assert (
        ask(app, "/logout", "POST", body=b"{}", Cookie=cookie, X_Token=own)
        .headers["set-cookie"]
        .startswith("ratelimit_mw=; ")
    )


@pytest.mark.parametrize(("role", "write"), [("operator", False), ("viewer", True), ("viewer", False)])
def test_who_may_not_write_gets_403_from_the_api(face: str, role: str, write: bool) -> None:
    app = made(face, settings(), authorize=lambda _: role, write=write)
    cookie = ask(app, "/data.json").headers["set-cookie"].split("; ")[0]
    assert data(app, Cookie=cookie)["write"] is False
    got = post(app, "change", {"do": "switch", "state": "off"}, Cookie=cookie)
    assert (got.status, "not allowed" in got.json["error"]) == (403, True)
    assert post(app, "preview", {"rule": "default"}, Cookie=cookie).status == 200


@pytest.mark.parametrize(
    ("returned", "status"), [(None, 401), (False, 401), ("", 401), (True, 401), ("admin", 401), ("viewer", 200)]
)
def test_authorize_decides_by_the_request(face: str, returned: object, status: int) -> None:
    app = made(face, settings(), authorize=lambda request: returned if request.header("x-staff") else None)
    assert ask(app, "/data.json", X_Staff="1").status == status
    assert ask(app, "/data.json").status == 401


def test_what_authorize_returned_is_logged_and_not_told(
    face: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})
    got = ask(made(face, settings(), authorize=lambda _: "ann@example.org"), "/data.json")
    assert got.json == {"error": "authorize: returned no role for this request"}
    assert "returned 'ann@example.org', expected None, 'viewer' or 'operator'" in caplog.text


def test_an_authorize_that_fails_opens_nothing(face: str) -> None:
    def fails(_: Any) -> str:
        raise LookupError("no such person")

    with pytest.raises(LookupError):  # as in any view of the app, whose server answers 500
        ask(made(face, settings(), authorize=fails), "/data.json")


@pytest.mark.parametrize("length", ["\xb2", "-1", "1" * 5000, "65537", "0000000001048576"], ids=lambda text: text[:9])
def test_a_length_that_is_no_number_or_too_long_is_refused(length: str) -> None:
    app = made("wsgi", settings(), secret=SECRET)
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/login", "CONTENT_LENGTH": length}
    got: list[Any] = []
    app(environ, lambda *answer: got.extend(answer))
    assert got[0] == f"413 {HTTPStatus(413).phrase}"


def test_authorize_may_be_async_under_asgi() -> None:
    async def authorize(_: Any) -> str:
        return "viewer"

    assert ask(dashboard(settings(), authorize=authorize), "/data.json").json["you"]["role"] == "viewer"


LOCAL: list[tuple[dict[str, Any], int]] = [
    ({}, 200),
    ({"host": "127.0.0.1:8099"}, 200),
    ({"host": "[::1]:8099", "peer": "::1"}, 200),
    ({"peer": "192.0.2.1"}, 401),
    ({"host": "evil.example"}, 401),  # a page whose name resolves to this host
    ({"host": "127.0.0.1.evil.example"}, 401),
    ({"X_Forwarded_For": "192.0.2.1"}, 401),  # a proxy on this host, which brings strangers
    ({"Forwarded": "for=192.0.2.1"}, 401),
    ({"host": "127.0.0.1:8099", "version": "1.0"}, 401),  # what nginx sends by default, for anybody
    ({"version": ""}, 401),
    ({"version": "2"}, 200),
]


@pytest.mark.parametrize(("sent", "status"), LOCAL, ids=str)
def test_without_a_secret_only_callers_on_loopback_get_an_answer(face: str, sent: dict[str, Any], status: int) -> None:
    got = ask(made(face, settings()), "/data.json", **sent)
    assert (got.status, got.json.get("you", {}).get("role")) == (status, "viewer" if status == 200 else None)


def test_the_secret_may_be_in_the_environment(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATELIMIT_MW_DASHBOARD_SECRET", SECRET)
    app = made(face, settings())
    assert (ask(app, "/data.json").status, ask(app, "/data.json", **SIGNED_IN).status) == (401, 200)


WRONG: list[tuple[Mapping[str, Any], str]] = [
    ({"secret": "fifteen letters"[:15]}, "secret: expected at least 16"),
    ({"secret": ""}, "secret: is empty"),
    ({"write": True}, "write: true without a secret or authorize.*set RATELIMIT_MW_DASHBOARD_SECRET"),
    ({"secret": "with a space inside it"}, "secret: expected at least 16"),
    ({"authorize": "viewer"}, "authorize: got 'viewer'"),
    ({"authorize": lambda _: None, "secret": SECRET}, "dashboard: got both secret and authorize"),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=[text for _, text in WRONG])
def test_a_wrong_argument_is_a_config_error(options: Mapping[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        dashboard(settings(), **options)


def test_every_answer_is_protected(face: str) -> None:
    app = made(face, settings(), secret=SECRET)
    for got in (
        ask(app, "/data.json"),
        ask(app, "/", Accept="text/html"),
        ask(app, "/data.json", **SIGNED_IN),
        ask(app, "/", **SIGNED_IN),
        ask(app, "/nothing", **SIGNED_IN),
    ):
        policy = got.headers["content-security-policy"]
        assert got.headers["cache-control"] == "no-store"
        assert got.headers["x-content-type-options"] == "nosniff"
        assert policy.startswith("default-src 'none'; ")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy


def test_a_path_outside_of_the_assets_is_no_file(face: str) -> None:
    app = made(face, settings(), secret=SECRET)
    for path in (
        "/../app.py",
        "/..%2fapp.py",
        "/uplot/LICENSE",
        "/login.html",
        "/report.js",
        "/sentence.py",
        "/a/b.js",
    ):
        assert ask(app, path, **SIGNED_IN).status == 404


def test_methods_and_long_bodies_are_refused(face: str) -> None:
    app = made(face, settings(), secret=SECRET)
    token = data(app)["token"]
    assert ask(app, "/data.json", "DELETE", **SIGNED_IN).headers["allow"] == "GET, HEAD"
    assert ask(app, "/look", **SIGNED_IN).headers["allow"] == "POST"
    assert ask(app, "/look", "POST", body=b" " * 65_537, X_Token=token, **SIGNED_IN).status == 413
    for body in (b"", b"[]", b"{", b'{"request": "\xff"}'):
        assert ask(app, "/look", "POST", body=body, X_Token=token, **SIGNED_IN).status == 400


@pytest.mark.parametrize("query", ["seconds=0", "seconds=86401", "seconds=-5", "seconds=%D9%A3", "clients=7"])
def test_a_wrong_question_is_400(face: str, query: str) -> None:
    app = made(face, settings(), secret=SECRET)
    assert (
        ask(app, f"/data.json?{query}" if query.isascii() else "/data.json?seconds=%D9%A3", **SIGNED_IN).status == 400
    )


def test_a_mount_without_its_slash_leads_to_the_page(face: str) -> None:
    app = made(face, settings(), secret=SECRET)
    assert ask(app, "").status == 401
    for sent in (SIGNED_IN, {"Accept": "text/html"}):
        got = ask(app, "", **sent)
        assert (got.status, got.headers["location"]) == (308, f"{MOUNT}/")


def test_a_change_of_nothing_is_409(face: str, tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "limits.db").close()
    app = made(face, settings(store=f"sqlite://{tmp_path}/limits.db"), secret=SECRET, write=True)
    assert post(app, "change", {"do": "switch", "state": "off"}).status == 200
    assert post(app, "change", {"do": "switch", "state": "on"}).json["done"] == "switch on"
    got = post(app, "change", {"do": "switch", "state": "on"})
    assert (got.status, got.json) == (409, {"error": "switch: nothing to end"})
    app.page.reader.close()


def test_a_websocket_is_closed() -> None:
    sent: list[Any] = []

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        app: Dashboard = dashboard(settings(), secret=SECRET)
        await app({"type": "websocket", "path": "/"}, receive, send)

    asyncio.run(run())
    assert sent == [{"type": "websocket.close", "code": 1008}]
