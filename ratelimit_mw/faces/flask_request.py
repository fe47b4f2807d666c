"""Requests as Flask knows them."""

from typing import Any, TypeVar

from ratelimit_mw.faces.missing import require
from ratelimit_mw.notices import warn_throttled
from ratelimit_mw.request import as_text, user_id
from ratelimit_mw.views import WsgiRequest

with require("flask"):
    from flask import Flask, current_app, g, request
    from flask.sessions import SecureCookieSessionInterface


T = TypeVar("T")


def unproxied(proxy: T) -> T:
    """What a proxy of Flask stands for: each look through one costs half a microsecond."""
    found: T = proxy._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001  # documented
    return found


class FlaskRequest(WsgiRequest):
    """A view of the environ, and of who is logged in with Flask-Login."""

    __slots__ = ()

    @property
    def user(self) -> str | None:
        """The one of Flask-Login, where the app has it; else of the server."""
        return _logged_in() or super().user


def _logged_in() -> str | None:
    """Who is logged in with Flask-Login, if the app has it. Asking loads the user."""
    app = unproxied(current_app)
    manager = getattr(app, "login_manager", None)
    if manager is None or _has_no_session(app, manager):
        return None
    try:
        from flask_login import current_user  # type: ignore[import-untyped]  # noqa: PLC0415  # not for all apps

        known = current_user.is_authenticated
        if not (known() if callable(known) else known):
            return None
        return as_text(current_user.get_id()) or user_id(current_user)
    except Exception as error:  # noqa: BLE001  # a user is loaded from a database
        warn_throttled("user", "Flask-Login raised: it counts as nobody", error=error)
        return None


def _has_no_session(app: Flask, manager: Any) -> bool:
    """Whether the request has none of the things by which Flask-Login knows a user.

    To look for a user would mark the session as read, and Flask would add `Vary: Cookie` to a page that is the same for
    all. A user that the app has found already, a `request_loader`, or sessions other than Flask's own may need neither
    cookie nor header: then Flask-Login has to look.
    """
    if hasattr(g, "_login_user") or getattr(manager, "_request_callback", manager) is not None:
        return False
    if not isinstance(app.session_interface, SecureCookieSessionInterface):
        return False
    names = app.session_interface.get_cookie_name(app), app.config.get("REMEMBER_COOKIE_NAME", "remember_token")
    header = app.config.get("AUTH_HEADER_NAME", "Authorization")
    found = unproxied(request)
    return header not in found.headers and not any(name in found.cookies for name in names)
