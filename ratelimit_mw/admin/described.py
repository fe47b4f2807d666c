"""Makes a request from its description on the command line of an operator."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.http.networks import parse_address
from ratelimit_mw.http.scopes import scope_from_parts
from ratelimit_mw.http.views import AsgiRequest

_REQUEST_PARTS: Final = 2  # method and path


class DescribedRequest(Struct, frozen=True):
    """The description of a request.

    `line`: method and path, `POST /login`; a path alone is a GET. `ip`: the address of the socket's peer; empty or None
    for none. `user`: the name of the logged-in user. `headers`: `NAME: VALUE` texts, or a mapping. `host`: the same as
    a header `Host`. Raises `ConfigError` for an invalid part, with the name of its option on the command line.
    """

    line: str
    ip: str | None = None
    user: str | None = None
    headers: Sequence[str] | Mapping[str, str] = ()
    host: str | None = None

    def __post_init__(self) -> None:
        self.request()

    @property
    def method_and_target(self) -> tuple[str, str]:
        """The method, and the path with its query."""
        parts = self.line.split() if isinstance(self.line, str) else []
        if len(parts) == 1:
            parts.insert(0, "GET")
        if len(parts) != _REQUEST_PARTS or not parts[0].isalpha() or not parts[1].startswith("/"):
            raise ConfigError(
                f"--request: got {self.line!r}, expected a method and a path such as 'POST /login'", code="RL-051"
            )
        return parts[0].upper(), parts[1]

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as ASGI has them."""
        if isinstance(self.headers, str) or not isinstance(self.headers, (Mapping, Sequence)):
            raise ConfigError(
                f"--header: got {self.headers!r:.100}, expected a list of texts such as 'X-Api-Key: abc'", code="RL-051"
            )
        given = self.headers
        lines = [f"{name}: {value}" for name, value in given.items()] if isinstance(given, Mapping) else given
        raw = [_header(line) for line in lines]
        return raw if self.host is None else [(b"host", _to_bytes("--host", self.host)), *raw]

    def request(self, route: str | None = None) -> AsgiRequest:
        """Return the request. `route`: the framework's template of its path, if known."""
        method, target = self.method_and_target
        if self.ip and parse_address(self.ip) is None:
            raise ConfigError(
                f"--ip: got {self.ip!r}, expected an address such as 192.0.2.1 or 2001:db8::1, or ''", code="RL-051"
            )
        client = (self.ip, 0) if self.ip else None
        scope = scope_from_parts(method, target.encode(), self.raw_headers, client, self.user or "")
        return AsgiRequest(scope, self.ip or None, route=route)


def _header(line: str) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise ConfigError(
            f"--header: got {line!r}, expected a name and a value such as 'X-Api-Key: abc'", code="RL-051"
        )
    return _to_bytes("--header", name.strip().lower()), _to_bytes("--header", value.strip())


def _to_bytes(argument: str, text: str) -> bytes:
    if not text.isprintable():
        raise ConfigError(f"{argument}: got {text!r}, expected text without control characters", code="RL-051")
    return text.encode()
