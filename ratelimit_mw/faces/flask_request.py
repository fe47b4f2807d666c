"""Requests as Flask knows them."""

from typing import TypeVar

from ratelimit_mw.faces.missing import needs
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.request import as_text, user_id
from ratelimit_mw.views import WsgiRequest

with needs("flask"):
    from flask import current_app


T = TypeVar("T")


def itself(proxy: T) -> T:
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
    if getattr(itself(current_app), "login_manager", None) is None:
        return None
    try:
        from flask_login import current_user  # type: ignore[import-untyped]  # noqa: PLC0415  # not for all apps

        known = current_user.is_authenticated
        if not (known() if callable(known) else known):
            return None
        return as_text(current_user.get_id()) or user_id(current_user)
    except Exception as error:  # noqa: BLE001  # a user is loaded from a database
        warn_rarely("user", "Flask-Login raised: it counts as nobody", error=error)
        return None
