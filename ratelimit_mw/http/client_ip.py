"""Finds the address of a client behind trusted proxies, in the form that keys use.

X-Forwarded-For and Forwarded (RFC 7239) are parsed from right to left. Each proxy appends one member at the right end.
Anything to the left of that may come from the client. So the parser takes one member after another from the right, and
reads each before it looks at the text to the left. A quote, a comma or a megabyte from the client therefore cannot
change how a proxy's member is read.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address
from itertools import dropwhile, islice

from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.http.networks import (
    EXPECTED_NETWORK,
    MAX_ADDRESS_LENGTH,
    Network,
    Networks,
    address_text,
    is_ipv4,
    packed_ipv6,
    parse_address,
    parse_network,
    shortest,
)

_IPV6_BITS = 128
_UNIX = "unix:"  # in trusted_proxies: a peer without an address
_MAX_PROXIES = 32  # proxies in a row, in the settings and in a header
_CACHE_SIZE = 4096  # peers
_NAME = re.compile(r"[!#$%&'*+.^`|~0-9A-Za-z-]+")  # a token (RFC 9110, 5.6.2) without `_`
_WINDOW = 8192  # characters of a list that are read, from the end
_MAX_MEMBER_LENGTH = 512  # characters of one member
_MAX_MEMBERS = 256  # members of a list, including empty ones

# One pair and the `;` after it (RFC 7239, 4). Also accepts what some proxies write: spaces around `;`, and unquoted
# `[` and `:`. Rejects a backslash in quotes: no address needs one, and parsers differ in what it escapes.
_PAIR = re.compile(r"""[ \t]*+(?:([!#$%&'*+.^_`|~0-9A-Za-z-]++)=(?:"([^"\\]*)"|([^\s",;\\]++)))?[ \t]*+(?:;|\Z)""")


def client_address(host: str | None, prefix: int) -> str | None:
    """Return the address in `host` in the form that keys use, or None if it has no address.

    An IPv6 client usually owns a whole network, so only the first `prefix` bits count: `2001:db8::/64`. Ports, brackets
    and zones are accepted and dropped (uvicorn before 0.45 could leave the port on a forwarded address).
    """
    if host is None or is_ipv4(host):
        return host
    packed = packed_ipv6(host)
    if packed is None:
        address = parse_address(host)
        if address is None or isinstance(address, IPv4Address):
            return None if address is None else str(address)
        packed = address.packed
    if prefix == _IPV6_BITS:
        return address_text(packed)
    host_bits = _IPV6_BITS - prefix
    return f"{address_text((int.from_bytes(packed) >> host_bits << host_bits).to_bytes(16))}/{prefix}"


def _bare_address(member: str) -> str | None:
    """Return the address that is a member of X-Forwarded-For, in its shortest form.

    Ports, brackets and quotes around an address are accepted, because Azure and AWS write them.
    """
    return shortest(member[1:-1] if member[0] == member[-1] == '"' else member)


def _for_address(element: str) -> str | None:
    """Return the address of an element's only `for`, in its shortest form.

    Returns None for a malformed element, for one without exactly one `for`, and for `unknown` and `_hidden`.
    """
    return shortest(_for_value(element))


def addresses_in(text: str, header: str) -> Iterator[str | None]:
    """Yield the addresses in a value of `x-forwarded-for` or `forwarded` from right to left; None for a malformed one.

    Skips empty members (RFC 9110, 5.6.1). Yields None for a member that is too long. Ends with None if the list exceeds
    `_WINDOW` or `_MAX_MEMBERS`.
    """
    read_member = _LIST_PARSERS[header]
    is_bare = read_member is _bare_address  # in the other header, a comma in quotes does not separate members
    floor, end = max(0, len(text) - _WINDOW), len(text)
    for _ in range(_MAX_MEMBERS):
        start = text.rfind(",", floor, end) + 1 if is_bare else _member_start(text, floor, end)
        if floor and not start:
            break
        member = text[start:end].strip(" \t")
        if is_bare and is_ipv4(member):
            yield member
        elif member:
            yield read_member(member) if len(member) <= _MAX_MEMBER_LENGTH else None
        if not start:
            return
        end = start - 1
    yield None


def _member_start(text: str, floor: int, end: int) -> int:
    """Return where the member that ends at `end` starts, or 0 if no comma to the left separates it.

    A comma separates if the number of quotes between it and `end` is even.
    """
    comma, odd = end, 0
    while comma > floor:
        before = comma
        comma = text.rfind(",", floor, before)
        odd ^= text.count('"', max(comma, floor), before) & 1
        if comma < 0 or not odd:
            return comma + 1
    return 0


def _for_value(element: str) -> str | None:
    """Return the value of an element's only `for`; None if the element is malformed."""
    # A `for=` inside quotes counts, too: an unbalanced quote may have joined two elements, and this `for=` may belong
    # to the second element.
    if element.lower().count("for=") != 1:
        return None
    value, end = None, 0
    while end < len(element):
        pair = _PAIR.match(element, end)
        if pair is None:
            return None
        name, quoted, plain = pair.groups()
        if name and name.lower() == "for":
            value = quoted if plain is None else plain
        end = pair.end()
    return value


_LIST_PARSERS: dict[str, Callable[[str], str | None]] = {"x-forwarded-for": _bare_address, "forwarded": _for_address}


class ClientIPResolver:
    """Finds the client's address: the socket's peer, or the address that a trusted proxy forwards.

    `trusted_proxies`: networks and addresses of proxies, and `unix:` for a peer without an address; or the number of
    proxies in front of the app, 1 to 32, counting the peer. With a number, every peer is trusted. `proxy_header`:
    `x-forwarded-for`, `forwarded`, or the name of a header with a single address. Raises `ConfigError`.
    """

    def __init__(self, trusted_proxies: Sequence[str] | int, proxy_header: str) -> None:
        mistakes, hops, networks = ErrorCollector(), 0, Networks(())
        listed = () if isinstance(trusted_proxies, int) else trusted_proxies
        self.header = "x-forwarded-for"  # so that `trusted_proxies` is checked even if `proxy_header` is invalid
        with mistakes.collect():
            self.header = _header_name(proxy_header)
        with mistakes.collect():
            hops = _hops(trusted_proxies, self.header)
            networks = _trusted_networks(listed)
        mistakes.raise_if_any()
        self.hops = hops
        self._is_list, self._networks = self.header in _LIST_PARSERS, networks
        # whether a header's value that is an IPv4 address is the client's address
        self._may_be_bare = hops <= 1 and self.header != "forwarded"
        self._trusts_unix = _UNIX in listed
        self._read_peer = lru_cache(_CACHE_SIZE)(self._peer)

    def _peer(self, peer: str | None) -> tuple[str | None, bool]:
        """Return the peer's own address, and whether its header is trusted."""
        address = shortest(peer)
        trusted = address in self._networks if address else not peer and self._trusts_unix
        return address, bool(self.hops) or trusted

    def trusts(self, peer: str | None) -> bool:
        """Return whether the proxy header of this peer is trusted."""
        return self._read_peer(peer)[1] if peer is None or len(peer) <= MAX_ADDRESS_LENGTH else bool(self.hops)

    def members(self, values: Sequence[str]) -> list[str | None]:
        """Return the addresses of all lines of the header from right to left, None for a malformed one.

        Returns an empty list if the header is one with a single address. Returns at most 33 addresses.
        """
        return list(islice(addresses_in(",".join(values), self.header), _MAX_PROXIES + 1)) if self._is_list else []

    def forwarding_client(self, members: Sequence[str | None]) -> str | None:
        """Return the address that counts as the client, if it may be a proxy that is missing in `trusted_proxies`.

        Returns None otherwise.

        It may be one if the header has another address to its left, for which this client forwarded the request.
        `members`: the result of `members` for the header of a trusted peer.
        """
        if self.hops:
            pair = members[self.hops - 1 : self.hops + 1]
        else:
            pair = list(islice(dropwhile(lambda one: one is not None and one in self._networks, members), 2))
        client, behind = (*pair, None, None)[:2]
        return client if behind is not None and behind != client else None

    def client_in(self, peer: str | None, header_lines: Callable[[str], Sequence[str]]) -> str | None:
        """Return the client's address in its shortest form, or None if it has no address.

        `peer`: the socket's other end, None or empty on a unix socket. `header_lines(name)`: returns all lines of a
        header in order, for a name in lower case; called only if the peer is trusted. If the header is malformed where
        the client's address is read, the peer is the client.
        """
        own, trusted = self._read_peer(peer) if peer is None or len(peer) <= MAX_ADDRESS_LENGTH else self._peer(peer)
        lines = header_lines(self.header) if trusted else ()
        if not lines:
            return own
        text = lines[0] if len(lines) == 1 else ",".join(lines)  # one list (RFC 9110, 5.3), so not a single address
        if self._may_be_bare and is_ipv4(text):
            return text
        if not self._is_list:
            return shortest(text) or own  # None for a list
        addresses = addresses_in(text, self.header)
        if self.hops:
            return next(islice(addresses, self.hops - 1, None), None) or own
        last = None
        for count, address in enumerate(addresses):
            if address is None or count == _MAX_PROXIES:
                return own
            last = address
            if last not in self._networks:
                break
        return last or own


def _header_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        fix = f" ({name.replace('_', '-')!r}?)" if isinstance(name, str) and "_" in name else ""
        raise ConfigError(
            f"proxy_header: got {name!r:.100}, expected x-forwarded-for, forwarded, or the name of a header with a "
            f"single address, without '_', which WSGI cannot tell from '-'{fix}",
            code="RL-032",
        )
    return name.lower()


def _hops(value: object, header: str) -> int:
    """Return the number of proxies; 0 if `value` is a list."""
    if isinstance(value, (list, tuple)):
        return 0
    if type(value) is not int or not 1 <= value <= _MAX_PROXIES:
        raise ConfigError(
            f"trusted_proxies: got {value!r:.100}, expected a list such as ['10.0.0.0/8', '{_UNIX}'], "
            f"or a number of proxies from 1 to {_MAX_PROXIES}",
            code="RL-032",
        )
    if header not in _LIST_PARSERS:
        raise ConfigError(
            f"trusted_proxies: got {value} with proxy_header {header!r}, expected a list such as ['10.0.0.0/8']: "
            "a number counts the members of x-forwarded-for or forwarded",
            code="RL-032",
        )
    return value


def _trusted_networks(listed: Sequence[object]) -> Networks:
    """Return the networks of `trusted_proxies`, which may also contain `unix:`. Raises `ConfigError`."""
    mistakes, networks = ErrorCollector(), list[Network]()
    for index, value in enumerate(listed):
        with mistakes.collect(f"trusted_proxies[{index}]"):
            if value != _UNIX:
                networks.append(parse_network(value, f"{EXPECTED_NETWORK} or {_UNIX!r}"))
    mistakes.raise_if_any()
    return Networks(networks)


def check_no_underscore(name: str) -> None:
    """Raise `ConfigError` for a header name with `_`, which WSGI cannot tell from `-` and many proxies drop."""
    if "_" in name:
        raise ConfigError(
            f"got the header {name!r:.100}, expected a name without '_', which WSGI cannot tell from '-': "
            f"{name.replace('_', '-')!r:.100}",
            code="RL-032",
        )
