"""The answers of the dashboard: files of the package, JSON and errors, all with the same protection."""

import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, Final

from msgspec import Struct, json

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NAME: Final = re.compile(r"[\w-][\w.-]*", re.ASCII)  # within the folder
_UPLOT: Final = ("uPlot.iife.min.js", "uPlot.min.css")
_CLOSED: Final = "frame-ancestors 'none'; base-uri 'none'"
_PAGE: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    f"form-action 'none'; {_CLOSED}"
)
_LOGIN: Final = "default-src 'none'; style-src 'sha256-{}'; img-src data:; form-action 'self'; " + _CLOSED
_NOTHING: Final = f"default-src 'none'; {_CLOSED}"
_CODE: Final = re.compile(r" \[(RL-\d{3})\]$")
_MESSAGE: Final = "<!-- message -->"


class Answer(Struct, frozen=True):
    """An answer, for any server. `fields`: headers in addition to those that all answers have."""

    status: int
    body: bytes = b""
    kind: str = "application/json"
    fields: Sequence[tuple[str, str]] = ()
    policy: str = _NOTHING

    @property
    def headers(self) -> list[tuple[str, str]]:
        """All headers."""
        return [
            ("Content-Type", self.kind),
            ("Content-Length", str(len(self.body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", self.policy),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            *self.fields,
        ]


def json_answer(value: Any, status: int = 200, fields: Sequence[tuple[str, str]] = ()) -> Answer:
    """Return an answer in JSON."""
    return Answer(status, json.encode(value), fields=fields)


def error_answer(status: int, text: str, fields: Sequence[tuple[str, str]] = ()) -> Answer:
    """Return an error. The code at the end of a text becomes a field."""
    code = _CODE.search(text)
    value = {"error": _CODE.sub("", text), **({} if code is None else {"code": code[1]})}
    return json_answer(value, status, fields)


def asset(name: str) -> Answer | None:
    """Return a file of the page; None if there is none of this name."""
    name = name or "index.html"
    kind = _TYPES.get(name.rpartition(".")[2])
    if kind is None or not _NAME.fullmatch(name) or name == "login.html":
        return None
    found = _read("ratelimit_mw.replay", "uplot", name) if name in _UPLOT else _read("ratelimit_mw.dashboard", name)
    return None if found is None else Answer(200, found, kind, policy=_PAGE)


def login_page(status: int, message: str, fields: Sequence[tuple[str, str]] = ()) -> Answer:
    """Return the page that asks for the secret."""
    page = (_read("ratelimit_mw.dashboard", "login.html") or b"").decode()
    style = page.partition("<style>")[2].partition("</style>")[0]
    policy = _LOGIN.format(b64encode(sha256(style.encode()).digest()).decode())
    return Answer(status, page.replace(_MESSAGE, escape(message)).encode(), _TYPES["html"], fields, policy)


def _read(package: str, *path: str) -> bytes | None:
    file = files(package).joinpath("assets", *path)
    return file.read_bytes() if file.is_file() else None
