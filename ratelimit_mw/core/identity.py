"""Whose bucket: an injective encoding of key parts, then a hash of it.

Every part carries its kind, so that user "1.2.3.4" is not ip 1.2.3.4, and is escaped, so that no two lists of parts
meet.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from urllib.parse import quote_from_bytes

_PLAIN = re.compile(r"[A-Za-z0-9_.:@/-]*")
_PERSON = b"ratelimit_mw"
_SAFE = b"_.:@/-"
_MAX_READABLE = (
    1024  # characters kept readable; what is longer stands as its own hash, so that work on it stays bounded
)


def encode(parts: Iterable[tuple[str, str]]) -> str:
    """One text for a list of (kind, value): `user=bob+ip=192.0.2.1`. Two different lists never give the same text."""
    return "+".join([encode_part(kind, value) for kind, value in parts])


def encode_part(kind: str, value: str) -> str:
    """`kind=value`, escaped; what `encode` joins by `+`. Kinds are ours, or the settings', and need no escape."""
    if len(value) > _MAX_READABLE:  # "~" is escaped in values, so nobody can write this himself
        return f"{kind}=~{blake2b(_bytes(value), digest_size=32, person=_PERSON).hexdigest()}"
    return _encode_part(kind, value)


@lru_cache(maxsize=4096)
def _encode_part(kind: str, value: str) -> str:
    if not _PLAIN.fullmatch(value):
        value = quote_from_bytes(_bytes(value), safe=_SAFE).replace("~", "%7E")
    return f"{kind}={value}"


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def bucket_key(identity: str, rule: str, *, secret: bytes = b"", plain: bool = False) -> str:
    """The `Charge.key` of an encoded identity under a rule: `{identity}:rule`; the braces make it a Cluster hash tag.

    The identity is hashed (BLAKE2b, 128 bits, keyed with `secret` if there is one), because keys are seen by everyone
    who may look at the store. `plain` leaves it readable.
    """
    if not plain:
        identity = blake2b(
            identity.encode("utf-8", "surrogatepass"), digest_size=16, key=secret, person=_PERSON
        ).hexdigest()
    return f"{{{identity}}}:{rule}"
