"""What is wrong with a URL that the client library cannot read."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import RedisError

_OPTION: Final = re.compile(r"[a-z_]{1,50}")  # anything else may be a piece of a password


def describe_url_mistake(pool: Any, url: str, options: Mapping[str, Any]) -> str:
    """Which part of a URL the client library cannot read, in words; empty where that is not known. Never its value."""
    scheme, _, rest = url.partition("://")
    if "#" in rest:
        return ": everything from '#' is cut off, so a password must have %23 in its place"
    place, _, query = rest.partition("?")
    if "@" in place.partition("/")[2] and scheme != "unix":
        return ": there is a '/' before '@', so a password must have %2F in its place"
    if "@" in query and "@" not in place:
        return ": there is a '?' before '@', so a password must have %3F in its place"
    try:
        urlsplit(f"{scheme}://{place}").port  # noqa: B018  # reading it checks it
    except ValueError:
        return ": the port is no number from 0 to 65535"
    for name, value in parse_qsl(query, keep_blank_values=True):
        try:
            one = pool.from_url(f"{scheme}://{'/' if scheme == 'unix' else 'h'}?{urlencode({name: value})}", **options)
            one.connection_class(**one.connection_kwargs)
        except (ValueError, TypeError, RedisError):
            fix = "; TLS is asked for with rediss://" if name == "ssl" else ""
            shown = f"the option {name!r}" if _OPTION.fullmatch(name) else "an option"
            return f": {shown} is unknown or has a wrong value{fix}"
    return ""
