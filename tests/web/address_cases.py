"""Requests as a server passes them on, and the client address that each counts for (ipv6_prefix 64).

WSGI servers join the lines of a header with `,` and ASGI servers keep them apart: a row of CASES has the same result
in both. The rows of ASGI_CASES are only for ASGI.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

Lines = tuple[tuple[str, str], ...]


class Case(NamedTuple):
    name: str
    settings: Mapping[str, Any]  # trusted_proxies and proxy_header, where they are not the default
    peer: str | None
    headers: Lines  # in the order of the request
    client: str | None  # the address under which the request is counted; None if it is unknown


OWN, OWN2, OWN6 = "10.0.0.1", "10.0.0.2", "2001:db8:aaaa::1"  # trusted proxies
CLIENT, FORGED, STRANGER = "203.0.113.9", "198.51.100.66", "192.0.2.77"
WIDE = 9000  # more characters than are read

NONE: Mapping[str, Any] = {}
LIST: Mapping[str, Any] = {"trusted_proxies": ["10.0.0.0/8", "2001:db8:aaaa::/48"]}
UNIX: Mapping[str, Any] = {"trusted_proxies": ["unix:"]}
UNIX_AND_LIST: Mapping[str, Any] = {"trusted_proxies": ["unix:", "10.0.0.0/8"]}
ONE, TWO, THREE = ({"trusted_proxies": hops} for hops in (1, 2, 3))
FORWARDED: Mapping[str, Any] = {**LIST, "proxy_header": "forwarded"}
FORWARDED_TWO: Mapping[str, Any] = {**TWO, "proxy_header": "Forwarded"}
CLOUDFLARE: Mapping[str, Any] = {**LIST, "proxy_header": "CF-Connecting-IP"}
REAL_IP: Mapping[str, Any] = {**LIST, "proxy_header": "x-real-ip"}


def xff(*lines: str) -> Lines:
    return tuple(("X-Forwarded-For", line) for line in lines)


def fwd(*lines: str) -> Lines:
    return tuple(("Forwarded", line) for line in lines)


def cf(*lines: str) -> Lines:
    return tuple(("CF-Connecting-IP", line) for line in lines)


def for_each(prefix: str, settings: Mapping[str, Any], rows: list[tuple[str, Lines, str | None]]) -> list[Case]:
    """Return cases that differ only in their header lines, behind a trusted proxy."""
    return [Case(f"{prefix}: {name}", settings, OWN, lines, client) for name, lines, client in rows]


CASES = [
    # the peer is not trusted: headers are ignored
    Case("peer", NONE, CLIENT, (), CLIENT),
    Case("peer, IPv6", NONE, "2001:db8:1:2:3::4", (), "2001:db8:1:2::/64"),
    Case("peer with a port, uvicorn before 0.45", NONE, f"{CLIENT}:5678", (), CLIENT),
    Case("peer in brackets with a port", NONE, "[2001:db8::1]:5678", (), "2001:db8::/64"),
    Case("peer with a zone", NONE, "fe80::1%eth0", (), "fe80::/64"),
    Case("peer is no address", NONE, "testclient", xff(FORGED), None),
    Case("peer is waitress on a unix socket", UNIX, "localhost", xff(FORGED), None),
    Case("peer is garbage, uvicorn before 0.45", LIST, "unknown", xff(FORGED), None),
    Case("peer is a megabyte", LIST, "1" * 1_000_000, xff(FORGED), None),
    Case("peer is none, nothing trusted", NONE, None, xff(FORGED), None),
    Case("peer is none, networks trusted", LIST, None, xff(FORGED), None),
    Case("CVE-2025-59152 Litestar: X-Forwarded-For without a proxy", NONE, CLIENT, xff(FORGED), CLIENT),
    Case("CVE-2025-46814 fastapi-guard: injected X-Forwarded-For", LIST, CLIENT, xff(f"127.0.0.1, {OWN}"), CLIENT),
    Case("CVE-2026-118653 Echo: X-Real-IP without a proxy", NONE, CLIENT, (("X-Real-IP", FORGED),), CLIENT),
    Case("CVE-2026-118653 Echo: both headers", NONE, CLIENT, (*xff(FORGED), ("X-Real-IP", FORGED)), CLIENT),
    Case("CVE-2026-23848 MyTube: a private address is claimed", NONE, CLIENT, xff("127.0.0.1"), CLIENT),
    Case("CVE-2026-108162 Pingvin: a list is claimed", NONE, CLIENT, xff(f"{FORGED}, {STRANGER}"), CLIENT),
    Case("asgi-ratelimit: a private peer is no proxy", NONE, "192.168.1.5", (("X-Real-IP", FORGED),), "192.168.1.5"),
    Case("asgi-ratelimit: loopback is no proxy", NONE, "127.0.0.1", xff(FORGED), "127.0.0.1"),
    Case("uvicorn's default: ::1 is no proxy", NONE, "::1", xff(FORGED), "::/64"),
    Case("Forwarded without a proxy", {"proxy_header": "forwarded"}, CLIENT, fwd(f"for={FORGED}"), CLIENT),
    Case("CF-Connecting-IP without a proxy", {"proxy_header": "cf-connecting-ip"}, CLIENT, cf(FORGED), CLIENT),
    Case("CF-Connecting-IP past the proxy", CLOUDFLARE, CLIENT, cf(FORGED), CLIENT),
    Case("Forwarded past the proxy", FORWARDED, CLIENT, fwd(f"for={FORGED}"), CLIENT),
    # which peers are trusted
    Case("first address of the network", LIST, "10.0.0.0", xff(CLIENT), CLIENT),
    Case("last address of the network", LIST, "10.255.255.255", xff(CLIENT), CLIENT),
    Case("one below the network", LIST, "9.255.255.255", xff(FORGED), "9.255.255.255"),
    Case("one above the network", LIST, "11.0.0.0", xff(FORGED), "11.0.0.0"),
    Case("IPv6 proxy", LIST, OWN6, xff(CLIENT), CLIENT),
    Case("one above the IPv6 network", LIST, "2001:db8:aaab::", xff(FORGED), "2001:db8:aaab::/64"),
    Case("IPv6 that ends like the IPv4 network", LIST, "2001:db8::10.0.0.1", xff(FORGED), "2001:db8::/64"),
    Case("CVE-2026-39409 Hono: the proxy as a mapped address", LIST, f"::ffff:{OWN}", xff(CLIENT), CLIENT),
    Case("CVE-2026-39409 Hono: mapped, in hexadecimal", LIST, "::ffff:a00:1", xff(CLIENT), CLIENT),
    Case("CVE-2026-90711 proxy-addr: mapped strangers", LIST, f"::ffff:{STRANGER}", xff(FORGED), STRANGER),
    Case(
        "CVE-2026-92395 @fastify/proxy-addr: a mapped network is its IPv4 network",
        {"trusted_proxies": ["::ffff:10.0.0.0/104"]},
        OWN,
        xff(CLIENT),
        CLIENT,
    ),
    Case(
        "CVE-2026-92395 @fastify/proxy-addr: and no other",
        {"trusted_proxies": ["::ffff:10.0.0.0/104"]},
        STRANGER,
        xff(FORGED),
        STRANGER,
    ),
    Case("the proxy behind NAT64", LIST, "64:ff9b::a00:1", xff(CLIENT), CLIENT),
    Case("the proxy with a port", LIST, f"{OWN}:443", xff(CLIENT), CLIENT),
    Case("one address is trusted", {"trusted_proxies": [OWN]}, OWN, xff(CLIENT), CLIENT),
    Case("its neighbour is not", {"trusted_proxies": [OWN]}, OWN2, xff(FORGED), OWN2),
    Case("several networks", {"trusted_proxies": ["172.16.0.0/12", "10.0.0.0/8"]}, "172.31.9.9", xff(CLIENT), CLIENT),
    Case("an empty list", {"trusted_proxies": []}, OWN, xff(FORGED), OWN),
    # unix sockets
    Case("unix: the peer without an address", UNIX, None, xff(CLIENT), CLIENT),
    Case("unix: WSGI writes it empty", UNIX, "", xff(CLIENT), CLIENT),
    Case("unix: no header", UNIX, None, (), None),
    Case("unix: junk", UNIX, None, xff("unknown"), None),
    Case("unix: an address is no unix socket", UNIX, CLIENT, xff(FORGED), CLIENT),
    Case("unix: the rightmost", UNIX, None, xff(f"{FORGED}, {CLIENT}"), CLIENT),
    Case("unix: and a proxy before it", UNIX_AND_LIST, None, xff(f"{FORGED}, {CLIENT}, {OWN}"), CLIENT),
    Case("unix: Forwarded", {**UNIX, "proxy_header": "forwarded"}, None, fwd(f"for={CLIENT}"), CLIENT),
    Case("unix: single", {**UNIX, "proxy_header": "x-real-ip"}, None, (("x-real-ip", CLIENT),), CLIENT),
    Case("unix: counted hops", ONE, None, xff(f"{FORGED}, {CLIENT}"), CLIENT),
    Case("unix: counted hops, no header", ONE, None, (), None),
    # X-Forwarded-For: the entry that counts
    *for_each(
        "xff",
        LIST,
        [
            ("one", xff(CLIENT), CLIENT),
            ("fastapi-limiter: rightmost, not leftmost", xff(f"{FORGED}, {CLIENT}"), CLIENT),
            ("CVE-2026-110724 api-gateway: leftmost is anyone's", xff(f"{FORGED},{STRANGER},{CLIENT}"), CLIENT),
            ("CVE-2026-110726 api-gateway: a trusted leftmost", xff(f"{OWN2}, {CLIENT}"), CLIENT),
            ("CVE-2026-11922 ZenML: rotated leftmost", xff(f"198.51.100.67, {CLIENT}"), CLIENT),
            ("our proxies are stepped over", xff(f"{FORGED}, {CLIENT}, {OWN2}, 10.9.9.9"), CLIENT),
            ("both families are stepped over", xff(f"{FORGED}, {CLIENT}, {OWN6}, {OWN2}"), CLIENT),
            ("a mapped proxy is stepped over", xff(f"{FORGED}, {CLIENT}, ::ffff:{OWN2}"), CLIENT),
            ("a proxy further left is not reached", xff(f"{OWN2}, {FORGED}, {CLIENT}, {OWN2}"), CLIENT),
            ("all are ours: the leftmost", xff(f"10.3.3.3, {OWN2}"), "10.3.3.3"),
            ("none", (), OWN),
            ("another header", (("X-Forwarded-Host", FORGED), ("X-Real-IP", FORGED)), OWN),
            ("Forwarded is not this one", fwd(f"for={FORGED}"), OWN),
            ("name in capitals", (("X-FORWARDED-FOR", CLIENT),), CLIENT),
            ("two lines are one list", xff(FORGED, CLIENT), CLIENT),
            ("uvicorn before 0.48: the last line is ours", xff(f"{FORGED}, {STRANGER}", CLIENT, OWN2), CLIENT),
            ("lines among others", (*xff(FORGED), ("X-A", "1"), *xff(CLIENT)), CLIENT),
            ("an empty last line", xff(CLIENT, ""), CLIENT),
            ("an empty first line", xff("", CLIENT), CLIENT),
            ("empty", xff(""), OWN),
            ("nothing but commas", xff(",, ,\t,"), OWN),
            ("empty members at the end", xff(f"{FORGED}, {CLIENT}, ,,"), CLIENT),
            ("empty members between", xff(f"{FORGED}, , {CLIENT},, {OWN2}"), CLIENT),
            ("a comma in front, nginx after an empty line", xff(f", {CLIENT}"), CLIENT),
            ("32 entries", xff(", ".join([CLIENT, *[OWN2] * 31])), CLIENT),
            ("33 entries are too many", xff(", ".join([FORGED, *[OWN2] * 32])), OWN),
            ("a thousand to the left", xff(f"{FORGED}," * 1000 + CLIENT), CLIENT),
            ("all are ours, a thousand", xff(", ".join([OWN2] * 1000)), OWN),
            ("two hundred empty members", xff(CLIENT + "," * 200), CLIENT),
            ("a thousand empty members are too many", xff(FORGED + "," * 1000), OWN),
            ("a thousand lines", xff(*[FORGED] * 1000, CLIENT), CLIENT),
            ("a megabyte to the left", xff("x" * 1_000_000 + f", {CLIENT}"), CLIENT),
            ("a megabyte of commas to the left", xff("," * 1_000_000 + CLIENT), CLIENT),
            ("a megabyte of quotes to the left", xff('"' * 1_000_001 + f", {CLIENT}"), CLIENT),
            ("a megabyte", xff("1" * 1_000_000), OWN),
            ("further right than is looked at", xff(FORGED + "," * WIDE), OWN),
            ("cut where it is looked at", xff(f"1{FORGED},{OWN2:>{8192 - len(FORGED) - 1}}"), OWN),
            ("not cut", xff(f"{FORGED},{CLIENT},{OWN2:>8000}"), CLIENT),
            ("our own, and more than is looked at", xff("," * 300 + OWN2), OWN),
            # forms
            ("IPv6", xff("2001:db8:1:2::3"), "2001:db8:1:2::/64"),
            ("IPv6 in capitals", xff("2001:DB8:1:2::3"), "2001:db8:1:2::/64"),
            ("IPv6 in full", xff("2001:0db8:0001:0002:0000:0000:0000:0003"), "2001:db8:1:2::/64"),
            ("express-rate-limit 8: an IPv6 client's next address", xff("2001:db8:1:2:ffff::"), "2001:db8:1:2::/64"),
            ("IPv4 with a port, Azure and AWS", xff(f"{CLIENT}:50123"), CLIENT),
            ("IPv6 in brackets with a port, AWS", xff("[2001:db8:1:2::3]:50123"), "2001:db8:1:2::/64"),
            ("IPv6 in brackets", xff("[2001:db8:1:2::3]"), "2001:db8:1:2::/64"),
            ("quoted", xff(f'"{CLIENT}"'), CLIENT),
            ("quoted with port and brackets", xff('"[2001:db8:1:2::3]:80"'), "2001:db8:1:2::/64"),
            ("tabs and spaces", xff(f"{FORGED} \t,\t {CLIENT}  "), CLIENT),
            ("a port on our proxy", xff(f"{FORGED}, {CLIENT}:1, {OWN2}:443"), CLIENT),
            ("CVE-2026-30827 express-rate-limit: mapped is IPv4", xff("::ffff:1.2.3.4"), "1.2.3.4"),
            ("django-ratelimit 4.1.0: and another one", xff("::ffff:9.9.9.9"), "9.9.9.9"),
            ("CVE-2026-39409 Hono: mapped, in hexadecimal", xff("::ffff:cb00:7109"), CLIENT),
            ("GHSA-5847-rm3g-23mw OpenClaw: mapped, in full", xff("0:0:0:0:0:FFFF:203.0.113.9"), CLIENT),
            ("mapped in brackets with a port", xff(f"[::ffff:{CLIENT}]:80"), CLIENT),
            ("mapped with a zone", xff(f"::ffff:{CLIENT}%1"), CLIENT),
            ("NAT64", xff("64:ff9b::203.0.113.9"), CLIENT),
            ("express 8.6.2: no mapped address", xff("2001:db8::1.2.3.4"), "2001:db8::/64"),
            ("a zone", xff("fe80::1%eth0"), "fe80::/64"),
            ("another zone is the same client", xff("fe80::1%" + "x" * 40), "fe80::/64"),
            ("a zone in brackets", xff("[fe80::1%25eth0]:80"), "fe80::/64"),
            # if the entry that decides is invalid, the peer is counted
            ("unknown", xff("unknown"), OWN),
            ("unknown from our proxy, no further", xff(f"{FORGED}, unknown"), OWN),
            ("junk behind our own proxy", xff(f"{FORGED}, junk, {OWN2}"), OWN),
            ("junk to the left does not matter", xff(f"unknown, junk, {CLIENT}"), CLIENT),
            ("an obfuscated name", xff("_hidden"), OWN),
            ("a host name", xff(f"{FORGED}, evil.example"), OWN),
            ("two with a space between", xff(f"{FORGED} {CLIENT}"), OWN),
            ("with a semicolon", xff(f"{FORGED};{CLIENT}"), OWN),
            ("leading zeros", xff("203.0.113.09"), OWN),
            ("as one number", xff("3405803785"), OWN),
            ("in hexadecimal", xff("0xcb007109"), OWN),
            ("three parts", xff("203.0.113"), OWN),
            ("over 255", xff("203.0.113.256"), OWN),
            ("a network", xff("203.0.113.0/24"), OWN),
            ("a port that is none", xff(f"{CLIENT}:http"), OWN),
            ("an empty port", xff(f"{CLIENT}:"), OWN),
            ("a port of six digits", xff(f"{CLIENT}:123456"), OWN),
            ("IPv4 in brackets", xff(f"[{CLIENT}]"), OWN),
            ("IPv4 with a zone", xff(f"{CLIENT}%1"), OWN),
            ("one bracket", xff("[2001:db8::1"), OWN),
            ("behind the bracket", xff("[2001:db8::1]x"), OWN),
            ("one quote", xff(f'"{CLIENT}'), OWN),
            ("nothing in quotes", xff('""'), OWN),
            ("a quote is no quote here", xff(f'"{FORGED}, {CLIENT}'), CLIENT),
            ("a line feed", xff(f"{CLIENT}\n"), OWN),
            ("a null", xff(f"{CLIENT}\x00"), OWN),
            ("latin-1", xff("203.0.113.\xb2"), OWN),
            ("65 characters", xff("fe80::1%" + "x" * 57), OWN),
            *((f"a zone with {sign!r}", xff(f"fe80::1%a{sign}b"), OWN) for sign in '"[]; \t\\'),
            ("600 characters", xff("1" * 600), OWN),
        ],
    ),
    # trusted_proxies as a number
    Case("hops: 1 is the rightmost", ONE, OWN, xff(f"{FORGED}, {STRANGER}, {CLIENT}"), CLIENT),
    Case("hops: 1, whoever the peer is", ONE, STRANGER, xff(f"{FORGED}, {CLIENT}"), CLIENT),
    Case("hops: 1, over lines", ONE, OWN, xff(FORGED, CLIENT), CLIENT),
    Case("hops: 1, an address of our network is no proxy", ONE, OWN, xff(f"{FORGED}, {OWN2}"), OWN2),
    Case("hops: 2", TWO, OWN, xff(f"{FORGED}, {CLIENT}, {OWN2}"), CLIENT),
    Case("hops: 3", THREE, OWN, xff(f"{FORGED}, {CLIENT}, {OWN2}, {OWN2}"), CLIENT),
    Case("hops: 2, but one entry", TWO, OWN, xff(FORGED), OWN),
    Case("hops: 2, but one entry and empty ones", TWO, OWN, xff(f",, {FORGED}, ,"), OWN),
    Case("hops: empty members are none", TWO, OWN, xff(f"{FORGED}, {CLIENT}, ,, {OWN2},"), CLIENT),
    Case("hops: no header", TWO, OWN, (), OWN),
    Case("hops: junk where it is decided", TWO, OWN, xff(f"{FORGED}, junk, {OWN2}"), OWN),
    Case("hops: junk in front of it counts", TWO, OWN, xff(f"{FORGED}, {CLIENT}, unknown"), CLIENT),
    Case("hops: a quote in front of it is no quote", TWO, OWN, xff(f'{FORGED}, {CLIENT}, "x'), CLIENT),
    Case("hops: overlong in front of it counts", TWO, OWN, xff(f"{CLIENT}, {'x' * 600}"), CLIENT),
    Case("hops: 32", {"trusted_proxies": 32}, OWN, xff(", ".join([FORGED, CLIENT, *[OWN2] * 31])), CLIENT),
    Case("hops: a megabyte to the left", TWO, OWN, xff("," * 1_000_000 + f"{CLIENT}, {OWN2}"), CLIENT),
    Case("hops: further right than is looked at", TWO, OWN, xff(f"{FORGED}{',' * WIDE}{OWN2}"), OWN),
    Case("hops: Forwarded", FORWARDED_TWO, OWN, fwd(f"for={FORGED}, for={CLIENT}, for={OWN2}"), CLIENT),
    Case("hops: Forwarded, an element without for counts", FORWARDED_TWO, OWN, fwd(f"for={CLIENT}, by={OWN}"), CLIENT),
    Case("hops: the peer is no address", TWO, "testclient", xff(FORGED), None),
    Case("hops: the peer is a megabyte", ONE, "1" * 1_000_000, xff(CLIENT), CLIENT),
    Case("hops: the peer is a megabyte, no header", ONE, "1" * 1_000_000, (), None),
    # Forwarded, RFC 7239
    *for_each(
        "forwarded",
        FORWARDED,
        [
            ("one", fwd(f"for={CLIENT}"), CLIENT),
            ("all parameters", fwd(f"by={OWN};for={CLIENT};host=example.com;proto=https"), CLIENT),
            ("the RFC's own example", fwd('For="[2001:db8:cafe::17]:4711"'), "2001:db8:cafe::/64"),
            ("name in capitals", fwd(f"FOR={CLIENT}"), CLIENT),
            ("header name in capitals", (("FORWARDED", f"for={CLIENT}"),), CLIENT),
            ("X-Forwarded-For is not this one", (*xff(FORGED), *fwd(f"for={CLIENT}")), CLIENT),
            ("X-Forwarded-For alone", xff(FORGED), OWN),
            ("quoted", fwd(f'for="{CLIENT}"'), CLIENT),
            ("with a port", fwd(f'for="{CLIENT}:4711"'), CLIENT),
            ("with a hidden port", fwd(f'for="{CLIENT}:_port"'), CLIENT),
            ("mapped, CVE-2026-30827", fwd(f'for="[::ffff:{CLIENT}]"'), CLIENT),
            ("IPv6 without quotes", fwd("for=[2001:db8:1:2::3]:80"), "2001:db8:1:2::/64"),
            ("spaces around semicolons", fwd(f"proto=https ; for={CLIENT} ; by={OWN}"), CLIENT),
            ("semicolons at the ends", fwd(f";for={CLIENT};;"), CLIENT),
            ("rightmost", fwd(f"for={FORGED}, for={CLIENT}"), CLIENT),
            ("our proxies are stepped over", fwd(f'for={FORGED}, for={CLIENT}, for={OWN2}, for="[{OWN6}]"'), CLIENT),
            ("all are ours: the leftmost", fwd(f"for=10.3.3.3, for={OWN2}"), "10.3.3.3"),
            ("two lines", fwd(f"for={FORGED}", f"for={CLIENT}"), CLIENT),
            ("empty members", fwd(f"for={FORGED}, for={CLIENT}, ,,"), CLIENT),
            ("a comma in quotes", fwd(f'for={FORGED}, for={CLIENT};host="a, b,,c"'), CLIENT),
            ("a semicolon in quotes", fwd(f'ext="a;b";for={CLIENT}'), CLIENT),
            ("for in a name", fwd(f"x-proxy=1;for={CLIENT};forward=2"), CLIENT),
            ("a megabyte to the left", fwd("x" * 1_000_000 + f", for={CLIENT}"), CLIENT),
            ("a megabyte of commas to the left", fwd("," * 1_000_000 + f"for={CLIENT}"), CLIENT),
            ("a quote left open by the client", fwd(f'for={FORGED};host="x, for={CLIENT}'), CLIENT),
            ("a quote left open in another line", fwd(f'for="{FORGED}', f"for={CLIENT}"), CLIENT),
            ("quotes that would swallow us", fwd(f'for={FORGED};a="', f"for={CLIENT}", '"'), OWN),
            ("a backslash left open by the client", fwd(f'for={FORGED};a="\\, for="{CLIENT}"'), CLIENT),
            ("many quotes of the client", fwd('"' * 4001 + f', for="{CLIENT}"'), CLIENT),
            ("another element in quotes", fwd(f'for={FORGED};a=", for={CLIENT};host=";b=""'), OWN),
            # if the entry that decides is invalid, the peer is counted
            ("unknown", fwd("for=unknown"), OWN),
            ("hidden", fwd("for=_hidden"), OWN),
            ("hidden, no further", fwd(f'for={FORGED}, for="_SEVKISEK"'), OWN),
            ("without for", fwd(f"for={FORGED}, by={OWN};proto=https"), OWN),
            ("nothing but a semicolon", fwd(f"for={FORGED}, ;"), OWN),
            ("for twice", fwd(f"for={FORGED};for={CLIENT}"), OWN),
            ("for twice in two cases", fwd(f"for={CLIENT};FOR={FORGED}"), OWN),
            ("no for, but a name that ends so", fwd(f"x-for={FORGED}"), OWN),
            ("an empty for", fwd("for="), OWN),
            ("an empty quoted for", fwd('for=""'), OWN),
            ("an address alone", fwd(FORGED), OWN),
            ("spaces around =", fwd(f"for = {FORGED}"), OWN),
            ("a backslash in quotes", fwd(f'for="{FORGED[:-1]}\\6"'), OWN),
            ("a backslash in other quotes", fwd(f'for={FORGED};host="a\\\\b"'), OWN),
            ("junk behind it", fwd(f"for={FORGED};junk"), OWN),
            ("junk behind other quotes", fwd(f'for={FORGED};host="a"b'), OWN),
            ("a quote left open by our proxy", fwd(f'for={FORGED}, for="{CLIENT}'), OWN),
            ("behind the quote", fwd(f'for="{FORGED}"x'), OWN),
            ("IPv6 without brackets but with port", fwd('for="2001:db8:0:0:0:0:0:1:4711"'), OWN),
            ("600 characters", fwd(f"for={FORGED};a={'x' * 600}"), OWN),
            ("cut where it is looked at", fwd(f"for={FORGED};a={'x' * WIDE}"), OWN),
            ("empty", fwd(""), OWN),
        ],
    ),
    # headers with a single address
    *for_each(
        "single",
        CLOUDFLARE,
        [
            ("one", cf(CLIENT), CLIENT),
            ("IPv6", cf("2001:db8:1:2::3"), "2001:db8:1:2::/64"),
            ("mapped, CVE-2026-30827", cf(f"::ffff:{CLIENT}"), CLIENT),
            ("with a port, CloudFront-Viewer-Address", cf(f"{CLIENT}:46532"), CLIENT),
            ("spaces", cf(f" {CLIENT} "), CLIENT),
            ("name in capitals", (("CF-CONNECTING-IP", CLIENT),), CLIENT),
            ("twice: one is the client's", cf(FORGED, CLIENT), OWN),
            ("twice, one with a zone", cf("2001:db8:6::6%x", CLIENT), OWN),
            ("twice, one with a zone in brackets", cf("[2001:db8:6::6%x", "x]"), OWN),
            ("twice the same", cf(FORGED, FORGED), OWN),
            ("twice, one empty", cf(FORGED, ""), OWN),
            ("a list", cf(f"{FORGED}, {CLIENT}"), OWN),
            ("a comma behind it", cf(f"{FORGED},"), OWN),
            ("none", (), OWN),
            ("X-Forwarded-For is not this one", xff(FORGED), OWN),
            ("empty", cf(""), OWN),
            ("junk", cf("unknown"), OWN),
            ("quoted", cf(f'"{FORGED}"'), OWN),
            ("a megabyte", cf("1" * 1_000_000), OWN),
            ("our own address", cf(OWN2), OWN2),
        ],
    ),
    Case("single: X-Real-IP", REAL_IP, OWN, (("X-Real-IP", CLIENT),), CLIENT),
    Case("single: X-Real-IP, not X-Forwarded-For", REAL_IP, OWN, (*xff(FORGED), ("X-Real-IP", CLIENT)), CLIENT),
    Case("single: X-Real-IP of a stranger", REAL_IP, STRANGER, (("X-Real-IP", FORGED),), STRANGER),
]

# WSGI has one variable for both names, so a server that lets underscores through makes this an X-Forwarded-For.
ASGI_CASES = [
    Case("slowapi: X_FORWARDED_FOR is another header", LIST, OWN, (("X_FORWARDED_FOR", FORGED),), OWN),
    Case("X_Forwarded_For beside ours", LIST, OWN, (*xff(CLIENT), ("X_Forwarded_For", FORGED)), CLIENT),
    Case("CF_Connecting_IP beside ours", CLOUDFLARE, OWN, (*cf(CLIENT), ("CF_Connecting_IP", FORGED)), CLIENT),
]
