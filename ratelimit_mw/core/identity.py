"""Makes bucket keys: encodes the parts of a key as text, so that different parts give different texts, and hashes it.

Each part includes its kind, so that user "1.2.3.4" differs from ip 1.2.3.4. Values are escaped, so that different
lists of parts never share an encoding.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from hashlib import blake2b
from urllib.parse import quote_from_bytes

_PLAIN = re.compile(r"[A-Za-z0-9_.:@/-]*")
_PERSON = b"ratelimit_mw"
_SAFE = b"_.:@/-"
_MAX_READABLE = 1024  # characters; a longer value is replaced by its hash, to bound the work


def encode(parts: Iterable[tuple[str, str]]) -> str:
    """Encode (kind, value) pairs as one text: `user=bob+ip=192.0.2.1`. Different lists give different texts."""
    return "+".join([encode_part(kind, value) for kind, value in parts])


def encode_part(kind: str, value: str) -> str:
    """Encode one part as `kind=value`, with the value escaped.

    Kinds come from this package or the settings and need no escaping.
    """
    if len(value) > _MAX_READABLE:  # a client cannot forge a hash: "~" is escaped in other values
        return f"{kind}=~{blake2b(_bytes(value), digest_size=32, person=_PERSON).hexdigest()}"
    return _encode_part(kind, value)


@lru_cache(maxsize=4096)
def _encode_part(kind: str, value: str) -> str:
    if not _PLAIN.fullmatch(value):
        value = quote_from_bytes(_bytes(value), safe=_SAFE).replace("~", "%7E")
    return f"{kind}={value}"


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def bucket_key(identity: str, rule: str) -> str:
    """Return the `Charge.key` of an encoded identity under a rule: `{hash}:rule`.

    The tag `{hash}` is the one that `key_tagger` makes without a secret.
    """
    return f"{{{identity_hash('')(identity)}}}:{rule}"


def rule_spellings(rule: str) -> set[str]:
    """Return the names by which an operator may refer to the rule of a key: `@search()` is also `search`.

    A limit on an endpoint has an `@` before its name, brackets after it if the name is the endpoint's, and a `+` if
    another limit has the same name. Headers, metrics and logs have none of these.
    """
    if not rule.startswith("@"):
        return {rule}
    name = rule.rstrip("+")
    short = name.removesuffix("()")
    return {rule, name, name[1:], short, short[1:]}


def stored_rule(rule: str) -> str:
    """Return the name by which overrides refer to the rule of a key: `@search()` is `@search`."""
    return rule.removesuffix("()") if rule.startswith("@") else rule


def key_tagger(secret: str, *, plain: bool) -> Callable[[str], str]:
    """Return the function that makes the tag of a bucket key from an encoded identity: `{hash}`.

    The braces mark a Redis Cluster hash tag. The identity is hashed with `secret`, because anyone with access to the
    store can read the keys. `plain` leaves it readable.
    """
    hash_of = str if plain else identity_hash(secret)
    return lambda identity: f"{{{hash_of(identity)}}}"


@cache
def identity_hash(secret: str) -> Callable[[str], str]:
    """Return the function that hashes an encoded identity: BLAKE2b, 128 bits, keyed with `secret` if it is not empty.

    It copies a prepared hash, in two thirds of the time of a new one.
    """
    prepared = blake2b(digest_size=16, key=_bytes(secret), person=_PERSON)

    def hash_of(identity: str) -> str:
        one = prepared.copy()
        one.update(identity.encode("utf-8", "surrogatepass"))
        return one.hexdigest()

    return hash_of
