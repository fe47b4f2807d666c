"""The client's address, in the one form in which it is counted."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

LONGEST = 64  # characters; no address is longer, and parsing is not free
_NAT64 = IPv6Network("64:ff9b::/96")


def client_address(host: str | None, prefix: int) -> str | None:
    """The address that `host` spells, or None if it spells none.

    IPv6 clients own a whole network, so they are counted by their first `prefix` bits: `2001:db8::/64`. An IPv4
    address written as IPv6 (mapped, or behind NAT64) is the IPv4 address; a zone is dropped, because the client
    chooses it.
    """
    if not host or len(host) > LONGEST:
        return None
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        address = _inner_ipv4(address) or address
    if isinstance(address, IPv4Address) or prefix == address.max_prefixlen:
        return str(address)
    return str(IPv6Network((address, prefix), strict=False))


def _inner_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped
