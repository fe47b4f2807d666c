"""The client address comes only from sources that clients cannot forge. All its spellings count as one address."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.http.client_ip import ClientIPResolver, client_address
from ratelimit_mw.http.client_lists import ClientList
from ratelimit_mw.http.networks import Networks, is_ipv4, parse_address, parse_network, shortest
from web.address_cases import ASGI_CASES, CASES, Case

pytestmark = pytest.mark.promise(10)

ROWS: list[tuple[str | None, int, str | None]] = [  # the server's text, the prefix, the counted address
    ("192.0.2.1", 64, "192.0.2.1"),
    ("192.0.2.1", 32, "192.0.2.1"),
    ("0.0.0.0", 64, "0.0.0.0"),  # noqa: S104  # an address like any other here
    ("2001:db8::1", 64, "2001:db8::/64"),
    ("2001:DB8:0:0:ffff::1", 64, "2001:db8::/64"),
    ("2001:db8:0:1::1", 64, "2001:db8:0:1::/64"),
    ("2001:db8:0:1::1", 48, "2001:db8::/48"),
    ("2001:db8:ffff::1", 32, "2001:db8::/32"),
    ("2001:db8::1", 128, "2001:db8::1"),
    ("2001:0db8:0000::0001", 128, "2001:db8::1"),
    ("::1", 64, "::/64"),
    # the IPv6 prefix must not put all IPv4 clients into one network
    ("::ffff:192.0.2.1", 64, "192.0.2.1"),
    ("::FFFF:c000:0201", 64, "192.0.2.1"),
    ("::ffff:192.0.2.1", 32, "192.0.2.1"),
    ("64:ff9b::192.0.2.1", 64, "192.0.2.1"),
    ("64:ff9b::c000:201", 64, "192.0.2.1"),
    ("64:ff9b:1::c000:201", 64, "64:ff9b:1::/64"),  # anyone may use local NAT64 prefixes
    ("2001:db8::192.0.2.1", 64, "2001:db8::/64"),  # ordinary IPv6, written oddly
    ("::192.0.2.1", 64, "::/64"),  # IPv4-compatible, deprecated: not an IPv4 client
    # the client chooses the zone
    ("fe80::1%eth0", 64, "fe80::/64"),
    ("fe80::1%" + "x" * 50, 64, "fe80::/64"),
    ("::ffff:192.0.2.1%1", 64, "192.0.2.1"),
    ("fe80::1%", 128, "fe80::1"),
    (None, 64, None),
    ("", 64, None),
    (" ", 64, None),
    ("unix:", 64, None),
    ("localhost", 64, None),
    ("unknown", 64, None),
    # forwarded addresses as uvicorn before 0.45 passes them on
    ("192.0.2.1:5678", 64, "192.0.2.1"),
    ("192.0.2.1:_hidden", 64, "192.0.2.1"),
    ("[2001:db8::1]", 64, "2001:db8::/64"),
    ("[2001:db8::1]:5678", 64, "2001:db8::/64"),
    ("[fe80::1%eth0]:5678", 128, "fe80::1"),
    ("::1:5678", 128, "::1:5678"),  # not a port: with a port, IPv6 is in brackets
    (" 192.0.2.1\t", 64, "192.0.2.1"),
    ("192.0.2.1:", 64, None),
    ("192.0.2.1:123456", 64, None),
    ("192.0.2.1:80:80", 64, None),
    ("192.0.2.1%1", 64, None),
    ("[192.0.2.1]", 64, None),
    ("[::1", 64, None),
    ("::1]", 64, None),
    ("[]", 64, None),
    ("[::1]80", 64, None),
    ("::ffff:192.0.2.1:80", 64, None),
    ("192.0.2.1, 192.0.2.2", 64, None),
    ("192.0.2.1\n", 64, None),
    ("\xa0192.0.2.1", 64, None),
    ("192.0.2.01", 64, None),
    ("192.0.2", 64, None),
    ("3221225985", 64, None),
    ("0xc0000201", 64, None),
    ("１９２.0.2.1", 64, None),  # noqa: RUF001  # full-width digits
    ("192.0.2.1/32", 64, None),
    ("%", 64, None),
    ("x" * 10_000_000, 64, None),
    ("1" * 65, 64, None),
    ("fe80::1%" + "x" * 57, 64, None),  # 65 characters
    ("::" * 32, 64, None),
    ("\x00", 64, None),
    ("\ud800", 64, None),
]


@pytest.mark.parametrize(("host", "prefix", "counted"), ROWS, ids=[ascii(host)[:40] for host, _, _ in ROWS])
def test_client_address_is_normalized_or_none(host: str | None, prefix: int, counted: str | None) -> None:
    assert client_address(host, prefix) == counted


def test_mapped_ipv4_addresses_are_counted_separately() -> None:
    hosts = [f"::ffff:192.0.{high}.{low}" for high in range(8) for low in range(256)]
    assert len({client_address(host, 64) for host in hosts}) == len(hosts)


def test_ipv6_addresses_of_one_network_count_as_one_client() -> None:
    inside = {client_address(f"2001:db8:0:1:{part:x}::{part:x}", 64) for part in range(1, 500)}
    assert inside == {"2001:db8:0:1::/64"}
    assert client_address("2001:db8:0:2::1", 64) not in inside


def found(case: Case, *, joined: bool) -> str | None:
    def lines(name: str) -> Sequence[str]:
        values = [value for key, value in case.headers if key.lower() == name]
        return [",".join(values)] if values and joined else values

    finder = ClientIPResolver(
        case.settings.get("trusted_proxies", []), case.settings.get("proxy_header", "x-forwarded-for")
    )
    first = finder.client_in(case.peer, lines)
    assert finder.client_in(case.peer, lines) == first  # the cached result is the same
    return client_address(first, 64)


def name_of(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("joined", [False, True], ids=["asgi", "wsgi"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_resolver_finds_the_client_of_each_case(case: Case, joined: bool) -> None:
    assert found(case, joined=joined) == case.client


@pytest.mark.parametrize("case", ASGI_CASES, ids=name_of)
def test_resolver_finds_the_client_of_each_asgi_case(case: Case) -> None:
    assert found(case, joined=False) == case.client


def test_case_names_are_unique() -> None:
    assert len({case.name for case in CASES + ASGI_CASES}) == len(CASES + ASGI_CASES)


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip"])
def test_no_header_is_read_when_the_peer_is_not_trusted(header: str) -> None:
    asked: list[str] = []

    def lines(name: str) -> Sequence[str]:
        asked.append(name)
        return ["192.0.2.1"]

    finder = ClientIPResolver(["10.0.0.0/8"], header)
    for peer in ("192.0.2.9", "::1", None, "", "testclient", "1" * 1000):
        finder.client_in(peer, lines)
    assert asked == []
    finder.client_in("10.0.0.1", lines)
    assert asked == [header]


def test_resolver_returns_the_whole_address_in_one_spelling() -> None:
    finder = ClientIPResolver(["10.0.0.0/8"], "X-Forwarded-For")
    for written in ("2001:db8::1", "2001:DB8:0::0001", "[2001:db8::1]:80", '"[2001:db8::1%x]"'):
        assert finder.client_in("10.0.0.1", lambda _, written=written: [written]) == "2001:db8::1"  # type: ignore[misc]


def test_address_caches_are_bounded() -> None:
    finder = ClientIPResolver(["10.0.0.0/8"], "x-forwarded-for")
    for number in range(6000):
        text = f"192.0.{number >> 8}.{number & 255}"
        assert finder.client_in("10.0.0.1", lambda _, text=text: [text]) == text  # type: ignore[misc]
        assert finder.client_in("10.0.0.1", lambda _, text=text: [f"{text}:80"]) == text  # type: ignore[misc]
        assert finder.client_in("10.0.0.1", lambda _, text=text: [" " * 600 + text]) == text  # type: ignore[misc]
        assert finder.client_in(text, lambda _: []) == text
        assert finder.client_in(text + " " * 60, lambda _: []) is None
    own = finder._read_peer.cache_info()
    assert (own.currsize, own.hits + own.misses) == (4096, 24_000)  # long peers are uncached


NETWORK = "a network such as '10.0.0.0/8' or an address such as '192.0.2.1'"
WRONG_NETWORKS: list[tuple[object, str]] = [
    (5, f"got 5, expected {NETWORK}, as text"),
    (None, f"got None, expected {NETWORK}, as text"),
    (ip_address("10.0.0.1"), f"got IPv4Address('10.0.0.1'), expected {NETWORK}, as text"),
    (b"10.0.0.0/8", f"got b'10.0.0.0/8', expected {NETWORK}, as text"),
    ("", f"got '', expected {NETWORK}"),
    ("*", f"got '*', which is every address, expected {NETWORK}"),
    ("0.0.0.0/0", f"got '0.0.0.0/0', which is every address, expected {NETWORK}"),
    ("10.0.0.0/0", f"got '10.0.0.0/0', which is every address, expected {NETWORK}"),
    ("::/0", f"got '::/0', which is every address, expected {NETWORK}"),
    ("::ffff:0:0/96", f"got '::ffff:0:0/96', which is every address, expected {NETWORK}"),
    ("64:ff9b::/96", f"got '64:ff9b::/96', which is every address, expected {NETWORK}"),
    # CVE-2026-90711
    (
        "::ffff:10.0.0.0/8",
        "got '::ffff:10.0.0.0/8', which holds every IPv4 address, expected an IPv4 network: '10.0.0.0/8'",
    ),
    (
        "::ffff:10.0.0.1/24",
        "got '::ffff:10.0.0.1/24', which holds every IPv4 address, expected an IPv4 network: '10.0.0.0/24'",
    ),
    (
        "::ffff:0:0/95",
        "got '::ffff:0:0/95', which holds every IPv4 address, expected an IPv4 network: '10.0.0.0/8'",
    ),
    (
        "::ffff:0:0/0",
        "got '::ffff:0:0/0', which holds every IPv4 address, expected an IPv4 network: '10.0.0.0/8'",
    ),
    (
        "64:ff9b::10.0.0.0/8",
        "got '64:ff9b::10.0.0.0/8', which holds every IPv4 address, expected an IPv4 network: '10.0.0.0/8'",
    ),
    (
        "10.0.0.1/8",
        "got '10.0.0.1/8', which has host bits, expected '10.0.0.0/8', or '10.0.0.1' for that address alone",
    ),
    (
        "2001:db8::1/32",
        "got '2001:db8::1/32', which has host bits, expected '2001:db8::/32', or '2001:db8::1' for that address alone",
    ),
    (
        "::ffff:10.0.0.1/104",
        "got '::ffff:10.0.0.1/104', which has host bits, expected '10.0.0.0/8', or '10.0.0.1' for that address alone",
    ),
    ("fe80::1%eth0", "got 'fe80::1%eth0', expected 'fe80::1', without a zone"),
    ("fe80::%eth0/64", "got 'fe80::%eth0/64', expected 'fe80::/64', without a zone"),
    ("10.0.0.0/33", f"got '10.0.0.0/33', expected {NETWORK}"),
    ("10.0.0.0/-1", f"got '10.0.0.0/-1', expected {NETWORK}"),
    ("10.0.0.0/", f"got '10.0.0.0/', expected {NETWORK}"),
    ("10.0.0.0/8/8", f"got '10.0.0.0/8/8', expected {NETWORK}"),
    ("10.0.0.0/255.0.0.0", f"got '10.0.0.0/255.0.0.0', expected {NETWORK}"),
    ("10.0.0.0/0.0.0.255", f"got '10.0.0.0/0.0.0.255', expected {NETWORK}"),
    ("10.0.0", f"got '10.0.0', expected {NETWORK}"),
    ("10.0.0.0/8 ", f"got '10.0.0.0/8 ', expected {NETWORK}"),
    ("10.0.0.0/８", f"got '10.0.0.0/８', expected {NETWORK}"),  # noqa: RUF001  # full-width
    ("10.0.0.1:80", f"got '10.0.0.1:80', expected {NETWORK}"),
    ("[::1]", f"got '[::1]', expected {NETWORK}"),
    ("localhost", f"got 'localhost', expected {NETWORK}"),
    ("unix", f"got 'unix', expected {NETWORK}"),
    ("10.0.0.0-10.0.0.9", f"got '10.0.0.0-10.0.0.9', expected {NETWORK}"),
    ("1" * 5000, f"got '{'1' * 99}, expected {NETWORK}"),
]


@pytest.mark.parametrize(("value", "message"), WRONG_NETWORKS, ids=[ascii(value)[:40] for value, _ in WRONG_NETWORKS])
def test_wrong_networks_raise_an_error_with_the_fix(value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_network(value)
    assert str(caught.value) == message
    if isinstance(value, str):
        with pytest.raises(ConfigError) as caught:
            ClientList("safelist", ["10.0.0.0/8", value])
        assert str(caught.value) == f"safelist[1]: {message}"
    with pytest.raises(ConfigError) as caught:
        ClientIPResolver(["unix:", value], "forwarded")  # the index counts 'unix:' too
    allowed = message.replace(NETWORK, f"{NETWORK} or 'unix:'")
    assert str(caught.value) == f"trusted_proxies[1]: {allowed}"


def test_unix_is_an_error_in_a_safelist() -> None:
    with pytest.raises(ConfigError, match=r"safelist\[0\]: got 'unix:'"):
        ClientList("safelist", ["unix:"])


@pytest.mark.parametrize("value", [0, -1, 33, 10**30, True, False, None, 1.0, "1", "10.0.0.0/8", {"10.0.0.0/8"}])
def test_wrong_trusted_proxies_raise_an_error(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientIPResolver(value, "x-forwarded-for")
    assert str(caught.value) == (
        f"trusted_proxies: got {value!r}, expected a list such as ['10.0.0.0/8', 'unix:'], "
        "or a number of proxies from 1 to 32"
    )


def test_number_of_proxies_needs_a_header_with_a_list() -> None:
    with pytest.raises(ConfigError) as caught:
        ClientIPResolver(1, "X-Real-IP")
    assert str(caught.value) == (
        "trusted_proxies: got 1 with proxy_header 'x-real-ip', expected a list such as ['10.0.0.0/8']: "
        "a number counts the members of x-forwarded-for or forwarded"
    )


@pytest.mark.parametrize("name", ["", " ", "x real ip", "x-real-ip:", "x-real-ip\n", "x\xe9", "a,b", None, 5, b"x"])
def test_wrong_proxy_header_names_raise_an_error(name: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientIPResolver(["10.0.0.0/8"], name)
    assert str(caught.value) == (
        f"proxy_header: got {name!r}, expected x-forwarded-for, forwarded, or the name of a header with a single "
        "address, without '_', which WSGI cannot tell from '-'"
    )


def test_proxy_header_name_with_underscores_raises_an_error_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"got 'X_Forwarded_For', .* \('X-Forwarded-For'\?\)$"):
        ClientIPResolver(["10.0.0.0/8"], "X_Forwarded_For")


HELD = ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "fe80::1", "::ffff:172.16.0.0/108", "64:ff9b::198.51.100.0/120"]


@pytest.mark.parametrize(
    ("address", "held"),
    [
        ("10.0.0.0", True),
        ("10.255.255.255", True),
        ("11.0.0.0", False),
        ("9.255.255.255", False),
        ("192.0.2.1", True),
        ("192.0.2.0", False),
        ("192.0.2.2", False),
        ("2001:db8::", True),
        ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", True),
        ("2001:db9::", False),
        ("fe80::1", True),
        ("fe80::2", False),
        ("172.31.255.255", True),
        ("172.32.0.0", False),
        ("198.51.100.255", True),
        ("198.51.101.0", False),
        ("::ffff:10.0.0.1", True),
        ("::ffff:11.0.0.1", False),
        ("64:ff9b::10.0.0.1", True),
        ("::10.0.0.1", False),
        ("0.0.0.0", False),  # noqa: S104  # an address like any other here
        ("::", False),
    ],
)
def test_networks_contain_exactly_their_addresses(address: str, held: bool) -> None:
    networks = Networks(map(parse_network, HELD))
    short = shortest(address)
    assert short is not None
    assert (short in networks) is held
    assert short not in Networks([])


@pytest.mark.parametrize(
    ("text", "short"),
    [(text, True) for text in ("192.0.2.7", "1.0.0.0", "255.255.255.255")]
    + [
        (text, False)
        for text in ("256.0.2.1", "192.0.2.01", "192.0.2", "192.0.2.1.5", "1", " 192.0.2.1", "192.0.2.1\n", "")
    ]
    + [(text, False) for text in ("192.0.2.1:80", "192.0.2.1, 192.0.2.2", "::ffff:192.0.2.1", "192.0.2.\u0661")],
)
def test_is_ipv4_accepts_only_plain_dotted_addresses(text: str, *, short: bool) -> None:
    assert bool(is_ipv4(text)) is short


TEXTS = (
    st.from_regex(r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}", fullmatch=True)
    | st.ip_addresses(v=4).map(str)
    | st.text(max_size=20)
)


@pytest.mark.promise(10)
@given(TEXTS)
def test_plain_ipv4_addresses_are_read_as_the_parser_reads_them(text: str) -> None:
    assert not is_ipv4(text) or str(parse_address(text)) == text
    for proxies, header in ((["10.0.0.0/8"], "x-forwarded-for"), (1, "x-forwarded-for"), (2, "x-forwarded-for"),
                            (["10.0.0.0/8"], "x-real-ip"), (["10.0.0.0/8"], "forwarded")):  # fmt: skip
        finder = ClientIPResolver(proxies, header)
        for value in (text, f"10.{text}", f"{text}, 10.0.0.7"):
            # with a space in front, it is not read as an address alone
            bare, parsed = (
                finder.client_in("10.0.0.1", lambda _, line=line: [line])  # type: ignore[misc]
                for line in (value, f" {value}")
            )
            assert bare == parsed
