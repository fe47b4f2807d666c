"""Tests that no header of a client changes the client address that a trusted proxy forwards."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from profiles import many
from ratelimit_mw.http.client_ip import ClientIPResolver, addresses_in
from ratelimit_mw.http.networks import Address, Networks, parse_address, parse_network

pytestmark = pytest.mark.promise(10)

OURS = ["10.0.0.0/8", "2001:db8:aaaa::/48"]
HEADERS = ("x-forwarded-for", "forwarded")
FINDERS = {header: ClientIPResolver(OURS, header) for header in HEADERS}
COUNTERS = {(header, hops): ClientIPResolver(hops, header) for header in HEADERS for hops in range(1, 6)}

# Junk that a client may write: fragments of valid values, random characters, and one fragment many times. Each junk is
# generated from one number, because drawing each fragment would take longer than parsing it, and many examples are run.
SIGNS = [",", '"', ";", "=", "\\", " ", "\t", ":", "[", "]", "%", '=";', ',"', '="a,b"']
WORDS = ["for=", "For=", 'for="', "by=", "unknown", "_x", "for=198.51.100.66", 'for="[2001:db8::9]"']
ADDRESSES = ["198.51.100.66", "10.0.0.9", "::1", "[2001:db8::1]:80", "::ffff:10.0.0.1", "10.0.0.9:1"]


def piece_from(random: Random) -> str:
    piece = random.choice(random.choice([SIGNS, WORDS, ADDRESSES]))
    kind = random.randrange(10)
    if kind == 0:
        return "".join(chr(random.randrange(256)) for _ in range(random.randrange(20)))
    return piece * random.choice([2, 40, 600, 9000]) if kind == 1 else piece


def junk_from(seed: int) -> str:
    random = Random(seed)  # noqa: S311  # reproducible, and not a secret
    return "".join(piece_from(random) for _ in range(random.randrange(13)))


junk = st.integers(0, 2**32).map(junk_from)
latin = st.text(st.characters(max_codepoint=255), max_size=20)
lines_of_client = st.lists(junk, max_size=3)

ipv4 = st.ip_addresses(v=4).map(str)
ipv6 = st.ip_addresses(v=6).map(str)
ports = st.sampled_from(["", ":0", ":80", ":65535", ":_port"])
zones = st.sampled_from(["", "%eth0", "%25x"])
spelled = st.one_of(
    st.builds("{}{}".format, ipv4, ports),
    st.builds("{}{}".format, ipv6, zones),
    st.builds("[{}{}]{}".format, ipv6, zones, ports),
    st.builds("[{}]{}".format, ipv6.map(lambda text: IPv6Address(text).exploded), ports),
    st.builds("::ffff:{}".format, ipv4),
    st.builds("64:ff9b::{}".format, ipv4),
)
ours = st.one_of(st.ip_addresses(v=4, network=OURS[0]), st.ip_addresses(v=6, network=OURS[1])).map(str)

# Other pairs of an element, as a proxy may write them. A proxy escapes nothing, and lets no client insert a quote.
quoted = st.text(st.sampled_from("ab ,;=.:/"), max_size=8).filter(lambda text: "for=" not in text)
others = st.one_of(
    st.sampled_from(["proto=https", "by=10.0.0.1", 'by="[2001:db8::1]:80"', "by=_hidden", "", "host=example.com"]),
    st.builds('host="{}"'.format, quoted),
    st.builds('ext="{}"'.format, quoted),
)


def element(node: str, before: Sequence[str], after: Sequence[str], name: str, space: str) -> str:
    return f"{space};{space}".join([*before, f'{name}="{node}"', *after])


def elements(nodes: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, str]]:
    """Return a strategy for a node and a Forwarded element that names it."""
    few = st.lists(others, max_size=2)
    shape = st.tuples(nodes, few, few, st.sampled_from(["for", "For", "FOR"]), st.sampled_from(["", " ", "\t"]))
    return shape.map(lambda drawn: (drawn[0], element(*drawn)))


def members(header: str, nodes: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, str]]:
    """Return a strategy for a node and a member of this header that names it."""
    plain = nodes.flatmap(lambda node: st.sampled_from([(node, node), (node, f'"{node}"')]))
    return elements(nodes) if header == "forwarded" else plain


def put_behind(lines: Sequence[str], member: str, how: str) -> list[str]:
    """Return the lines with the member that a proxy adds: after `how` in the last line, or as a new line."""
    return [*lines[:-1], f"{lines[-1]}{how}{member}"] if lines and how else [*lines, member]


def unfolded(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, otherwise the address itself."""
    is_ipv4 = isinstance(address, IPv6Address) and int(address) >> 32 in (0xFFFF, 0x64FF9B << 64)
    return IPv4Address(int(address) & 0xFFFFFFFF) if is_ipv4 else address


def as_text(address: Address | None) -> str | None:
    return None if address is None else str(address)


def spelled_from(random: Random) -> str:
    """Return a random address in one of its valid spellings."""
    ipv4, ipv6 = IPv4Address(random.getrandbits(32)), IPv6Address(random.getrandbits(128))
    port, zone = random.choice(["", ":0", ":65535", ":_port"]), random.choice(["", "%eth0", "%25x"])
    forms = [f"{ipv4}{port}", f"{ipv6}{zone}", f"[{ipv6}{zone}]{port}", f"[{ipv6.exploded}]{port}"]
    return random.choice([*forms, f"::ffff:{ipv4}", f"64:ff9b::{ipv4}"])


def ours_from(random: Random) -> str:
    """Return a random address of a trusted proxy."""
    ipv6 = int(IPv6Address("2001:db8:aaaa::")) + random.getrandbits(80)
    return str(random.choice([IPv4Address((10 << 24) + random.getrandbits(24)), IPv6Address(ipv6)]))


def member_from(random: Random, header: str, node: str) -> str:
    """Return a member of this header that names `node`, as a proxy may write it."""
    if header != "forwarded":
        return random.choice([node, f'"{node}"'])
    quoted = "".join(random.choice("ab ,;=.:/") for _ in range(random.randrange(8)))
    others = ["proto=https", 'by="[2001:db8::1]:80"', "by=_hidden", f'host="{quoted}"', f'ext="{quoted}"']
    before, after = (random.sample(others, random.randrange(3)) for _ in range(2))
    return element(node, before, after, random.choice(["for", "For", "FOR"]), random.choice(["", " ", "\t"]))


@many
@given(st.sampled_from(HEADERS), st.integers(0, 2**64), lines_of_client)
def test_header_values_of_clients_do_not_change_the_forwarded_address(header: str, seed: int, lines: list[str]) -> None:
    random = Random(seed)  # noqa: S311  # reproducible, and not a secret
    node = spelled_from(random)
    client = parse_address(node)
    assert client is not None
    assume(not any(client in ip_network(network) for network in OURS))
    added = put_behind(lines, member_from(random, header, node), random.choice([", ", ",", "", " ,\t", ",,"]))
    proxies = random.randrange(5)
    for _ in range(proxies):
        added = put_behind(added, member_from(random, header, ours_from(random)), random.choice([", ", ",", ""]))
    for received in (added, [",".join(added)]):
        assert FINDERS[header].client_in("10.0.0.1", lambda _, received=received: received) == str(client)  # type: ignore[misc]
        counter = COUNTERS[header, 1 + proxies]
        assert counter.client_in("192.0.2.1", lambda _, received=received: received) == str(client)  # type: ignore[misc]


@many
@given(
    st.sampled_from(HEADERS),
    st.lists(junk, max_size=4),
    st.one_of(st.none(), latin, ours, spelled),
    st.integers(1, 5),
)
def test_junk_headers_resolve_to_the_peer_or_a_valid_address(
    header: str, lines: list[str], peer: str | None, hops: int
) -> None:
    own = as_text(parse_address(peer))
    for finder in (FINDERS[header], COUNTERS[header, hops], ClientIPResolver([*OURS, "unix:"], header)):
        found = finder.client_in(peer, lambda _: lines)
        assert found == finder.client_in(peer, lambda _: lines)
        assert found == own or found == str(ip_address(str(found)))
        if not lines:
            assert found == own


@given(st.lists(junk, max_size=3), ours)
@example(["::1%x", "192.0.2.1"], "10.0.0.1")
def test_x_real_ip_resolves_to_its_only_address_or_the_peer(lines: list[str], peer: str) -> None:
    found = ClientIPResolver(OURS, "x-real-ip").client_in(peer, lambda _: lines)
    named = as_text(parse_address(lines[0])) if len(lines) == 1 else None
    assert found == (named or as_text(parse_address(peer)))
    assert len(lines) == 1 or found == as_text(parse_address(peer))


@given(st.sampled_from(HEADERS), st.data())
def test_well_formed_headers_are_read_from_last_to_first(header: str, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(members(header, spelled), max_size=6))
    text = data.draw(st.sampled_from([", ", ",", " , ,"])).join(member for _, member in drawn)
    assert list(addresses_in(text, header)) == [as_text(parse_address(node)) for node, _ in reversed(drawn)]


@given(st.lists(st.one_of(spelled, spelled, ours, ours, st.sampled_from(["", " ", "unknown", "x"])), max_size=8))
def test_x_forwarded_for_resolution_matches_a_simple_reference(entries: list[str]) -> None:
    expected = "10.0.0.1"
    for entry in reversed([entry for entry in entries if entry.strip()]):
        address = parse_address(entry)
        if address is None:
            expected = "10.0.0.1"
            break
        expected = str(address)
        if not any(address in ip_network(network) for network in OURS):
            break
    assert FINDERS["x-forwarded-for"].client_in("10.0.0.1", lambda _: [",".join(entries)]) == expected


@given(st.ip_addresses())
@example(IPv6Address("::ffff:192.0.2.1"))
@example(IPv6Address("64:ff9b::192.0.2.1"))
@example(IPv6Address("::"))
def test_every_spelling_of_an_address_parses_to_that_address(address: Address) -> None:
    forms = [str(address), address.exploded, str(address).upper(), f" {address}\t"]
    if isinstance(address, IPv6Address):
        forms += [f"[{address}]", f"[{address}]:1", f"{address}%eth0", f"[{address.exploded}%1]:65535"]
    else:
        forms += [f"{address}:1", f"{address}:_x", f"::ffff:{address}", f"64:ff9b::{address}", f"[::FFFF:{address}]:80"]
    assert {parse_address(form) for form in forms} == {unfolded(address)}


@given(st.one_of(latin, junk, st.text(max_size=30), spelled))
def test_parsed_addresses_agree_with_ipaddress_and_round_trip(text: str) -> None:
    found = parse_address(text)
    try:
        known = unfolded(ip_address(text.strip(" \t")))
    except ValueError:
        known = None
    if known is not None and "%" not in text and len(text) <= 64:
        assert found == known
    if found is not None:
        assert len(text) <= 64
        assert parse_address(str(found)) == unfolded(found) == found


Network = IPv4Network | IPv6Network


def unfolded_network(network: Network) -> Network:
    """Return the IPv4 network that an IPv6 network embeds, otherwise the network itself."""
    base = unfolded(network.network_address)
    return network if base == network.network_address else ip_network((base, network.prefixlen - 96))


def assert_same_as_ipaddress(networks: list[Network], address: Address) -> None:
    compiled = Networks(parse_network(str(network)) for network in networks)
    assert (str(address) in compiled) is any(address in unfolded_network(network) for network in networks)


@given(st.lists(st.tuples(st.ip_addresses(), st.integers(1, 128)), max_size=5), st.ip_addresses(), st.data())
def test_networks_contain_the_same_addresses_as_ipaddress(
    drawn: list[tuple[Address, int]], address: Address, data: st.DataObject
) -> None:
    networks = [ip_network((base, min(bits, base.max_prefixlen)), strict=False) for base, bits in drawn]
    assume(not any(IPv6Address(base) in network for base in ("::ffff:0:0", "64:ff9b::") for network in networks))
    if networks:
        inside = st.sampled_from(networks).flatmap(
            lambda network: st.ip_addresses(v=4 if network.version == 4 else 6, network=network)
        )
        address = data.draw(st.one_of(st.just(address), inside))
    assert_same_as_ipaddress(networks, unfolded(address))


@pytest.mark.parametrize(
    ("network", "address", "holds"),
    [
        ("::ffff:64.0.0.0/98", "64.0.0.0", True),
        ("::ffff:64.0.0.0/98", "127.255.255.255", True),
        ("::ffff:64.0.0.0/98", "128.0.0.0", False),
        ("64:ff9b::192.0.2.0/120", "192.0.2.255", True),
        ("64:ff9b::192.0.2.0/120", "192.0.3.0", False),
    ],
)
def test_an_ipv6_network_of_ipv4_addresses_contains_those_ipv4_addresses(
    network: str, address: str, holds: bool
) -> None:
    assert (address in Networks([parse_network(network)])) is holds
    assert_same_as_ipaddress([ip_network(network)], ip_address(address))
