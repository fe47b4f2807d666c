"""Requests as they are in Django."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.http.request import HttpHeaders
from django.utils.functional import LazyObject, SimpleLazyObject, empty

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Request, user_id
from ratelimit_mw.http.underscore_headers import keeps_underscores

_NOT_LOADED: Final = object()
_AUTHENTICATION: Final = "django.contrib.auth.middleware"  # where Django's own middleware is


class UserNotLoaded(BaseException):
    """Who is logged in has to be awaited first. No `Exception`: callables that catch those are none the wiser."""


class DjangoRequest(Request):
    """A view of Django's request, which is `raw`. The path is the one that Django resolves, below the script's name."""

    __slots__ = ()
    raw: HttpRequest

    def __init__(self, raw: HttpRequest, state: RateLimitState | None) -> None:
        Request.__init__(self, raw, raw.META.get("REMOTE_ADDR") or None, state, route_of(raw))

    @property
    def method(self) -> str:
        """`GET`, in upper case."""
        return self.raw.method or "GET"

    @property
    def path(self) -> str:
        """As Django resolves it."""
        return self.raw.path_info or "/"

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        return {name.lower(): value for name, value in self.raw.headers.items()}

    def header_lines(self, name: str) -> Sequence[str]:
        """One line at most: Django has made one of several, with commas."""
        value = self.raw.META.get(HttpHeaders.to_wsgi_name(name))
        return () if value is None else (value,)

    @property
    def keeps_underscores(self) -> bool:
        """Whether the WSGI server does; under ASGI, Django drops such names itself."""
        return not hasattr(self.raw, "scope") and keeps_underscores(self.raw.META)

    @property
    def user(self) -> str | None:
        """`request.user`, as AuthenticationMiddleware or whoever stands further out has set it."""
        user = getattr(self.raw, "user", None)
        return None if user is None or _has_no_session(self.raw, user) else user_id(user)


class AsyncDjangoRequest(DjangoRequest):
    """The same where nothing may block. `user`: raises `UserNotLoaded` unless it is known, or was handed in."""

    __slots__ = ("_user",)

    def __init__(self, raw: HttpRequest, state: RateLimitState | None, user: Any = _NOT_LOADED) -> None:
        super().__init__(raw, state)
        self._user = user

    @property
    def user(self) -> str | None:
        """`request.user`, unless that would ask a database."""
        if self._user is _NOT_LOADED:
            user = getattr(self.raw, "user", None)
            if _has_no_session(self.raw, user):
                user = None
            elif isinstance(user, LazyObject):
                raise UserNotLoaded
            self._user = user_id(user)
        known: str | None = self._user
        return known


def _has_no_session(raw: HttpRequest, user: object) -> bool:
    """Whether `user` would be looked for in a session that has nothing in it, not even a key from a cookie.

    Then nobody is logged in. To look would mark the session as read, and Django would add `Vary: Cookie` to a page that
    is the same for all. Only the lazy user of Django's own AuthenticationMiddleware is known to need a session.
    """
    if type(user) is not SimpleLazyObject:
        return False
    parts = vars(user)
    if parts.get("_wrapped") is not empty or getattr(parts.get("_setupfunc"), "__module__", "") != _AUTHENTICATION:
        return False
    session = getattr(raw, "session", None)
    return isinstance(session, SessionBase) and session.is_empty()


async def load_user(raw: HttpRequest) -> str | None:
    """Who is logged in: by `auser`, or in a thread where a middleware has set a lazy `user` alone."""
    try:
        return user_id(await raw.auser()) if hasattr(raw, "auser") else await sync_to_async(user_id)(raw.user)
    except Exception as error:  # noqa: BLE001  # as in user_id: whom a database does not name counts as nobody
        warn_throttled("user", "raised", error=error)
        return None


def route_of(raw: HttpRequest) -> str | None:
    """The route of the view, as urlpatterns have it; None for what has no view."""
    match = getattr(raw, "resolver_match", None)
    return None if match is None else f"/{match.route}"
