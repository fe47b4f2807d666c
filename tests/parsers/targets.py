"""Properties of the parsers that hold for any input. Each function takes bytes, and raises if one is violated."""

from collections.abc import Callable
from itertools import islice

from ratelimit_mw import ConfigError, parse
from ratelimit_mw.http.client_ip import addresses_in, client_address
from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.http.path_index import PathTree
from ratelimit_mw.http.paths import Paths, normal_path

MEMBERS = 257  # entries that a list yields at most: 256, and a None for the rest
SHORT = 4000  # characters; a list that is not longer is read completely


def notation(data: bytes) -> None:
    """Parsing returns limits or raises ConfigError. A limit's own notation parses to an equal limit with the same
    bucket.
    """
    try:
        limits = parse(data.decode("utf-8", "replace"))
    except ConfigError:
        return
    assert limits
    for limit in limits:
        (same,) = parse(limit.notation)
        assert (same.notation, same.bucket) == (limit.notation, limit.bucket)
        assert (same.most, same.max_per_window) == (limit.most, limit.max_per_window)


def lists(data: bytes) -> None:
    """A list yields a bounded number of addresses and Nones. A prefix that a client adds does not change these."""
    text = data.decode("latin-1")
    assert len([*addresses_in(text, "forwarded")]) <= MEMBERS
    found = [*addresses_in(text, "x-forwarded-for")]
    assert len(found) <= MEMBERS
    if len(text) <= SHORT and len(found) < MEMBERS // 2:
        longer = addresses_in(f'junk", 192.0.2.1,{text}', "x-forwarded-for")
        assert [*islice(longer, len(found))] == found


def addresses(data: bytes) -> None:
    """An address has one form, which parses to the same address."""
    text = data.decode("latin-1")
    address = parse_address(text)
    counted = client_address(text, 64)
    assert (counted is None) == (address is None)
    if address is not None:
        assert parse_address(str(address)) == address
        assert counted == client_address(str(address), 64)
        assert client_address(str(address), 128) == str(address)


def paths(data: bytes) -> None:
    """Normalizing a normal path changes nothing. A valid template is matched in time and without an error."""
    path, _, template = data.decode("utf-8", "replace").partition("\0")
    normal = normal_path(path)
    assert normal_path(normal) == normal
    assert normal.startswith("/")
    assert "//" not in normal
    assert not {".", ".."} & {*normal.split("/")}
    try:
        Paths("path", template)
    except ConfigError:
        return
    for ignore_case in (False, True):
        index = PathTree([(template, 0), ("/{rest:path}", 1)], ignore_case=ignore_case)
        assert [*index.matching_rules(path)] in ([1], [0, 1], [], [0])
        assert 1 in index.matching_rules(normal)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "notation": notation,
    "lists": lists,
    "addresses": addresses,
    "paths": paths,
}
SEEDS: dict[str, list[bytes]] = {
    "notation": [
        b"100/minute burst 20 using token_bucket; 1000/hour",
        b"5 per 10 seconds",
        b"100/5m",
        b"1/2.5 days",
        b"9/s burst 9 using gcra",
    ],
    "lists": [b"192.0.2.1, [2001:db8::1]:80, unknown", b'for="[2001:db8::1]:4711";proto=https, for=_x;by=192.0.2.2'],
    "addresses": [b"192.0.2.1:80", b"[2001:db8::1%eth0]:80", b"::ffff:192.0.2.1", b"64:ff9b::c000:201", b" ::1\t"],
    "paths": [b"/a//b/../c/.\0/a/{id:int}", b"/x/1/y\0/x/{rest:path}/y", b"/login\n\0/login/", b"//\0/{a}.{b}"],
}
