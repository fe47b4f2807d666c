"""Parses X-Forwarded-For and Forwarded (RFC 7239) from right to left.

Each proxy appends one member at the right end. Anything to the left of that may come from the client. So the parser
takes one member after another from the right, and reads each before it looks at the text to the left. A quote, a comma
or a megabyte from the client therefore cannot change how a proxy's member is read.
"""

import re
from collections.abc import Iterator

from ratelimit_mw.http.networks import Address, parse_address

_WINDOW = 8192  # characters that are read, from the end
_MAX_MEMBER_LENGTH = 512  # characters of one member
_MAX_MEMBERS = 256  # members of a list, including empty ones

# One pair and the `;` after it (RFC 7239, 4). Also accepts what some proxies write: spaces around `;`, and unquoted
# `[` and `:`. Rejects a backslash in quotes: no address needs one, and parsers differ in what it escapes.
_PAIR = re.compile(r"""[ \t]*+(?:([!#$%&'*+.^_`|~0-9A-Za-z-]++)=(?:"([^"\\]*)"|([^\s",;\\]++)))?[ \t]*+(?:;|\Z)""")


def x_forwarded_for(text: str) -> Iterator[Address | None]:
    """Yield the addresses of an X-Forwarded-For value from right to left; None for a malformed member.

    Ports, brackets and quotes around an address are accepted, because Azure and AWS write them.
    """
    for member in _members_from_right(text, quotes=False):
        quoted = member and member[0] == member[-1] == '"'
        yield parse_address(member[1:-1] if member and quoted else member)


def forwarded(text: str) -> Iterator[Address | None]:
    """Yield the `for` addresses of a Forwarded value from right to left.

    Yields None for a malformed element, for one without exactly one `for`, and for `unknown` and `_hidden`.
    """
    for member in _members_from_right(text, quotes=True):
        yield parse_address(_for_value(member)) if member else None


def _members_from_right(text: str, *, quotes: bool) -> Iterator[str | None]:
    """Yield the members of a list from right to left, without empty ones (RFC 9110, 5.6.1).

    Yields None for a member that is too long. Ends with None if the list exceeds `_WINDOW` or `_MAX_MEMBERS`. `quotes`:
    a comma in quotes does not separate members.
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
    """Return where the member that ends at `end` starts, or 0 if no comma to the left separates it.

    A comma separates if the number of quotes between it and `end` is even.
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
    """Return the value of an element's only `for`; None if the element is malformed."""
    # A `for=` inside quotes counts, too: an unbalanced quote may have joined two elements, and it may belong to the
    # other.
    if element.lower().count("for=") != 1:
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
