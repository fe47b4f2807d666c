"""Parses IP addresses and networks in their many notations."""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import AF_INET6, inet_aton, inet_ntop, inet_pton
from typing import Final

from ratelimit_mw.core.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

EXPECTED_NETWORK = "expected a network such as '10.0.0.0/8' or an address such as '192.0.2.1'"  # for errors
MAX_ADDRESS_LENGTH = 64  # characters; no address is longer, and parsing takes time
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052; other NAT64 prefixes look like any other network
_IPV4_PREFIX_BITS = 96  # bits before an embedded IPv4 address, mapped or NAT64

_PORT = r"(?::(?:[0-9]{1,5}|_[A-Za-z0-9._-]+))?"  # RFC 7239, 6: a number, or a name in place of the number
_ZONE = r'(?:%[^][\s,;"\\]*)?'  # an interface's name; without the characters that end a list member
_OCTET = "(?:1[0-9]{0,2}+|[1-9]?[0-9]|2[0-4][0-9]|25[0-5])"  # in the order in which most match first
_IPV4 = re.compile(rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}")
_IPV6 = re.compile(r"[0-9A-Fa-f:]{2,45}")  # the characters of an IPv6 address in its usual form
# the first 12 bytes of an IPv6 address with an embedded IPv4 address; `inet_ntop` writes the first kind with dots
_EMBEDDING: Final = (bytes(12), bytes(10) + b"\xff\xff", bytes.fromhex("0064ff9b") + bytes(8))
_ADDRESS = re.compile(rf"(?:([0-9.]+)|\[([0-9A-Fa-f:.]+){_ZONE}\]){_PORT}|([0-9A-Fa-f:.]+){_ZONE}")


is_ipv4: Final = _IPV4.fullmatch
"""Match an IPv4 address in the form in which nearly all servers and proxies write it.

It takes a tenth of the time of `parse_address`, which reads all forms and would return the same text.
"""


def packed_ipv6(text: str) -> bytes | None:
    """Return the 16 bytes of an IPv6 address in its usual form.

    Returns None if only `parse_address` can tell: for other notations, and for an embedded IPv4 address.
    """
    if _IPV6.fullmatch(text) is None:
        return None
    try:
        packed = inet_pton(AF_INET6, text)
    except OSError:
        return None
    return None if packed[:12] in _EMBEDDING else packed


def shortest(text: str | None) -> str | None:
    """Return an address in its shortest form; None if `text` is not an address. See `parse_address`."""
    if text is None or is_ipv4(text):
        return text
    if (packed := packed_ipv6(text)) is not None:
        return inet_ntop(AF_INET6, packed)
    address = parse_address(text)
    return None if address is None else str(address)


def address_text(packed: bytes) -> str:
    """Return the shortest form of an IPv6 address."""
    return str(IPv6Address(packed)) if packed[:12] in _EMBEDDING else inet_ntop(AF_INET6, packed)


def parse_address(text: str | None) -> Address | None:
    """Return the address in `text`, or None if it is not an address or longer than 64 characters.

    `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`, each with spaces or tabs around it.
    A client must have one form only. So an IPv4 address embedded in IPv6 (mapped or NAT64) is returned as IPv4, and a
    zone (`fe80::1%eth0`), which the client chooses, is dropped.
    """
    if not text or len(text) > MAX_ADDRESS_LENGTH:
        return None
    match = _ADDRESS.fullmatch(text.strip(" \t"))
    if match is None:
        return None
    ipv4, bracketed, bare = match.groups()
    try:
        return IPv4Address(ipv4) if ipv4 else _embedded_ipv4(IPv6Address(bracketed or bare))
    except ValueError:
        return None


def _embedded_ipv4(address: IPv6Address) -> Address:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


class Networks:
    """A set of networks. `address in networks` takes time proportional to the number of different prefix lengths."""

    def __init__(self, networks: Iterable[Network]) -> None:
        prefixes: dict[int, dict[int, set[int]]] = {4: {}, 6: {}}  # IP version -> host bits -> network numbers
        for network in networks:
            host = network.max_prefixlen - network.prefixlen
            prefixes[network.version].setdefault(host, set()).add(int(network.network_address) >> host)
        self._prefixes = {version: tuple(numbers.items()) for version, numbers in prefixes.items()}

    def __contains__(self, text: str) -> bool:
        """Return whether a network contains this address, which is in its shortest form."""
        is_ipv6 = ":" in text
        number = int.from_bytes(inet_pton(AF_INET6, text) if is_ipv6 else inet_aton(text))
        for host, networks in self._prefixes[6 if is_ipv6 else 4]:  # noqa: SIM110  # any() takes twice the time
            if number >> host in networks:
                return True
        return False


def parse_network(value: object, allowed: str = EXPECTED_NETWORK) -> Network:
    """Return the network of a CIDR (`10.0.0.0/8`) or a single address. `::ffff:10.0.0.0/104` is `10.0.0.0/8`.

    Raises `ConfigError` for an invalid network, and for one that may contain more than its author meant: one with all
    addresses, with host bits, or with a mapped prefix of less than 96 bits. `allowed`: what the error says is expected.
    """
    if not isinstance(value, str):
        raise ConfigError(f"got {value!r:.100}, {allowed}, as text", code="RL-030")
    if value == "*":
        raise ConfigError(f"got '*', which is every address, {allowed}", code="RL-030")
    text, slash, bits = value.partition("/")
    if "%" in text:
        raise ConfigError(
            f"got {value!r:.100}, expected {text.partition('%')[0] + slash + bits!r:.100}, without a zone",
            code="RL-030",
        )
    if len(value) > MAX_ADDRESS_LENGTH or (slash and not bits.isdecimal()):  # a mask may be a netmask or a host mask
        raise ConfigError(f"got {value!r:.100}, {allowed}", code="RL-030")
    try:
        parsed, network = ip_address(text), ip_network(value, strict=False)
    except ValueError:
        raise ConfigError(f"got {value!r:.100}, {allowed}", code="RL-030") from None
    address = _embedded_ipv4(parsed) if isinstance(parsed, IPv6Address) else parsed
    if address.version != network.version:
        network = _embedded_network(value, address, network.prefixlen)
    if not network.prefixlen:
        raise ConfigError(f"got {value!r}, which is every address, {allowed}", code="RL-030")
    if address != network.network_address:
        raise ConfigError(
            f"got {value!r}, which has host bits, expected '{network}', or '{address}' for that address alone",
            code="RL-030",
        )
    return network


def _embedded_network(value: str, address: Address, bits: int) -> IPv4Network:
    """Return the IPv4 network of a mapped or NAT64 network.

    `bits` counts from the start of the IPv6 address, so `::ffff:10.0.0.0/8` holds every IPv4 address (CVE-2026-90711).
    """
    if bits < _IPV4_PREFIX_BITS:
        likely = 0 < bits <= address.max_prefixlen
        suggestion = IPv4Network((int(address), bits), strict=False) if likely else "10.0.0.0/8"
        raise ConfigError(
            f"got {value!r}, which holds every IPv4 address, expected an IPv4 network: '{suggestion}'", code="RL-030"
        )
    return IPv4Network((int(address), bits - _IPV4_PREFIX_BITS), strict=False)
