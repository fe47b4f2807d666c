"""Rules for hosts: what a host may be, and what a Host header matches."""

from typing import Any

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.hosts import Hosts
from ratelimit_mw.rules import Rule
from ratelimit_mw.testing import Clock, RecordingStore
from web.faces import FACES
from web.scenario import Step

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
def test_matches(hosts: Any, header: str | None, matches: bool) -> None:
    assert bool(Hosts("host", hosts).match([] if header is None else [header])) is matches


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("lines", "matches"),
    [
        ([], False),
        ([""], False),
        (["b.test"], False),
        (["a.test"], True),
        (["a.test", "a.test"], None),
        (["a.test,a.test"], None),  # as WSGI servers join them
        ([f"a.test:{'9' * 300}"], None),
        (["a test"], None),
    ],
)
def test_what_can_be_read_in_several_ways_is_neither(lines: list[str], *, matches: bool | None) -> None:
    assert Hosts("host", "a.test").match(lines) is matches


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("host", "problems"),
    [
        (5, ["host: found 5, allowed is a host such as 'api.example.com' or a list of these"]),
        (b"a.test", ["host: found b'a.test', allowed is a host such as 'api.example.com' or a list of these"]),
        ("", [f"host: found '', allowed is {ALLOWED}"]),
        ("http://a.test", [f"host: found 'http://a.test', allowed is {ALLOWED}"]),
        ("a.test:80", [f"host: found 'a.test:80', allowed is {ALLOWED}"]),
        ("a.test.", [f"host: found 'a.test.', allowed is {ALLOWED}"]),
        ("*", [f"host: found '*', allowed is {ALLOWED}"]),
        ("*.", [f"host: found '*.', allowed is {ALLOWED}"]),
        ("a.*.test", [f"host: found 'a.*.test', allowed is {ALLOWED}"]),
        ("*a.test", [f"host: found '*a.test', allowed is {ALLOWED}"]),
        ("b\xfccher.example", [f"host: found 'b\xfccher.example', allowed is {ALLOWED}"]),
        ("2001:db8::1", [f"host: found '2001:db8::1', allowed is {ALLOWED}"]),
        (["a.test", "b test", None],
         [f"host[1]: found 'b test', allowed is {ALLOWED}", f"host[2]: found None, allowed is {ALLOWED}"]),
    ],
)  # fmt: skip
def test_what_is_no_host(host: Any, problems: list[str]) -> None:
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
def test_the_host_header_alone_says_which(face: str, lines: tuple[tuple[str, str], ...], rule: str) -> None:
    store = RecordingStore(clock=Clock())
    rules = [{"path": "/", "host": "api.test", "limits": "5/hour", "name": "api"}]
    FACES[face]({"limits": "9/hour", "rules": rules, "store": store})(Step(lines=lines))
    assert [charge.key.rpartition(":")[2] for _, charges in store.calls for charge in charges] == rule.split()
