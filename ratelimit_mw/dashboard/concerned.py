"""Finds the overrides that concern a client of the page. Pure."""

from collections.abc import Iterable, Sequence
from ipaddress import ip_network

from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.rules.override_entries import ADDRESS, KEY, Override


def concerning(key: str, rule: str | None, overrides: Iterable[Override]) -> Sequence[Override]:
    """Return the overrides that name a client: its key in the store, a part of it, or its network.

    `rule`: where the client is limited; None for all rules. What an override for an address does to a key that is a
    hash, or a user, is not known here.
    """
    parts = {f"{KEY}{key}", *key.split("+")}
    return [
        one
        for one in overrides
        if (rule is None or one.rule in (None, rule)) and (one.who in parts or _has_network(parts, one.who))
    ]


def block_of(key: str, rule: str | None, overrides: Iterable[Override]) -> Override | None:
    """Return the block that concerns a client, the one that lasts longest; None if it is not blocked."""
    blocks = [one for one in concerning(key, rule, overrides) if one.action == "block"]
    return max(blocks, key=lambda one: one.until, default=None)


def _has_network(parts: Iterable[str], who: str) -> bool:
    if not who.startswith(ADDRESS) or "/" not in who:
        return False
    network = ip_network(who.removeprefix(ADDRESS))
    addresses = [parse_address(part.removeprefix(ADDRESS)) for part in parts if part.startswith(ADDRESS)]
    return any(address in network for address in addresses if address is not None)
