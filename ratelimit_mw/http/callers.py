"""Which callers are on this host, and the secrets of the others."""

from typing import Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.http.networks import parse_address

_MIN_LENGTH: Final = 16  # characters of a secret, so that it cannot be guessed


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address. A name is not one, because it may have any address."""
    address = parse_address(host)
    return address is not None and address.is_loopback


def checked_secret(secret: str, place: str = "secret") -> str:
    """Return the secret. Raises `ConfigError` if it is too short, or if a header cannot contain it."""
    if not isinstance(secret, str):
        raise ConfigError(f"{place}: got {type(secret).__name__}, expected text", code="RL-059")
    if secret and (len(secret) < _MIN_LENGTH or not secret.isascii() or not secret.isprintable() or " " in secret):
        raise ConfigError(f"{place}: expected at least {_MIN_LENGTH} ASCII characters without spaces", code="RL-059")
    return secret


def is_local(server: str | None, client: str | None) -> bool:
    """Return whether both ends of a connection are on this host, as far as addresses show.

    A server may report a name for its own end, and a unix socket has no addresses.
    """
    if server and parse_address(server) is not None and not is_loopback(server):
        return False
    return not client or is_loopback(client)
