"""Requests as Django represents them."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest
from django.http.request import HttpHeaders
from django.urls import LocalePrefixPattern
from django.utils.functional import LazyObject, SimpleLazyObject, empty
from django.utils.translation import override

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.engine.entrance import enter_wsgi
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Headers, Request, user_id
from ratelimit_mw.http.views import is_peer_lost, is_wsgi_peer_lost, joined_values, wsgi_lines
from ratelimit_mw.rules.rule_set import UNDECIDED, RuleSet, ShortWay
from ratelimit_mw.rules.rule_table import EndpointRules

LANGUAGE: Final = "<language>/"  # in routes, the prefix of `i18n_patterns`
_NOT_LOADED: Final = object()
_AUTHENTICATION: Final = "django.contrib.auth.middleware"  # the module of Django's AuthenticationMiddleware


class UserNotLoaded(BaseException):
    """Raised if the user must be awaited first. Not an `Exception`, so that callables do not catch it."""


class DjangoRequest(Request):
    """A request of Django, which is `raw`. The path is the one that Django resolves, below the script name."""

    __slots__ = ()
    raw: HttpRequest

    def __init__(self, raw: HttpRequest, state: RateLimitState | None) -> None:
        Request.__init__(self, raw, raw.META.get("REMOTE_ADDR") or None, state, route_of(raw))

    @property
    def method(self) -> str:
        """The method in upper case, such as `GET`."""
        return self.raw.method or "GET"

    @property
    def path(self) -> str:
        """The path as Django resolves it."""
        return self.raw.path_info or "/"

    @property
    def paths(self) -> Sequence[str]:
        """The path, and the one without REST framework's format suffix, if the view's route has one: `/items.json`."""
        bare, dot, suffix = self.path.rstrip("/").rpartition(".")
        return (self.path, bare) if dot and suffix == _format_of(self.raw) else (self.path,)

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers, found in any case of their names."""
        return Headers({name.lower(): value for name, value in self.raw.headers.items()})

    def header_lines(self, name: str) -> Sequence[str]:
        """Return at most one value, because Django joins several lines with commas."""
        value = self.raw.META.get(HttpHeaders.to_wsgi_name(name))
        return () if value is None else (value,)

    @property
    def joined_values(self) -> re.Pattern[str] | None:
        """See `http.views.joined_values`; None under ASGI, where Django drops names with underscores."""
        return None if hasattr(self.raw, "scope") else joined_values(self.raw.META)

    @property
    def is_peer_lost(self) -> bool:
        """Whether the server lost the client's address; see `http.views.is_peer_lost`."""
        scope = getattr(self.raw, "scope", None)
        return is_wsgi_peer_lost(self.raw.META) if scope is None else self.client is None and is_peer_lost(scope)

    @property
    def user(self) -> str | None:
        """The id of `request.user`, if AuthenticationMiddleware or other outer middleware has set it."""
        return user_id(getattr(self.raw, "user", None)) if may_have_user(self.raw) else None


class AsyncDjangoRequest(DjangoRequest):
    """A `DjangoRequest` for asyncio. `user`: raises `UserNotLoaded` unless the user is loaded or was passed in."""

    __slots__ = ("_user",)

    def __init__(self, raw: HttpRequest, state: RateLimitState | None, user: Any = _NOT_LOADED) -> None:
        super().__init__(raw, state)
        self._user = user

    @property
    def user(self) -> str | None:
        """The id of `request.user`, unless that would query a database."""
        if self._user is _NOT_LOADED:
            user = getattr(self.raw, "user", None)
            if _cannot_have_user(self.raw, user):
                user = None
            elif isinstance(user, LazyObject):
                raise UserNotLoaded
            self._user = user_id(user)
        known: str | None = self._user
        return known


def enter(rules: RuleSet, raw: HttpRequest, endpoint_rules: EndpointRules) -> ShortWay:
    """Return what `RuleSet.short_way` finds for a request without a user."""
    method, path = raw.method or "GET", raw.path_info or "/"  # middleware may have set both
    if "." in path and _format_of(raw):
        path = ""
    if (scope := getattr(raw, "scope", None)) is None:
        return enter_wsgi(rules, raw.META, endpoint_rules, method, path)
    peer = raw.META.get("REMOTE_ADDR") or None
    if peer is None and is_peer_lost(scope):
        return UNDECIDED
    return rules.short_way(method, path, peer, partial(wsgi_lines, raw.META), endpoint_rules)


def _format_of(raw: HttpRequest) -> Any:
    """Return REST framework's format suffix in the path, if the view's route has one."""
    kwargs = {} if (match := raw.resolver_match) is None else match.kwargs
    return kwargs and kwargs.get(getattr(settings, "REST_FRAMEWORK", {}).get("FORMAT_SUFFIX_KWARG", "format"))


def may_have_user(raw: HttpRequest) -> bool:
    """Return whether the request may have a user. Does not load the user."""
    user = getattr(raw, "user", None)
    return user is not None and not _cannot_have_user(raw, user)


def _cannot_have_user(raw: HttpRequest, user: object) -> bool:
    """Return whether `user` would be loaded from an empty session, without a key from a cookie.

    If so, no user is logged in, and the user must not be loaded: that would mark the session as accessed, and Django
    would add `Vary: Cookie` to a page that is the same for all users. Only for the lazy user of Django's own middleware
    is it known that loading needs a session.
    """
    if type(user) is not SimpleLazyObject:
        return False
    parts = vars(user)
    if parts.get("_wrapped") is not empty or getattr(parts.get("_setupfunc"), "__module__", "") != _AUTHENTICATION:
        return False
    session = getattr(raw, "session", None)
    return isinstance(session, SessionBase) and session.is_empty()


async def load_user(raw: HttpRequest) -> str | None:
    """Return the user's id. Loads the user by `auser`, or in a thread if there is only a lazy `user`."""
    try:
        return user_id(await raw.auser()) if hasattr(raw, "auser") else await sync_to_async(user_id)(raw.user)
    except Exception as error:  # noqa: BLE001  # as in user_id, a request whose user cannot be loaded has none
        warn_throttled(
            "user", "loading it raised an error: the request counts as one without a user", error=error, code="RL-226"
        )
        return None


def route_of(raw: HttpRequest) -> str | None:
    """Return the route of the view, as in urlpatterns; None without a view."""
    match = getattr(raw, "resolver_match", None)
    return None if match is None else joined_route(*match.tried[-1])  # the last ones tried are those that matched


@lru_cache(maxsize=4096)
def joined_route(*patterns: Any) -> str:
    """Return the route of nested URL patterns, as `resolver_match.route`, but the same in every language.

    Otherwise a client could choose a bucket by choosing a language. The result is cached, because it takes longer to
    switch translations off than to look up the route.
    """
    with override(None):  # a translated pattern then has the text of the code
        texts = [LANGUAGE if isinstance(one.pattern, LocalePrefixPattern) else str(one.pattern) for one in patterns]
    return "/" + reduce(lambda above, own: above + own.removeprefix("^") if above else own, texts)
