"""Lists that proxies add to, read from the right: X-Forwarded-For, and Forwarded (RFC 7239).

A proxy adds what it knows at the right end; what stands further left may come from the client, who can write anything.
So each member is cut off at the right before anything left of it is looked at: no quote, comma or megabyte there
changes how it is read.
"""

import re
from collections.abc import Iterator

from ratelimit_mw.http.networks import Address, parse_address

_WINDOW = 8192  # characters that are looked at, from the end
_MAX_MEMBER_LENGTH = 512  # characters of one member
_MAX_MEMBERS = 256  # of a list, the empty ones too

# One pair and the `;` after it. RFC 7239, 4, and what proxies write besides: spaces around `;`, `[` and `:` without
# quotes. A backslash in quotes is left out: it is never needed, and readers differ in what it hides.
_PAIR = re.compile(r"""[ \t]*+(?:([!#$%&'*+.^_`|~0-9A-Za-z-]++)=(?:"([^"\\]*)"|([^\s",;\\]++)))?[ \t]*+(?:;|\Z)""")


def x_forwarded_for(text: str) -> Iterator[Address | None]:
    """The addresses of an X-Forwarded-For value from right to left; None for a member that is none.

    Ports, brackets and quotes around an address are let pass: Azure and AWS write them.
    """
    for member in _members_from_right(text, quotes=False):
        quoted = member and member[0] == member[-1] == '"'
        yield parse_address(member[1:-1] if member and quoted else member)


def forwarded(text: str) -> Iterator[Address | None]:
    """The `for` addresses of a Forwarded value from right to left.

    None for an element without exactly one, for a malformed one, and for `unknown` and `_hidden`.
    """
    for member in _members_from_right(text, quotes=True):
        yield parse_address(_for_value(member)) if member else None


def _members_from_right(text: str, *, quotes: bool) -> Iterator[str | None]:
    """List members from right to left without the empty ones (RFC 9110, 5.6.1); None for one that is cut or too long.

    Within `quotes`, a comma is none. What is too far to the left to be looked at is one more None.
    """
    floor, end = max(0, len(text) - _WINDOW), len(text)
    for _ in range(_MAX_MEMBERS):
        start = _member_start(text, floor, end) if quotes else text.rfind(",", floor, end) + 1
        if floor and not start:
            break
        member = text[start:end].strip(" \t")
        if member:
            yield member if len(member) <= _MAX_MEMBER_LENGTH else None
        if not start:
            return
        end = start - 1
    yield None


def _member_start(text: str, floor: int, end: int) -> int:
    """Where the member that ends at `end` starts: behind the next comma to the left with even quotes behind it.

    0 when there is none.
    """
    comma, odd = end, 0
    while comma > floor:
        before = comma
        comma = text.rfind(",", floor, before)
        odd ^= text.count('"', max(comma, floor), before) & 1
        if comma < 0 or not odd:
            return comma + 1
    return 0


def _for_value(element: str) -> str | None:
    """What the one `for` of an element says; None when it is not well-formed."""
    if element.lower().count("for=") != 1:  # not in quotes either: there it is another element's, swallowed
        return None
    value, end = None, 0
    while end < len(element):
        pair = _PAIR.match(element, end)
        if pair is None:
            return None
        name, quoted, plain = pair.groups()
        if name and name.lower() == "for":
            value = quoted if plain is None else plain
        end = pair.end()
    return value
