"""Tests rules for hosts: which hosts are valid, and which Host headers match."""

import random
from collections.abc import Iterator
from typing import Any

import flask
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Route, Router

from ratelimit_mw import ConfigError, asgi, wsgi
from ratelimit_mw.http.hosts import Hosts
from ratelimit_mw.settings.rule import Rule
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import HTTP, talk
from web.faces import FACES
from web.scenario import Step
from web.wsgi_talk import Server, read

ALLOWED = "a name such as 'api.example.com' or '*.example.com', without scheme and port"
LONG = ".".join(["a" * 60] * 4)


@pytest.mark.parametrize(
    ("hosts", "header", "matches"),
    [
        ("example.com", "example.com", True),
        ("example.com", "EXAMPLE.com", True),
        ("EXAMPLE.com", "example.com", True),
        ("example.com", "example.com:443", True),
        ("example.com", "example.com:", True),
        ("example.com", "example.com.", True),
        ("example.com", "example.com.:80", True),
        ("example.com", "api.example.com", False),
        ("example.com", "example.com.evil.test", False),
        ("example.com", "xexample.com", False),
        ("example.com", "example.co", False),
        ("example.com", "exampleXcom", False),
        ("example.com", "example.com:80:80", False),
        ("example.com", "example.com:http", False),
        ("example.com", "user@example.com", False),
        ("example.com", "http://example.com", False),
        ("example.com", "example.com/x", False),
        ("example.com", "example.com, other.test", False),
        ("example.com", " example.com", False),
        ("example.com", "example.com\n", False),
        ("example.com", "example.com\x00", False),
        ("example.com", "", False),
        ("example.com", None, False),
        ("example.com", "example.com" + "." * 400, False),
        ("example.com", "a" * 100_000, False),
        ("*.example.com", "api.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "A.B.Example.COM:80", True),
        ("*.example.com", "api.example.com.", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "apiexample.com", False),
        ("*.example.com", "api.example.com.evil.test", False),
        ("*.example.com", ".example.com", False),
        ("localhost", "localhost:8000", True),
        ("192.0.2.1", "192.0.2.1:8000", True),
        ("192.0.2.1", "192.0.2.10", False),
        ("[2001:db8::1]", "[2001:DB8::1]:8000", True),
        ("[2001:db8::1]", "2001:db8::1", False),
        ("a_b.test", "a_b.test", True),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", True),
        ("xn--bcher-kva.example", "b\xfccher.example", False),
        (["a.test", "*.b.test"], "a.test", True),
        (["a.test", "*.b.test"], "x.b.test", True),
        (["a.test", "*.b.test"], "b.test", False),
        (["a.test", "*.b.test"], "x.a.test", False),
        (("a.test",), "a.test", True),
        (LONG, LONG, True),
        ([], "a.test", False),
    ],
)
def test_a_host_rule_matches_only_its_hosts(hosts: Any, header: str | None, matches: bool) -> None:
    assert bool(Hosts("host", hosts).match([] if header is None else [header])) is matches


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("lines", "matches"),
    [
        ([], None),  # an app may know its host name without the header
        ([""], False),
        (["b.test"], False),
        (["a.test"], True),
        (["a.test", "a.test"], None),
        (["a.test,a.test"], None),  # WSGI servers join repeated headers like this
        ([f"a.test:{'9' * 300}"], None),
        (["a test"], None),
    ],
)
def test_match_returns_none_for_ambiguous_host_headers(lines: list[str], *, matches: bool | None) -> None:
    assert Hosts("host", "a.test").match(lines) is matches


HOSTS = ["api.test", "a.b.test"]
PIECES = [
    *("..", ".", ":", ":80", ":443:80", "@", "user@", "api.test", "/", "\\", "\t", " ", "%2e", "\xe9", ",", ", x"),
    "http://",
]
PIECES += ["#", "?", "[", "]", "A", "xn--", "_", "::", "\x00", ";", "*", "\xe3\x80\x82"]


def spelled_hosts(count: int) -> Iterator[str]:
    draw = random.Random(5)  # noqa: S311  # no secret
    for _ in range(count):
        host = draw.choice(HOSTS)
        for _ in range(draw.choice([0, 1, 1, 2, 3])):
            at = draw.choice([0, len(host), draw.randint(0, len(host))])
            host = draw.choice(
                [host.swapcase(), host[:at] + draw.choice(PIECES) + host[at:], host[:at] + host[at + 1 :]]
            )
        yield host


def hosts_of_flask(reached: list[str]) -> Any:
    app = flask.Flask(__name__, host_matching=True, static_folder=None)
    for host, name in (("api.test", "api"), ("<sub>.b.test", "b")):

        def endpoint(name: str = name, **_: Any) -> str:
            reached.append(name)
            return name

        app.add_url_rule("/", name, endpoint, host=host)
    return app


def hosts_of_starlette(reached: list[str]) -> Any:
    def below(name: str) -> Router:
        async def endpoint(_: Any) -> PlainTextResponse:
            reached.append(name)
            return PlainTextResponse(name)

        return Router([Route("/", endpoint)])

    return Starlette(routes=[Host("api.test", below("api")), Host("{sub}.b.test", below("b"))])


RULES_OF_HOSTS = {
    "limits": "1000000000/hour",
    "rules": [
        {"path": "/", "host": "api.test", "limits": "1000000000/hour", "name": "api"},
        {"path": "/", "host": "*.b.test", "limits": "1000000000/hour", "name": "b"},
    ],
}


@pytest.mark.promise(9)
@pytest.mark.parametrize("framework", ["flask", "starlette"])
def test_no_spelling_of_a_host_bypasses_its_rule(framework: str) -> None:
    """Compares how the framework matches hosts with how rules match them."""
    reached: list[str] = []
    store = RecordingStore(clock=Clock())
    if framework == "flask":
        wsgi_app = wsgi.RateLimitMiddleware(hosts_of_flask(reached), RULES_OF_HOSTS, store=store)
    else:
        asgi_app = asgi.RateLimitMiddleware(hosts_of_starlette(reached), RULES_OF_HOSTS, store=store)
    found = 0
    for host in [*spelled_hosts(1000), None]:
        if framework == "flask":
            server = Server(SERVER_NAME="api.test", SERVER_PORT="80", **({} if host is None else {"HTTP_HOST": host}))
            if host is None:
                del server.environ["HTTP_HOST"]
            read(server.ask(wsgi_app))
        else:
            headers = [] if host is None else [(b"host", host.encode("latin-1"))]
            talk(asgi_app, {**HTTP, "scheme": "http", "query_string": b"", "root_path": "", "headers": headers})
        charged = {charge.key.rpartition(":")[2] for _, charges in store.calls for charge in charges}
        assert charged >= set(reached), host
        found += len(reached)
        reached.clear()
        store.calls.clear()
    assert found > 0


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("host", "problems"),
    [
        (5, ["host: got 5, expected a host such as 'api.example.com' or a list of these"]),
        (b"a.test", ["host: got b'a.test', expected a host such as 'api.example.com' or a list of these"]),
        ("", [f"host: got '', expected {ALLOWED}"]),
        ("http://a.test", [f"host: got 'http://a.test', expected {ALLOWED}"]),
        ("a.test:80", [f"host: got 'a.test:80', expected {ALLOWED}"]),
        ("a.test.", [f"host: got 'a.test.', expected {ALLOWED}"]),
        ("*", [f"host: got '*', expected {ALLOWED}"]),
        ("*.", [f"host: got '*.', expected {ALLOWED}"]),
        ("a.*.test", [f"host: got 'a.*.test', expected {ALLOWED}"]),
        ("*a.test", [f"host: got '*a.test', expected {ALLOWED}"]),
        ("b\xfccher.example", [f"host: got 'b\xfccher.example', expected {ALLOWED}"]),
        ("2001:db8::1", [f"host: got '2001:db8::1', expected {ALLOWED}"]),
        (["a.test", "b test", None],
         [f"host[1]: got 'b test', expected {ALLOWED}", f"host[2]: got None, expected {ALLOWED}"]),
    ],
)  # fmt: skip
def test_an_invalid_host_raises_a_config_error(host: Any, problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Rule(path="/", limits=[], host=host)
    assert [*caught.value.problems] == problems


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ((("Host", "api.test"),), "api"),
        ((("Host", "API.test:80"),), "api"),
        ((("Host", "other.test"),), "default"),
        ((("Host", "api.test"), ("X-Forwarded-Host", "other.test")), "api"),
        ((("Host", "other.test"), ("X-Forwarded-Host", "api.test")), "default"),
        ((("Host", "other.test"), ("Forwarded", "host=api.test")), "default"),
        ((("Host", "api.test"), ("Host", "other.test")), "api default"),
        ((("Host", f"api.test:{'9' * 300}"),), "api default"),
    ],
)
def test_only_the_host_header_selects_the_rule(face: str, lines: tuple[tuple[str, str], ...], rule: str) -> None:
    store = RecordingStore(clock=Clock())
    rules = [{"path": "/", "host": "api.test", "limits": "5/hour", "name": "api"}]
    FACES[face]({"limits": "9/hour", "rules": rules, "store": store})(Step(lines=lines))
    assert [charge.key.rpartition(":")[2] for _, charges in store.calls for charge in charges] == rule.split()
