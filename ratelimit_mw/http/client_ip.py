"""The client's address: where it is found, and the one form in which it is counted."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Network
from itertools import islice

from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.http.forwarded import forwarded, x_forwarded_for
from ratelimit_mw.http.networks import MAX_ADDRESS_LENGTH, Address, Networks, parse_address

_UNIX = "unix:"  # stands for a peer without an address
_MAX_PROXIES = 32  # proxies in a row, in the settings and in a header
_CACHE_SIZE = 4096  # peers, and as many header values
_MAX_CACHED_LENGTH = 512  # characters of a header value that may be remembered: longer ones are hardly a proxy's own
_NAME = re.compile(r"[!#$%&'*+.^`|~0-9A-Za-z-]+")  # a token (RFC 9110, 5.6.2) without `_`
_LIST_PARSERS: dict[str, Callable[[str], Iterator[Address | None]]] = {
    "x-forwarded-for": x_forwarded_for,
    "forwarded": forwarded,
}


def client_address(host: str | None, prefix: int) -> str | None:
    """The form in which the address that `host` spells is counted, or None if it spells none.

    IPv6 clients own a whole network, so they are counted by their first `prefix` bits: `2001:db8::/64`. Ports, brackets
    and zones are let pass (uvicorn before 0.45 could leave the port of a forwarded address on it).
    """
    address = parse_address(host)
    if address is None or isinstance(address, IPv4Address) or prefix == address.max_prefixlen:
        return None if address is None else str(address)
    return str(IPv6Network((address, prefix), strict=False))


class ClientIPResolver:
    """Finds the client's address: the socket's peer, or what a trusted proxy says.

    `trusted_proxies`: networks and addresses of proxies, and `unix:` for a peer without an address; or the number of
    proxies in front of the app, 1 to 32, the peer being the first: then every peer is believed. `proxy_header`:
    `x-forwarded-for`, `forwarded`, or any other name for a header of a single address. Raises `ConfigError`.
    """

    def __init__(self, trusted_proxies: Sequence[str] | int, proxy_header: str) -> None:
        mistakes, hops, networks = ErrorCollector(), 0, Networks("trusted_proxies", ())
        listed = () if isinstance(trusted_proxies, int) else trusted_proxies
        self.header = "x-forwarded-for"  # in case that the other is wrong
        with mistakes.collect():
            self.header = _header_name(proxy_header)
        with mistakes.collect():
            hops = _hops(trusted_proxies, self.header)
            networks = Networks("trusted_proxies", listed, placeholders=(_UNIX,))
        mistakes.raise_if_any()
        read = _LIST_PARSERS.get(self.header)
        self._untrusted_peer = (None, bool(hops))  # what a peer is that no address is as long as

        def own(peer: str | None) -> tuple[str | None, bool]:
            """The peer's own address, and whether its header is believed."""
            address = parse_address(peer)
            trusted = address in networks if address else not peer and _UNIX in listed
            return str(address) if address else None, bool(hops) or trusted

        def client(text: str) -> str | None:
            """The client that a header's value names; None leaves it to be the peer."""
            if read is None:
                address = parse_address(text)  # which is None for a list
            elif hops:
                address = next(islice(read(text), hops - 1, None), None)
            else:
                address = _first_untrusted(read(text), networks)
            return str(address) if address else None

        self._peer_address = lru_cache(_CACHE_SIZE)(own)
        self._from_header = client
        self._cached_from_header = lru_cache(_CACHE_SIZE)(client)

    def trusts(self, peer: str | None) -> bool:
        """Whether the header of this peer is believed."""
        return (self._peer_address(peer) if peer is None or len(peer) <= MAX_ADDRESS_LENGTH else self._untrusted_peer)[
            1
        ]

    def resolve(self, peer: str | None, values_of: Callable[[str], Sequence[str]]) -> str | None:
        """The client's address, in its shortest form; None when there is none.

        `peer`: the socket's other end, None or empty on a unix socket. `values_of(name)`: all lines of the header of
        this name, which is in lower case, in order; not called unless the peer is trusted. Whatever is not well-formed
        where it is decided leaves the peer.
        """
        own, trusted = (
            self._peer_address(peer) if peer is None or len(peer) <= MAX_ADDRESS_LENGTH else self._untrusted_peer
        )
        if not trusted:
            return own
        values = values_of(self.header)
        if not values:
            return own
        text = values[0] if len(values) == 1 else ",".join(values)  # one list (RFC 9110, 5.3), and no single address
        return (self._cached_from_header(text) if len(text) <= _MAX_CACHED_LENGTH else self._from_header(text)) or own


def _first_untrusted(addresses: Iterator[Address | None], networks: Networks) -> Address | None:
    """The first that is no proxy of ours, or the last of a list of nothing but proxies; None if it is no address."""
    last = None
    for count, address in enumerate(addresses):
        if address is None or count == _MAX_PROXIES:
            return None
        last = address
        if last not in networks:
            break
    return last


def _header_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        fix = f" ({name.replace('_', '-')!r}?)" if isinstance(name, str) and "_" in name else ""
        raise ConfigError(
            f"proxy_header: got {name!r:.100}, expected x-forwarded-for, forwarded, or the name of a header with a "
            f"single address, without '_', which WSGI cannot tell from '-'{fix}"
        )
    return name.lower()


def _hops(value: object, header: str) -> int:
    """The number of proxies, 0 when `value` is a list."""
    if isinstance(value, (list, tuple)):
        return 0
    if type(value) is not int or not 1 <= value <= _MAX_PROXIES:
        raise ConfigError(
            f"trusted_proxies: got {value!r:.100}, expected a list such as ['10.0.0.0/8', '{_UNIX}'], "
            f"or a number of proxies from 1 to {_MAX_PROXIES}"
        )
    if header not in _LIST_PARSERS:
        raise ConfigError(
            f"trusted_proxies: got {value} with proxy_header {header!r}, expected a list such as ['10.0.0.0/8']: "
            "a number counts the members of x-forwarded-for or forwarded"
        )
    return value


def check_no_underscore(name: str) -> None:
    """Raise `ConfigError` for a header name with `_`, which WSGI cannot tell from `-` and many proxies drop."""
    if "_" in name:
        raise ConfigError(
            f"got the header {name!r:.100}, expected a name without '_', which WSGI cannot tell from '-': "
            f"{name.replace('_', '-')!r:.100}"
        )
