"""Input of clients is bounded. Tests each figure of docs/explanation/security.md at its bound and beyond."""

import inspect
import re
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from function_calls import function_calls
from ratelimit_mw import Charge, ConfigError, Decision, FixedWindow, MemoryStore, parse
from ratelimit_mw.core import log as notices
from ratelimit_mw.core.identity import bucket_key, encode_part, key_tagger
from ratelimit_mw.core.verdict import verdict_of
from ratelimit_mw.engine import refusal_log as refusals_log
from ratelimit_mw.http.callables import cost_result
from ratelimit_mw.http.client_ip import ClientIPResolver, addresses_in
from ratelimit_mw.http.cookies import Cookies
from ratelimit_mw.http.hosts import Hosts
from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.http.path_index import PathTree, fold
from ratelimit_mw.http.paths import Forms, normal_path
from ratelimit_mw.http.request import as_text
from ratelimit_mw.http.response import headers
from ratelimit_mw.rules.overrides import ActiveOverrides
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import deny_cache, lease
from ratelimit_mw.stores.redis import async_transport, sync_transport

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "security.md"
OURS, CLIENT = "10.0.0.1", "192.0.2.1"


def line(text: str) -> Callable[[str], list[str]]:
    """Return a lookup of headers in which every header has this value."""
    return lambda _: [text]


def an_address(bound: int) -> None:
    assert parse_address("fe80::1%" + "x" * (bound - 8)) is not None
    assert parse_address("fe80::1%" + "x" * (bound - 7)) is None


def a_list(bound: int) -> None:
    for length, last in ((bound, CLIENT), (bound + 1, "None")):
        text = f"{CLIENT},{OURS:>{length - len(CLIENT) - 1}}"
        assert len(text) == length
        assert [str(found) for found in addresses_in(text, "x-forwarded-for")] == [OURS, last]


def entries(bound: int) -> None:
    assert [*addresses_in(CLIENT + "," * (bound - 1), "x-forwarded-for")] == [CLIENT]
    assert [*addresses_in(CLIENT + "," * bound, "x-forwarded-for")] == [None]


def an_entry(bound: int) -> None:
    for length, found in ((bound, CLIENT), (bound + 1, "None")):
        text = f'for={CLIENT};x="{"a" * (length - len(CLIENT) - 9)}"'
        assert len(text) == length
        assert [str(one) for one in addresses_in(text, "forwarded")] == [found]


def proxies(bound: int) -> None:
    finder = ClientIPResolver(["10.0.0.0/8"], "x-forwarded-for")
    for others, found in ((bound - 1, CLIENT), (bound, OURS)):
        assert finder.client_in(OURS, line(", ".join([CLIENT, *[OURS] * others]))) == found
    with pytest.raises(ConfigError):
        ClientIPResolver(bound + 1, "x-forwarded-for")


def remembered_peers(bound: int) -> None:
    assert ClientIPResolver(["10.0.0.0/8"], "x-forwarded-for")._read_peer.cache_info().maxsize == bound


def a_remembered_address(bound: int) -> None:
    overrides, client = ActiveOverrides(), "192.0.2.1"
    tags = overrides.remembered(overrides.tagger(64, key_tagger("", plain=True)))
    for length, kept in ((bound + 1, 0), (bound, 1)):
        assert tags[client.rjust(length)] == (f"{{ip={client}}}" if kept else None)
        assert len(tags) == kept


def remembered_charges(bound: int) -> None:
    compiled = RuleSet(Settings(limits="5/minute"))
    compiled.overrides = ActiveOverrides()
    for number in range(bound):
        compiled.short_way("GET", "/", f"10.0.{number >> 8}.{number & 255}", lambda _: ())
    assert compiled.overrides.groups.count == bound
    compiled.short_way("GET", "/", "192.0.2.1", lambda _: ())
    assert compiled.overrides.groups.count == 1


def cookies(bound: int) -> None:
    for length, found in ((bound, "x"), (bound + 1, None)):
        pair = f"{'a' * (length - 7)}=1; k=x"
        assert len(pair) == length
        assert Cookies([pair]).only("k") == found


def a_value(bound: int) -> None:
    assert encode_part("user", "x" * bound) == f"user={'x' * bound}"
    assert re.fullmatch("user=~[0-9a-f]{64}", encode_part("user", "x" * (bound + 1)))


def an_identity(bound: int) -> None:
    for identity in ("", "user=bob", "x" * 1_000_000):
        assert re.fullmatch(rf"\{{[0-9a-f]{{{bound}}}\}}:rule", bucket_key(identity, "rule"))


def a_number(bound: int) -> None:
    assert as_text(10**bound - 1) == "9" * bound
    assert as_text(10**bound) is None


def a_host(bound: int) -> None:
    hosts = Hosts("host", "example.com")
    assert hosts.match(["a" * bound]) is False
    assert hosts.match(["a" * (bound + 1)]) is None


def a_cost(bound: int) -> None:
    def call(_: Any) -> int:
        return 1

    for answer in (bound, bound + 1, 10**400, 1e300):
        assert cost_result(call, {call: answer}) == bound


def made_limits(bound: int) -> None:
    assert parse("1/minute".ljust(bound)) == parse("1/minute")
    with pytest.raises(ConfigError, match=f"expected at most {bound}"):
        parse("1/minute".ljust(bound + 1))


def named_limits(bound: int) -> None:
    charges = [Charge("{x}:rule", FixedWindow(5, 60, name=f"limit-{number}")) for number in range(bound + 5)]
    verdict = verdict_of(charges, [Decision(True, 5, 4, 0.0, 60.0, 60.0, 0.0, 0)] * (bound + 5))
    for _, value in headers(verdict):
        assert value.count('"limit-') == bound


def states(bound: int) -> None:  # enforced: see tests/stores/test_memory.py
    assert inspect.signature(MemoryStore).parameters["max_keys"].default == bound


def refusals(bound: int) -> None:  # enforced: see tests/stores/test_deny_cache.py
    assert bound == deny_cache._MAX_GROUPS


def leased(bound: int) -> None:  # enforced: see tests/stores/test_lease.py
    assert bound == lease._MAX_ALLOTMENTS


def threads(bound: int) -> None:  # enforced: see tests/stores/test_sync_pool.py
    assert bound == sync_transport._MAX_CONNECTIONS


def tasks(bound: int) -> None:  # enforced: see tests/stores/test_async_transport.py
    assert bound == async_transport._MAX_CONNECTIONS


def a_text(bound: int) -> None:
    assert bound == notices._MAX_LENGTH
    assert notices.printable("x" * bound, bound) == "x" * bound
    assert notices.printable("x" * (bound + 1), bound) == f"{'x' * bound}... ({bound + 1} characters)"


def log_lines(bound: int) -> None:  # enforced: see test_log.py
    assert bound == 60 / notices._INTERVAL


def refusal_lines(bound: int) -> None:  # enforced: see the tests of the log of refusals
    assert bound == refusals_log.MAX_PER_SECOND


ROWS: dict[str, Callable[[int], None]] = {
    "address of the peer, or in a header": an_address,
    "`X-Forwarded-For`, `Forwarded`": a_list,
    "entries of such a list, also empty ones": entries,
    "entry of such a list": an_entry,
    "proxies in a row": proxies,
    "peers that are remembered": remembered_peers,
    "text of an address whose charges are remembered": a_remembered_address,
    "addresses whose charges a process remembers": remembered_charges,
    "all `Cookie` headers": cookies,
    "value of a key, unhashed": a_value,
    "identity in the store": an_identity,
    "number as a key": a_number,
    "Host header": a_host,
    "cost that a callable returns": a_cost,
    "limits that a callable returns as text": made_limits,
    "limits that a response names": named_limits,
    "states in a memory store": states,
    "refusals that a Redis store remembers": refusals,
    "buckets with a lease": leased,
    "connections to a Redis server, for threads": threads,
    "connections to a Redis server, for each event loop": tasks,
    "foreign text in a log line": a_text,
    "log lines on one topic": log_lines,
    "log lines on refused requests, off by default": refusal_lines,
}


def bounds() -> dict[str, int]:
    """Return the bounds that the page lists, by the text of their row."""
    table = PAGE.read_text("utf-8").partition("| what | bound |")[2].partition("\n\n")[0]
    return {what: int(figure) for what, figure in re.findall(r"^\| (.*?) \| (\d+)", table, re.MULTILINE)}


def test_every_row_has_a_test() -> None:
    assert list(bounds()) == list(ROWS)


@pytest.mark.parametrize("what", ROWS)
def test_documented_bound_matches_the_code(what: str) -> None:
    ROWS[what](bounds()[what])


INDEX = PathTree(
    (template, number)
    for number, template in enumerate(
        ("/a/{x}/b/{y}", "/a/{rest:path}", "/{rest:path}/end", "/a/a/{rest:path}/a/a", "/{a}/{b}/{rest:path}/{c}")
    )
)
LONG: dict[str, Callable[[int], object]] = {  # inputs without a bound of their own, by how often a piece is repeated
    "path": lambda times: INDEX.matching_rules("/a" * times),
    "path of slashes": lambda times: INDEX.matching_rules("/" * times),
    "path that ends well": lambda times: INDEX.matching_rules("/a/x" * times + "/end"),
    "normal path": lambda times: normal_path("/a" * times),
    "path of dots": lambda times: normal_path("/a/.." * times),
    "path of double slashes": lambda times: normal_path("//./" * times),
    "path of newlines": lambda times: normal_path("/a\n" * times + "/\n"),
    "forms of a path": lambda times: Forms.of(["//a/../" * times, "a//" * times + "\n"]),
    "folded path": lambda times: fold("\u0130x\u6771" * times),
    "list of addresses": lambda times: [*addresses_in("x," * times, "x-forwarded-for")],
    "list of elements": lambda times: [*addresses_in('for="x",' * times, "forwarded")],
    "quotes": lambda times: [*addresses_in('"' * times, "forwarded")],
    "value": lambda times: encode_part("user", "\xe9" * times),
}


@pytest.mark.parametrize("what", LONG)
def test_steps_grow_at_most_linearly_with_the_input(what: str) -> None:
    once, twice = (function_calls(partial(LONG[what], times)) for times in (4000, 8000))
    assert twice <= 2 * once + 50


def squares(times: int) -> object:
    return [len(str(one)) for one in range(times) for _ in range(times)]


def test_step_count_detects_quadratic_growth() -> None:
    once, twice = (function_calls(partial(squares, times)) for times in (40, 80))
    assert twice > 2 * once + 50


MANY: dict[str, Any] = {
    "limits": "5/minute",
    "rules": [{"path": f"/{n}/{{x}}", "limits": "9/hour", "final": n % 2 == 0} for n in range(40)],
}


def charged(rules: RuleSet, client: str, number: int) -> Sequence[Charge]:
    """Return what a request of this client to one of the rules is charged."""
    way, charges, _ = rules.short_way("GET", f"/{number}/x", client, lambda _: ())
    assert way is not None
    return charges


def test_addresses_of_one_network_share_their_buckets() -> None:
    """An IPv6 address that represents an IPv4 address is treated as that IPv4 address."""
    compiled = RuleSet(Settings(**MANY, app_limits="99/hour"))
    for number in range(40):
        first = charged(compiled, "2001:db8::1", number)
        for other, same in (("2001:db8::ffff:1", True), ("2001:db8:0:1::1", False), ("64:ff9b::1:0:0:1", False)):
            assert (charged(compiled, other, number) == first) is same
        for one in ("::ffff:192.0.2.1", "64:ff9b::192.0.2.1"):
            assert charged(compiled, one, number) == charged(compiled, "192.0.2.1", number)


def test_many_clients_of_many_rules_use_little_memory() -> None:
    """The clients are 20,000 IPv4 addresses and 20,000 IPv6 addresses of one /64, over 40 combinations of rules.

    Each also sends a method of its own.
    """
    compiled = RuleSet(Settings(**MANY, app_limits="99/hour", key_secret="used by this test alone"))
    tracemalloc.start()
    try:
        for number in range(20_000):
            charged(compiled, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", number % 40)
            charged(compiled, f"2001:db8::{number:x}", number % 40)
            assert compiled.short_way(f"M{number:0>9999}", "/1/x", "10.0.0.1", lambda _: ())[0] is None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8 * 1024 * 1024
