"""Requests as they are in ASGI and in WSGI."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ratelimit_mw.request import Request, as_text, below, user_id


class AsgiRequest(Request):
    """A view of an ASGI scope, of HTTP or a websocket."""

    __slots__ = ()

    @property
    def method(self) -> str:
        method: str = self.raw.get("method", "GET")
        return method.upper()

    @property
    def path(self) -> str:
        return below(self.raw.get("root_path", ""), self.raw["path"])

    @property
    def headers(self) -> Mapping[str, str]:
        found: dict[bytes, list[bytes]] = {}
        for name, value in self.raw["headers"]:
            found.setdefault(name.lower(), []).append(value)
        return {name.decode("latin-1"): b", ".join(values).decode("latin-1") for name, values in found.items()}

    def header_lines(self, name: str) -> Sequence[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for key, value in self.raw["headers"] if key.lower() == wanted]

    @property
    def user(self) -> str | None:
        user = self.raw.get("user")
        return None if user is None else user_id(user)


class WsgiRequest(Request):
    """A view of a WSGI environ."""

    __slots__ = ()

    @property
    def method(self) -> str:
        method: str = self.raw["REQUEST_METHOD"]
        return method.upper()

    @property
    def path(self) -> str:
        # PEP 3333: text that holds bytes as latin-1. SCRIPT_NAME is not part of PATH_INFO.
        return below("", self.raw.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace"))

    @property
    def headers(self) -> Mapping[str, str]:
        found = {
            name[5:].replace("_", "-").lower(): value for name, value in self.raw.items() if name.startswith("HTTP_")
        }
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if self.raw.get(name):
                found[name.replace("_", "-").lower()] = self.raw[name]
        return found

    def header_lines(self, name: str) -> Sequence[str]:
        value = self.raw.get(_variable(name))
        return () if value is None else (value,)

    @property
    def user(self) -> str | None:
        return as_text(self.raw.get("REMOTE_USER"))


@lru_cache(maxsize=256)
def _variable(name: str) -> str:
    """Where a WSGI environ keeps a header."""
    variable = name.upper().replace("-", "_")
    return variable if variable in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{variable}"
