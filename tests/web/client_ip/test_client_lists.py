"""Safelists and blocklists: valid entries, matching requests, and secrets that are never shown."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from ratelimit_mw import ConfigError, MemoryStore, asgi
from ratelimit_mw.core import log as notices
from ratelimit_mw.http import client_lists as members
from ratelimit_mw.http.client_lists import ClientList
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock
from web.asgi_talk import HTTP, OFFERS_HTTP, WEBSOCKET, App200, talk
from web.faces import FACES
from web.messages import IMPORTABLE, message_of
from web.plain_request import PlainRequest
from web.scenario import Step

LISTS = pytest.mark.parametrize("place", ["safelist", "blocklist"])
SECRET = "t0p-s3cret-t0ken"
NETWORK = "a network such as '10.0.0.0/8' or an address such as '192.0.2.1'"
LIST = "a list of networks, headers and callables"
MEMBER = "a network, a table of header and value, a callable"


class Lines(PlainRequest):
    """A request with several values of the header x-token."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self._lines = lines

    def header_lines(self, name: str) -> tuple[str, ...]:
        return self._lines if name == "x-token" else ()


@pytest.mark.parametrize(
    ("lines", "once", "anywhere"),
    [
        ((), False, False),
        ((SECRET,), True, True),
        ((SECRET, SECRET), False, True),
        (("x", SECRET), False, True),
        ((SECRET, "x"), False, True),
        (("x", "y", SECRET), False, True),
        (("x",), False, False),
        (("",), False, False),
        ((SECRET.upper(),), False, False),
        ((SECRET[:-1],), False, False),
        ((SECRET + "x",), False, False),
        (("\xe9" * 16,), False, False),
        (("\ud800",), False, False),
        (("x" * 100_000,), False, False),
    ],
)
def test_header_entry_matches_any_value_or_with_once_a_single_value(
    lines: tuple[str, ...], once: bool, anywhere: bool
) -> None:
    found = ClientList("list", [{"header": "X-Token", "value": SECRET}])
    assert found.matches(Lines(*lines), once=True) is once
    assert found.matches(Lines(*lines), once=False) is anywhere


def test_a_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def kept(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr(members, "compare_digest", kept)
    found = ClientList("safelist", [{"header": "X-Token", "value": SECRET}, {"header": "x-token", "value": "\xe9"}])
    assert not found.matches(Lines("guess"), once=True)
    assert compared == [(b"guess", SECRET.encode()), (b"guess", b"\xc3\xa9")]


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("10.0.0.0/8", ["10.0.0.0", "10.255.255.255", "::ffff:10.1.1.1"], ["9.255.255.255", "11.0.0.0", "::10.1.1.1"]),
        ("192.0.2.1", ["192.0.2.1", "192.0.2.1:80", "::ffff:c000:201", "64:ff9b::c000:201"], ["192.0.2.0"]),
        ("192.0.2.1/32", ["192.0.2.1"], ["192.0.2.2"]),
        ("192.0.2.0/31", ["192.0.2.0", "192.0.2.1"], ["192.0.2.2", "192.0.1.255"]),
        ("2001:db8::/32", ["2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"], ["2001:db7:ffff::", "2001:db9::"]),
        ("2001:db8::1", ["2001:db8::1", "[2001:DB8::1]:80", "2001:db8::1%eth0"], ["2001:db8::2", "2001:db8::"]),
        ("::ffff:10.0.0.0/104", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0", "::ffff:11.0.0.0"]),
        ("::1", ["::1"], ["127.0.0.1", "::"]),
    ],
)  # fmt: skip
def test_network_entries_match_exactly_their_addresses(network: str, inside: list[str], outside: list[str]) -> None:
    found = ClientList("list", [network])
    for once in (True, False):
        assert [found.matches(PlainRequest(client=client), once=once) for client in inside] == [True] * len(inside)
        nobody = [*outside, None, "", "junk", "1" * 100]
        assert [found.matches(PlainRequest(client=client), once=once) for client in nobody] == [False] * len(nobody)


def test_callables_run_until_one_matches_and_not_after_a_network_match() -> None:
    asked: list[str] = []

    def says(name: str, answer: bool) -> Any:
        def call(_: object) -> bool:
            asked.append(name)
            return answer

        return call

    found = ClientList("list", ["192.0.2.1", says("no", False), says("yes", True), says("never", True)])
    assert found.matches(PlainRequest(client="192.0.2.1"), once=True)
    assert asked == []
    assert found.matches(PlainRequest(client="192.0.2.2"), once=True)
    assert asked == ["no", "yes"]


@LISTS
@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("given", "problems"),
    [
        (5, [f": got 5, expected {LIST}"]),
        (None, [f": got None, expected {LIST}"]),
        ("10.0.0.0/8", [f": got '10.0.0.0/8', expected {LIST}"]),
        ({"header": "X", "value": SECRET}, [f": got a table, expected {LIST}"]),
        ([5], [f"[0]: got 5, expected {MEMBER}"]),
        ([None, 1.5], [f"[0]: got None, expected {MEMBER}", f"[1]: got 1.5, expected {MEMBER}"]),
        (["nowhere"], [f"[0]: got 'nowhere', expected {NETWORK}"]),
        (["10.0.0.1/8"],
         ["[0]: got '10.0.0.1/8', which has host bits, expected '10.0.0.0/8', or '10.0.0.1' for that address alone"]),
        (["::ffff:10.0.0.0/8"],
         ["[0]: got '::ffff:10.0.0.0/8', which holds every IPv4 address, expected an IPv4 network: '10.0.0.0/8'"]),
        (["0.0.0.0/0", "::/0", "*"],
         [f"[0]: got '0.0.0.0/0', which is every address, expected {NETWORK}",
          f"[1]: got '::/0', which is every address, expected {NETWORK}",
          f"[2]: got '*', which is every address, expected {NETWORK}"]),
        (["unix:"], [f"[0]: got 'unix:', expected {NETWORK}"]),
        (["10.0.0.0/255.0.0.0"], [f"[0]: got '10.0.0.0/255.0.0.0', expected {NETWORK}"]),
        ([{"header": "X Y", "value": SECRET}],
         ["[0].header: got 'X Y', expected the name of a header such as 'X-Internal-Token'"]),
        ([{"value": SECRET}],
         ["[0].header: got None, expected the name of a header such as 'X-Internal-Token'"]),
        ([{"header": "X", "value": ""}],
         ["[0].value: expected text that is not empty; a client that sends it in that header is on the list"]),
        ([{"header": "X", "value": SECRET.encode()}],
         ["[0].value: expected text that is not empty; a client that sends it in that header is on the list"]),
        ([{"header": "X"}],
         ["[0].value: expected text that is not empty; a client that sends it in that header is on the list"]),
        ([{"header": "X", "valeu": SECRET}], ["[0]: unknown setting `valeu`: did you mean `value`?"]),
        (["call:nowhere:f"],
         [f"[0]: got 'call:nowhere:f', expected {IMPORTABLE}: ModuleNotFoundError: No module named 'nowhere'"]),
        (["10.0.0.0/8", "x", {"header": "", "value": "x"}],
         [f"[1]: got 'x', expected {NETWORK}",
          "[2].header: got '', expected the name of a header such as 'X-Internal-Token'"]),
    ],
)  # fmt: skip
def test_all_wrong_entries_of_a_list_are_reported_at_once(place: str, given: Any, problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(limits=[], **{place: given})
    assert [*caught.value.problems] == [f"{place}{problem}" for problem in problems]
    assert SECRET not in str(caught.value)


async def later(request: object) -> bool:
    return True


@LISTS
def test_async_callable_in_a_list_is_an_error(place: str) -> None:
    message = message_of(limits=[], **{place: [later]})
    assert message == f"{place}[0]: got later, which is async; expected a plain function"


@LISTS
@pytest.mark.promise(10)
@pytest.mark.parametrize(
    "given",
    [
        [{"header": "X-Token", "value": SECRET}],
        ({"header": "X-Token", "value": SECRET},),
        ["10.0.0.0/8", {"header": "X-Token", "value": SECRET}, later],
        [[{"header": "X-Token", "value": SECRET}]],
        [{"header": "X-Token", "value": [SECRET]}],
        [{"header": "X-Token", "value": SECRET}, "junk"],
        [{"header": "X-Token", "value": SECRET, "header2": "x"}],
        {"header": "X-Token", "value": SECRET},
        {"X-Token": SECRET},
    ],
)
def test_a_secret_is_in_no_error(place: str, given: Any) -> None:
    try:
        shown = repr(Settings(limits=[], **{place: given}))
    except ConfigError as error:
        shown = f"{error} {error!r} {error.__cause__!r} {error.problems}"
    assert SECRET not in shown


@LISTS
def test_a_secret_is_not_in_the_repr_of_settings(place: str) -> None:
    given = ["10.0.0.0/8", {"header": "X-Token", "value": SECRET}]
    told = {"limits": [], "key_secret": SECRET, "store": f"redis://:{SECRET}@host:1/0", place: given}
    settings = Settings.of(told, {})
    for shown in (repr(settings), str(settings), f"{settings}", repr([settings])):
        assert SECRET not in shown
        assert f"{place}=['10.0.0.0/8', '***']" in shown
        assert "key_secret='***'" in shown
        assert "store='redis://***'" in shown
    assert SECRET not in repr(settings.__rich_repr__())


@LISTS
@pytest.mark.parametrize("face", FACES)
def test_a_secret_is_in_no_log(
    place: str, face: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_quiet_until", {})

    def raises(request: object) -> bool:
        raise LookupError

    caplog.set_level(logging.DEBUG, "ratelimit_mw")
    caplog.set_level(logging.WARNING, "ratelimit_mw.refusals")  # another test checks these records
    given = [{"header": "X-Token", "value": SECRET}, raises, lambda _: 1]
    where = f"test_client_lists.py:{given[2].__code__.co_firstlineno}:72"  # type: ignore[attr-defined]  # the lambda
    send = FACES[face]({"limits": "1/hour", "store": MemoryStore(clock=Clock()), place: given})
    for value in ("guess", SECRET, "guess"):
        send(Step(headers={"X-Token": value}))
    assert SECRET not in caplog.text
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == [
        f"{place} test_a_secret_is_in_no_log.<locals>.raises: raised an error: the client is not on this list",
        (
            f"{place} test_a_secret_is_in_no_log.<locals>.<lambda> at {where}: returned int instead of True or False: "
            "the client is not on this list"
        ),
    ]


def test_blocked_handshake_is_closed_or_gets_a_403_response() -> None:
    app = asgi.RateLimitMiddleware(App200(), limits="1/hour", blocklist=["192.0.2.1"])
    connect: Mapping[str, Any] = {"type": "websocket.connect"}
    (closed,) = talk(app, WEBSOCKET, dict(connect)).sent
    assert (closed["type"], closed["reason"]) == ("websocket.close", "Forbidden")
    start, _ = talk(app, WEBSOCKET, dict(connect), **OFFERS_HTTP).sent
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 403)


def test_blocked_request_is_refused_without_receiving_or_calling_the_app() -> None:
    app = App200()
    spoken = talk(asgi.RateLimitMiddleware(app, limits="1/hour", blocklist=["192.0.2.1"]), HTTP)
    assert (spoken.receives, app.scopes, spoken.sent[0]["status"]) == (0, [], 403)


def test_blocked_requests_are_not_charged() -> None:
    """The store was not queried, so the whole quota is left."""
    store = MemoryStore(clock=Clock())
    send = FACES["wsgi"]({"limits": "1/hour", "store": store, "blocklist": ["192.0.2.1"]})
    assert [send(Step()).status for _ in range(3)] == [403] * 3
    assert FACES["wsgi"]({"limits": "1/hour", "store": store})(Step()).status == 200
