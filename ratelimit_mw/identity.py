"""Whose bucket: an injective encoding of key parts, then a hash of it.

Every part carries its kind, so that user "1.2.3.4" is not ip 1.2.3.4, and is escaped, so that no two lists of parts
meet.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from urllib.parse import quote_from_bytes

_PLAIN = re.compile(r"[A-Za-z0-9_.:@/-]*")
_SAFE = b"_.:@/-"
_LONGEST = 1024  # characters kept readable; what is longer stands as its own hash, so that work on it stays bounded


def encode(parts: Iterable[tuple[str, str]]) -> str:
    """One text for a list of (kind, value): `user=bob+ip=192.0.2.1`. Two different lists never give the same text."""
    return "+".join([f"{kind}={_escape(value)}" for kind, value in parts])


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


_PERSON = b"ratelimit_mw"


def _escape(value: str) -> str:
    if len(value) > _LONGEST:  # "~" is escaped in values, so this cannot be written by a client
        return "~" + blake2b(value.encode("utf-8", "surrogatepass"), digest_size=32, person=_PERSON).hexdigest()
    if _PLAIN.fullmatch(value):
        return value
    return quote_from_bytes(value.encode("utf-8", "surrogatepass"), safe=_SAFE).replace("~", "%7E")
