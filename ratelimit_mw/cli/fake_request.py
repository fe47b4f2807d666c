"""Builds a made-up request from command-line arguments."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.http.request import Request, strip_root

EXAMPLE_IP: Final = "192.0.2.1"  # an address for documentation (RFC 5737), which no network uses
_PARTS: Final = 2  # method and path


class _MadeUpRequest(Request):
    """A request that no server received. `raw` is an ASGI scope that contains only what the arguments specify."""

    __slots__ = ("_user",)

    def __init__(self, raw: Mapping[str, Any], user: str | None) -> None:
        super().__init__(raw, raw["client"][0] if raw["client"] else None)
        self._user = user

    @property
    def method(self) -> str:
        return str(self.raw["method"])

    @property
    def path(self) -> str:
        return strip_root("", self.raw["path"])

    @property
    def headers(self) -> Mapping[str, str]:
        names = dict.fromkeys(name.decode("latin-1") for name, _ in self.raw["headers"])
        return {name: ", ".join(self.header_lines(name)) for name in names}

    def header_lines(self, name: str) -> Sequence[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for header_name, value in self.raw["headers"] if header_name == wanted]

    @property
    def user(self) -> str | None:
        return self._user


def request_from_args(args: argparse.Namespace) -> Request:
    """Build the request that the arguments describe. Raises `ConfigError` for invalid arguments."""
    method, target = _parse_request_line(args.request)
    if args.ip and parse_address(args.ip) is None:
        raise ConfigError(f"--ip: got {args.ip!r}, expected an address such as 192.0.2.1 or 2001:db8::1, or ''")
    path, _, query = target.partition("?")
    headers = [_parse_header(text) for text in args.header]
    if args.host is not None:
        headers.insert(0, (b"host", _to_bytes("--host", args.host)))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": unquote_to_bytes(path).decode("utf-8", "replace"),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": (args.ip, 0) if args.ip else None,
        "state": {},
    }
    return _MadeUpRequest(scope, args.user or None)


def _parse_request_line(text: str) -> tuple[str, str]:
    parts = text.split()
    if len(parts) == 1:
        parts.insert(0, "GET")
    if len(parts) != _PARTS or not parts[0].isalpha() or not parts[1].startswith("/"):
        raise ConfigError(f"--request: got {text!r}, expected a method and a path such as 'POST /login'")
    return parts[0].upper(), parts[1]


def _parse_header(text: str) -> tuple[bytes, bytes]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError(f"--header: got {text!r}, expected a name and a value such as 'X-Api-Key: abc'")
    return _to_bytes("--header", name.strip().lower()), _to_bytes("--header", value.strip())


def _to_bytes(argument: str, text: str) -> bytes:
    if not text.isprintable():
        raise ConfigError(f"{argument}: got {text!r}, expected text without control characters")
    return text.encode()
