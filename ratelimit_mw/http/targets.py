"""Lists the paths that supported servers and frameworks read from one request target."""

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlparse, urlsplit

_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_DIGITS: Final = "0123456789abcdefABCDEF"
_BYTES: Final = {(high + low).encode(): bytes.fromhex(high + low) for high in _DIGITS for low in _DIGITS}
_UWSGI_PART: Final = re.compile(rb"(?:/|\A)(\.\.?)(?=/|\Z)|%(%|.?.?)|[^/%]+|/", re.DOTALL)


def paths_of_target(target: bytes) -> Sequence[str]:
    """Return every path that an app may read from a target, each once, if its server and framework are unknown.

    `target`: as the client sent it, with or without the query. The first path is the one that most apps read.
    """
    raw: dict[bytes, None] = {}
    for part in (target.partition(b"#")[0], target):  # uvicorn with h11, hypercorn and daphne keep `#` in the path
        path = part.partition(b"?")[0]
        raw |= dict.fromkeys((_without_origin(path), path, path.replace(b"\t", b"")))  # waitress drops tabs
        raw[b"/" + path.lstrip(b"/")] = None  # wsgiref and Werkzeug
        if b"/" not in path:
            raw[b"/"] = None  # granian, which reads a host
    unescaped = dict.fromkeys(map(unquoted, raw)) | dict.fromkeys(map(_as_in_uwsgi, raw))
    return readings(text for path in unescaped for text in decoded(path))


def readings(paths: Iterable[str]) -> Sequence[str]:
    """Return decoded paths, each once, and the path of each that is a whole URL (absolute form), as in Quart."""
    found: dict[str, None] = {}
    for path in paths:
        found |= dict.fromkeys((path or "/", path_of_url(path) or "/"))
    return tuple(found)


def decoded(path: bytes) -> Sequence[str]:
    """Return the text of a path without escapes; two texts if it is not UTF-8, because Bottle ignores such bytes."""
    try:
        return (path.decode(),)
    except UnicodeDecodeError:
        return path.decode("utf-8", "replace"), path.decode("utf-8", "ignore")


def path_of_url(path: str) -> str:
    """Return the path. Some servers pass a whole URL (absolute form); its path is extracted as in Quart."""
    if path[:1] == "/":
        return path
    try:
        return urlparse(path).path
    except ValueError:
        return path


def authority_of(target: bytes) -> bytes | None:
    """Return host and port of a target in absolute form; None for another target."""
    if target[:1] == b"/":
        return None
    try:
        return urlsplit(target).netloc or None
    except ValueError:
        return None


def unquoted(path: bytes) -> bytes:
    """Return a path with its escapes decoded, such as `%2F`. A `%` that begins no escape remains.

    Returns the same as `urllib.parse.unquote_to_bytes`, in a tenth of its time for each `%` that begins no escape.
    """
    parts = _ESCAPE.split(path)  # each second part is the digits of an escape
    parts[1::2] = map(_BYTES.__getitem__, parts[1::2])
    return b"".join(parts)


def _without_origin(path: bytes) -> bytes:
    """Return the path of a target in absolute form, as servers extract it; another target is unchanged."""
    if path[:1] == b"/":
        return path
    try:
        return urlsplit(path).path
    except ValueError:
        return path


def _as_in_uwsgi(path: bytes) -> bytes:
    """Return a path as uWSGI passes it on.

    It reads escapes and dot segments in one pass. `..` removes what has been read since the last slash, even if that
    slash was an escape, and an empty segment, too. A dot in an escape, or after a slash in one, begins no dot segment.
    `%%` is a `%`, and any other `%` that begins no escape becomes a null byte with the two bytes that follow, even if
    one is a slash.
    """
    kept = bytearray()
    for part in _UWSGI_PART.finditer(path):
        dots, digits = part.groups()
        if digits is not None:
            kept += _uwsgi_byte(digits)
        elif dots is None:
            kept += part[0]
        elif dots == b"..":
            del kept[max(kept.rfind(b"/"), 0) :]
        if dots and part.end() == len(path):
            kept += b"/"
    return bytes(kept)


def _uwsgi_byte(digits: bytes) -> bytes:
    if digits == b"%":
        return digits
    return _BYTES.get(digits, b"\0") if len(digits) > 1 else b""
