"""Clients share no bucket by accident: different parts have different encodings, and hashes of a fixed form."""

import itertools
import re
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiles import PROOF
from ratelimit_mw.core.identity import bucket_key, encode, key_tagger

pytestmark = pytest.mark.promise(10)

Parts = list[tuple[str, str]]

letters = "aA0=+~%7E25/:@ .-_{}|\x00\n\u00e9\u20ac\U0001f600\ud800\udc00"
kinds = st.text(alphabet=letters.replace("=", ""), max_size=6)  # built-in kinds and header names: none contains "="
values = st.text(alphabet=letters, max_size=12) | st.text(max_size=12)
lists = st.lists(st.tuples(kinds, values), max_size=4)


def decoded(text: str) -> Parts:
    """Return the encoded parts. The encoding is injective, because it can be decoded."""
    if not text:
        return []
    kind, *rest = text.split("=")
    found = []
    for piece in rest[:-1]:
        value, _, following = piece.partition("+")
        found.append((kind, value))
        kind = following
    found.append((kind, rest[-1]))
    return [(kind, unquote_to_bytes(value).decode("utf-8", "surrogatepass")) for kind, value in found]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([("ip", "192.0.2.1")], "ip=192.0.2.1"),
        ([("user", "bob"), ("ip", "2001:db8::/64")], "user=bob+ip=2001:db8::/64"),
        ([("user", "a=b+c%d~e")], "user=a%3Db%2Bc%25d%7Ee"),
        ([("user", "")], "user="),
        ([("user", "J\u00f6rg {x}")], "user=J%C3%B6rg%20%7Bx%7D"),
        ([("header:x-api-key", "\ud800")], "header:x-api-key=%ED%A0%80"),
        ([], ""),
    ],
)
def test_encodings_are_readable(parts: Parts, text: str) -> None:
    assert encode(parts) == text


few = settings(max_examples=500 if PROOF else 50)  # long texts take long


@few
@given(lists)
@example([("a", "b+c=d")])
@example([("a+b", "c"), ("", "")])
def test_encodings_can_be_decoded(parts: Parts) -> None:
    assert decoded(encode(parts)) == parts


@few
@given(lists, lists)
def test_different_parts_have_different_encodings_and_hashes(one: Parts, other: Parts) -> None:
    assert (encode(one) == encode(other)) == (one == other)
    assert (bucket_key(encode(one), "r") == bucket_key(encode(other), "r")) == (one == other)


def test_short_parts_with_special_characters_have_distinct_encodings() -> None:
    short = ["".join(pair) for size in range(3) for pair in itertools.product("a=+%~", repeat=size)]
    parts = [(kind, value) for kind in ("a", "b", "a+b") for value in short]
    everything: list[Parts] = [
        [],
        *[[part] for part in parts],
        *[list(pair) for pair in itertools.product(parts, parts)],
    ]
    assert len({encode(one) for one in everything}) == len(everything) == 1 + 93 + 93 * 93


def test_equal_values_of_different_kinds_have_different_keys() -> None:
    kinds = ("ip", "user", "header:x-key", "cookie:sid", "key")
    assert len({bucket_key(encode([(kind, "1.2.3.4")]), "r") for kind in kinds}) == len(kinds)


def test_values_longer_than_1024_characters_are_hashed() -> None:
    assert encode([("user", "x" * 1024)]) == "user=" + "x" * 1024
    hashed = encode([("user", "x" * 1025)])
    assert re.fullmatch(r"user=~[0-9a-f]{64}", hashed)
    assert hashed != encode([("user", "x" * 1026)])
    assert hashed != encode([("user", "y" + "x" * 1024)])
    assert hashed != encode([("user", hashed.removeprefix("user="))])  # a client cannot choose this encoding
    assert len(encode([("user", "\ud800" * 10**6)])) == len(hashed)


def test_bucket_key_consists_of_a_stable_hash_and_the_rule() -> None:
    key = bucket_key("ip=192.0.2.1", "login")
    assert key == "{fb80db64bc9560f3682de42ac2e27ce2}:login"  # must not change, because stores contain such keys
    assert bucket_key("ip=192.0.2.2", "login") != key
    assert bucket_key("ip=192.0.2.1", "other") == key.replace("login", "other")


@given(st.text(), st.text(max_size=16))
def test_hashes_of_all_identities_and_secrets_have_the_same_form(identity: str, secret: str) -> None:
    assert re.fullmatch(r"\{[0-9a-f]{32}\}", key_tagger(secret, plain=False)(identity))


def test_hash_depends_on_the_secret() -> None:
    keys = [f"{key_tagger(secret, plain=False)('ip=192.0.2.1')}:r" for secret in ("", "one", "two", "one")]
    assert keys[0] == bucket_key("ip=192.0.2.1", "r")
    assert keys[1] == keys[3]
    assert len(set(keys)) == 3


@few
@given(lists)
def test_plain_keys_are_readable_and_end_at_the_first_brace(parts: Parts) -> None:
    identity = encode([(kind.replace("{", "").replace("}", ""), value) for kind, value in parts])
    tag = key_tagger("unused", plain=True)(identity)
    assert tag == f"{{{identity}}}"
    assert tag.index("}") == len(identity) + 1  # the hash tag of a cluster is all of the identity
