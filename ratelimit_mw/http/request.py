"""What rules, keys and callables may look at, the same for every framework."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from ratelimit_mw.core.log import warn_throttled

_LARGEST: Final = 10**100  # no number of anything; writing much larger ones out is not free, or fails
_USER_NAMES: Final = ("identity", "pk", "id", "username", "display_name")


class Request(ABC):
    """A view of one request. Nothing but the client's address is read before it is asked for; the body never is.

    `raw`: the ASGI scope or the WSGI environ. `client`: the client's address: the socket's other end, as the server
    wrote it, or whom trusted proxies name; None where there is none, as on a unix socket. `route`: the framework's
    route template, where the face knows it. `state`: what those of us further out have found, if there are any.
    `messages`: what limits the messages of a websocket, once rules were looked for; None where nothing does.
    `on_end`: who is to hear how an admitted request was answered; None where nobody is.
    """

    __slots__ = ("client", "messages", "on_end", "raw", "route", "state")

    def __init__(self, raw: Any, client: str | None, state: Any = None, route: str | None = None) -> None:
        self.raw = raw
        self.client = client
        self.state = state
        self.route = route
        self.messages: Any = None
        self.on_end: Any = None

    @property
    @abstractmethod
    def method(self) -> str:
        """`GET`, in upper case; a websocket's handshake is a GET."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The decoded path below root_path or SCRIPT_NAME, as the client sent it."""

    @property
    def paths(self) -> Sequence[str]:
        """`path`; besides it what else supported frameworks make of the same request target, where they differ."""
        return (self.path,)

    @property
    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """All headers, names in lower case; several lines of one name are joined by `, `."""

    @abstractmethod
    def header_lines(self, name: str) -> Sequence[str]:
        """All lines of a header, in order; `name` in lower case. WSGI servers make one line of several, with commas."""

    @property
    def keeps_underscores(self) -> bool:
        """Whether the server takes a header `X_Y` for `X-Y`, as some WSGI servers do."""
        return False

    @property
    @abstractmethod
    def user(self) -> str | None:
        """Who is logged in, as the authentication outside of this middleware says; None for nobody."""

    def header(self, name: str) -> str | None:
        """A header that stands there once; `name` in lower case.

        Of several lines an app may read the first, the last or all: none of them says whose request it is.
        """
        values = self.header_lines(name)
        return values[0] if len(values) == 1 else None

    @property
    def cookies(self) -> Mapping[str, str]:
        """The cookies that mean the same to every app: of one name none with several values, none with escapes."""
        values: dict[str, str | None] = {}
        for pair in self.headers.get("cookie", "").replace(", ", ";").split(";"):
            name, _, raw = pair.partition("=")
            name, value = name.strip(), raw.strip().strip('"')
            same = values.get(name, value) == value and "\\" not in value
            values[name] = value if same else None
        return {name: value for name, value in values.items() if value is not None}


def strip_root(root: str, path: str) -> str:
    """`path` without `root` in front, if it lies below it."""
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :] or "/"
    return path or "/"


def user_id(user: object) -> str | None:
    """The name under which a framework's user object is counted.

    The first of identity, pk, id, username, display_name.
    """
    try:
        authenticated = getattr(user, "is_authenticated", False)
        if not (authenticated() if callable(authenticated) else authenticated):
            return None
    except Exception as error:  # noqa: BLE001  # a lazy user may ask a database
        warn_throttled("user", "is_authenticated raised", error=error)
        return None
    for name in _USER_NAMES:
        try:
            text = as_text(getattr(user, name, None))
        except Exception:  # noqa: BLE001, S112  # Starlette's BaseUser raises for what it does not define
            continue
        if text:
            return text
    return None


def as_text(value: object) -> str | None:
    """`value` as a key: text, or a whole number or UUID written out. None when it is none of these, or empty."""
    if isinstance(value, str):
        return str.__str__(value) or None
    if isinstance(value, int) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST:
        return str(int(value))
    if isinstance(value, UUID):
        return str(value)
    return None
