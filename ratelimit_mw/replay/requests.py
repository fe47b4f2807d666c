"""The requests of a log, in the form that rules and keys read."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from ratelimit_mw.http.views import AsgiRequest

_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "v": "\v", "f": "\f"}
_METHOD: Final = re.compile(r"[A-Za-z]{1,32}")
_MAX_TARGET: Final = 65_536  # characters; longer ones are cut by every server


class LoggedRequest(AsgiRequest):
    """A request as the log describes it. The text is the log's bytes, decoded as latin-1."""

    __slots__ = ("_user",)

    def __init__(self, request: str, client: str | None, user: str | None, headers: Sequence[tuple[str, str]]) -> None:
        method, _, target = request.partition(" ")
        raw_path = to_bytes(target)
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": unquote_to_bytes(raw_path).decode("utf-8", "replace"),
            "raw_path": raw_path,
            "query_string": b"",
            "root_path": "",
            "headers": [(to_bytes(name), to_bytes(value)) for name, value in headers],
            "client": (client, 0) if client else None,
            "state": {},
        }
        super().__init__(scope, client or None)
        self._user = user

    @property
    def user(self) -> str | None:
        """The user that the log names."""
        return self._user


def request_of(text: str) -> str:
    """Return `METHOD /path` of a request line, without its query; empty if it is not an HTTP request."""
    parts = text.split(" ", 2)
    return request_from(parts[0], parts[1]) if len(parts) > 1 else ""


def request_from(method: str, target: str) -> str:
    """Return `METHOD /path` of a method and a target, without its query; empty if it is not an HTTP request."""
    if not _METHOD.fullmatch(method) or not target:
        return ""
    return f"{method.upper()} {target[:_MAX_TARGET].partition('?')[0]}"


def path_of_url(url: str) -> str:
    """Return the path of a whole URL, which is the target that the app received; other text unchanged."""
    _, scheme, rest = url.partition("://")
    if not scheme or url.startswith("/"):
        return url
    slash = rest.find("/")
    return rest[slash:] if slash >= 0 else "/"


def host_of_url(url: str) -> str:
    """Return the host and port of a whole URL; empty for other text."""
    _, scheme, rest = url.partition("://")
    return rest.partition("/")[0] if scheme and not url.startswith("/") else ""


def unescaped(text: str) -> str:
    r"""Undo the escapes that servers write into logs: `\x22`, `\"`, `\n`, `\u0022`."""
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    if found[2]:
        return as_latin(chr(int(found[2], 16)))
    return _CONTROLS.get(found[3], found[3])


def to_bytes(text: str) -> bytes:
    """Return the bytes of a log's text."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:  # text that the user assumes
        return text.encode("utf-8", "surrogatepass")


def as_latin(text: str) -> str:
    """Return text in the form of a log's text: its bytes in UTF-8, decoded as latin-1."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("latin-1")


@lru_cache(maxsize=4096)
def user_of(text: str) -> str | None:
    """Return the user that a log names; None for `-` and empty text."""
    if text in ("", "-"):
        return None
    return text if text.isascii() else to_bytes(text).decode("utf-8", "replace")
