"""Decides who may see the dashboard, and who may change something.

With a secret: the cookie of a login, or the secret itself, as Bearer or as the password of Basic. With `authorize`: as
it says. With neither: callers on this host, as viewers only, for a development server: a proxy on this host cannot be
told from them. For others, nothing is read from the store.
"""

import os
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from hmac import compare_digest, digest
from secrets import token_urlsafe
from typing import Any, Final, Literal

from msgspec import Struct

from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.http.callers import checked_secret, is_local, is_loopback
from ratelimit_mw.http.client_ip import ClientIPResolver, client_address
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.loading import DASHBOARD_SECRET
from ratelimit_mw.stores.memory import MemoryStore

Role = Literal["viewer", "operator"]
Authorize = Callable[[Request], Any]
"""Returns the role of who sent a request; None or False for no access. May be async under ASGI."""

COOKIE: Final = "ratelimit_mw"
_ROLES: Final = ("viewer", "operator")
_SESSION: Final = 12 * 3600  # seconds
_TRIES: Final = parse("10/minute using fixed_window")[0]  # wrong secrets of an address
_IPV6_PREFIX: Final = 64
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
_OLD: Final = ("", "0.9", "1.0")  # versions of HTTP that proxies send by default, as nginx does, and browsers do not
_NAME: Final = "dashboard"  # of a person who has no name
_OPEN: Final = (
    "write: true without a secret or authorize, so that behind a proxy on this host, anybody may change limits; "
    f"set {DASHBOARD_SECRET}, `secret` or `authorize`"
)
_NO_ROLE: Final = "authorize: returned %.100s, expected None, 'viewer' or 'operator', so the request gets no answer"


class Denied(Exception):
    """A request that gets no answer. `retry_after`: seconds until the address may try again."""

    def __init__(self, status: int, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status: Final = status
        self.retry_after: Final = retry_after


class Viewer(Struct, frozen=True):
    """Who sent a request. `credential`: what proves it, from which the token is made. `until`: the end of the session.

    `cookie`: to be set, because the request had none.
    """

    name: str
    role: Role
    credential: str
    until: float | None = None
    cookie: str | None = None

    @property
    def token(self) -> str:
        """The token that a POST has to send, and that another site's page cannot know."""
        return digest(self.credential.encode("utf-8", "replace"), b"X-Token", "sha256").hex()


class Access:
    """Checks requests. `has_secret`: whether there is a login page. Raises `ConfigError` for an invalid secret.

    `secret`: None for that of the environment. `authorize`: see `Authorize`. `write`: whether operators may change
    something, which needs one of them.
    """

    def __init__(
        self,
        settings: Settings,
        secret: str | None,
        authorize: Authorize | None,
        *,
        write: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if secret is None and authorize is None:
            secret = os.environ.get(DASHBOARD_SECRET)
        if secret == "":
            raise ConfigError("secret: is empty, expected at least 16 characters", code="RL-070")
        if authorize is not None and not callable(authorize):
            raise ConfigError(f"authorize: got {authorize!r:.100}, expected a callable of the request", code="RL-071")
        if secret is not None and authorize is not None:
            raise ConfigError("dashboard: got both secret and authorize, expected one of them", code="RL-071")
        if write and not secret and authorize is None:
            raise ConfigError(_OPEN, code="RL-070")
        self._secret: Final = checked_secret(secret or "", "secret").encode()
        self.authorize: Final = authorize
        self.has_secret: Final = bool(self._secret)
        self._clock: Final = clock
        self._resolver: Final = ClientIPResolver(settings.trusted_proxies, settings.proxy_header)
        self._ended: Mapping[str, float] = {}  # cookies of sessions that were ended, by when they would have
        self._tries: Final = MemoryStore(max_keys=10_000)

    def viewer(self, request: Request, cookie: str | None, authorized: object = None, page: str = "") -> Viewer:
        """Return who sent a request. Raises `Denied`. `authorized`: by `authorize`. `page`: of the cookie."""
        if self.authorize is not None:
            return self._authorized(request, cookie, authorized)
        if not self._secret:
            return self._local(request, cookie)
        session = self._session(cookie, page)
        if session is not None:
            return session
        name, sent = _sent_secret(request.header("authorization"))
        if sent is None:
            raise Denied(401, "Authorization: missing, expected the secret of the dashboard")
        self.check(request, sent)
        return Viewer(name or _NAME, "operator", self._secret.decode())

    def check(self, request: Request, sent: str) -> None:
        """Raise `Denied` for a wrong secret; after ten of an address in a minute, it tells the time to wait."""
        if compare_digest(sent.encode("utf-8", "replace"), self._secret):
            return  # also after wrong ones, which others behind the same address may send
        charge = Charge(f"{{{self._address(request)}}}:secret", _TRIES)
        (decision,) = self._tries.peek([charge])
        if not decision.allowed:
            wait = f"{decision.retry_after:.0f}"
            raise Denied(429, f"Too many tries: try again in {wait} s.", decision.retry_after)
        self._tries.take([charge])
        raise Denied(401, "Wrong secret.")

    def new_session(self, page: str) -> tuple[str, int]:
        """Return the value of a cookie for a page, and the seconds for which it is valid."""
        value = f"{int(self._clock()) + _SESSION}.{token_urlsafe(16)}"
        return f"{value}.{self._mac(value, page)}", _SESSION

    def end_session(self, viewer: Viewer) -> None:
        """Let this process accept the cookie of a viewer no longer."""
        now = self._clock()
        ended = {one: until for one, until in self._ended.items() if until > now}
        self._ended = ended if viewer.until is None else {**ended, viewer.credential: viewer.until}

    def is_secure(self, request: Request) -> bool:
        """Return whether a trusted proxy says that a request came by HTTPS."""
        if not self._resolver.trusts(_peer(request.raw)):
            return False
        name, start = ("forwarded", "proto=") if self._resolver.header == "forwarded" else ("x-forwarded-proto", "")
        last = ",".join(request.header_lines(name)).rpartition(",")[2].lower().replace('"', "")
        return f"{start}https" in [part.strip() for part in last.split(";")]

    def _session(self, cookie: str | None, page: str) -> Viewer | None:
        value, _, mac = (cookie or "").rpartition(".")
        if not value or not compare_digest(mac.encode("utf-8", "replace"), self._mac(value, page).encode()):
            return None
        if cookie in self._ended:
            return None
        until = float(value.partition(".")[0])
        return Viewer(_NAME, "operator", cookie or "", until) if until > self._clock() else None

    def _mac(self, value: str, page: str) -> str:
        return digest(self._secret, f"session:{value}:{page}".encode("utf-8", "replace"), "sha256").hex()

    def _authorized(self, request: Request, cookie: str | None, authorized: object) -> Viewer:
        if authorized is None or authorized is False:
            raise Denied(401, "authorize: returned no role for this request")
        if authorized not in _ROLES:
            warn_throttled("dashboard authorize", _NO_ROLE, repr(authorized), code="RL-258")
            raise Denied(401, "authorize: returned no role for this request")
        role: Role = "operator" if authorized == "operator" else "viewer"
        return _with_cookie(request.user or _NAME, role, cookie)

    def _local(self, request: Request, cookie: str | None) -> Viewer:
        """Return a viewer, for a caller on this host that shows no sign of a proxy, and no page of another site."""
        host = (request.header("host") or "").rpartition(":")[0] or request.header("host") or ""
        host = host.removeprefix("[").removesuffix("]")
        is_here = is_local(_server(request.raw), _peer(request.raw)) and (host == "localhost" or is_loopback(host))
        is_here = is_here and _version(request.raw) not in _OLD
        if not is_here or any(request.header_lines(name) for name in _FORWARDED):
            raise Denied(401, f"secret: the dashboard has none, so it answers on loopback only; set {DASHBOARD_SECRET}")
        return _with_cookie(_NAME, "viewer", cookie)

    def _address(self, request: Request) -> str:
        client = self._resolver.client_in(_peer(request.raw), request.header_lines)
        return client_address(client, _IPV6_PREFIX) or ""


def _with_cookie(name: str, role: Role, cookie: str | None) -> Viewer:
    """Return a viewer whose token is made from a cookie, as all processes can check it."""
    if cookie:
        return Viewer(name, role, cookie)
    new = token_urlsafe(24)
    return Viewer(name, role, new, cookie=new)


def _sent_secret(header: str | None) -> tuple[str, str | None]:
    """Return the name and the secret in `Authorization`; None if it has none."""
    kind, _, value = (header or "").strip().partition(" ")
    if kind.lower() == "bearer":
        return "", value.strip()
    if kind.lower() != "basic":
        return "", None
    try:
        name, colon, secret = b64decode(value.strip(), validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return (name if name.isprintable() else "")[:100], secret if colon else ""


def _peer(raw: Mapping[str, Any]) -> str | None:
    client = raw.get("client")
    return client[0] if client else raw.get("REMOTE_ADDR") or None


def _server(raw: Mapping[str, Any]) -> str | None:
    server = raw.get("server")
    return server[0] if server else raw.get("SERVER_NAME") or None


def _version(raw: Mapping[str, Any]) -> str:
    version: str = raw.get("http_version") or raw.get("SERVER_PROTOCOL") or ""
    return version.removeprefix("HTTP/")
