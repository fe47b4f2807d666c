"""The view of a request that rules, keys and callables read, the same for every framework."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.http.cookies import Cookies

_LARGEST: Final = 10**100  # no real id is larger, and converting a much larger integer to text is slow or fails
USER_NAMES: Final = ("identity", "pk", "id", "username", "display_name")


class Headers(Mapping[str, str]):
    """Headers that are found in any case of their names. `values`: with names in lower case, which iteration yields."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> str:
        return self._values[name if name in self._values else name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"


class Request(ABC):
    """A view of one request. Everything except the client's address is read on demand. The body is never read.

    `raw`: the ASGI scope or the WSGI environ. `client`: the client's address: that of the socket's peer as the server
    reports it, or that in the header of a trusted proxy. None without an address, as on a unix socket. `route`: the
    framework's route template, if the integration knows it. `outer`: the `RateLimitState` of outer gates, such as that
    of the middleware around an endpoint limit; None without any. `messages`: the limits on a websocket's messages, set
    when rules are matched; None without such limits. `on_end`: callbacks for the end of an admitted request's response;
    None without callbacks. `answer`: the response if the gate answers the request itself, see `engine.usage`; else
    None.
    """

    __slots__ = ("_cookies", "answer", "client", "messages", "on_end", "outer", "raw", "route")

    def __init__(self, raw: Any, client: str | None, outer: Any = None, route: str | None = None) -> None:
        self.raw = raw
        self.client = client
        self.outer = outer
        self.route = route
        self.messages: Any = None
        self.on_end: Any = None
        self.answer: Any = None
        self._cookies: Cookies | None = None

    @property
    @abstractmethod
    def method(self) -> str:
        """The method in upper case. A websocket's handshake is a `GET`."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The decoded path below root_path or SCRIPT_NAME, as the client sent it."""

    @property
    def paths(self) -> Sequence[str]:
        """`path`, and the other paths that supported frameworks read from the same request target, if they differ."""
        return (self.path,)

    @property
    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """All headers, found in any case of their names. Lines of one name are joined by `, `."""

    @abstractmethod
    def header_lines(self, name: str) -> Sequence[str]:
        """Return all lines of a header, in order; `name` is in any case. WSGI servers join several with commas."""

    @property
    def joined_values(self) -> re.Pattern[str] | None:
        """The comma with which the server may have joined a header `X_Y` to `X-Y`, as some WSGI servers do.

        A client can then forge `X-Y`. None if the server does not do so.
        """
        return None

    @property
    def is_peer_lost(self) -> bool:
        """Whether a TCP client reset its connection before the server read its address, as uvicorn reports it."""
        return False

    @property
    def is_answerable(self) -> bool:
        """Whether the gate may answer the request itself. False for a websocket, and for what a proxy has received."""
        return True

    @property
    @abstractmethod
    def user(self) -> str | None:
        """The user that outer middleware authenticated; None for an anonymous request."""

    @property
    def state(self) -> SimpleNamespace:
        """A copy of what outer ASGI middleware stored in `scope["state"]`, as attributes. Empty in WSGI and Django."""
        return SimpleNamespace()

    def header(self, name: str) -> str | None:
        """Return a header that the request has once, else None; `name` is in any case.

        Of several lines an app may read the first, the last or all, so none of them can identify the client.
        """
        values = self.header_lines(name)
        return values[0] if len(values) == 1 else None

    @property
    def cookies(self) -> Cookies:
        """The cookies, each read once."""
        if self._cookies is None:
            self._cookies = Cookies(self.header_lines("cookie"))
        return self._cookies


def strip_root(root: str, path: str) -> str:
    """Return `path` without the prefix `root`; unchanged if it is not below `root`."""
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :] or "/"
    return path or "/"


def user_id(user: object) -> str | None:
    """Return the id of a framework's user object; None if the user is not authenticated.

    The id is the first usable attribute of identity, pk, id, username, display_name.
    """
    try:
        authenticated = getattr(user, "is_authenticated", False)
        if not (authenticated() if callable(authenticated) else authenticated):
            return None
    except Exception as error:  # noqa: BLE001  # a lazy user may query a database
        warn_throttled(
            "user",
            "is_authenticated raised an error: the request counts as one without a user",
            error=error,
            code="RL-226",
        )
        return None
    for name in USER_NAMES:
        try:
            text = as_text(getattr(user, name, None))
        except Exception:  # noqa: BLE001, S112  # Starlette's BaseUser raises for attributes it does not define
            continue
        if text:
            return text
    return None


def as_text(value: object) -> str | None:
    """Return text, a whole number or a UUID as text; None for empty text and any other value."""
    if isinstance(value, str):
        return str.__str__(value) or None
    if isinstance(value, int) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST:
        return str(int(value))
    if isinstance(value, UUID):
        return str(value)
    return None
