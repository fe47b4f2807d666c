"""The live page: who is limited now, why, and what to do about it.

It shows what the processes of an app report to their store, with the setting `metrics`, and who was refused, with
`remember_refused`.
"""

from pathlib import Path

from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.dashboard.access import Authorize
from ratelimit_mw.dashboard.app import Page
from ratelimit_mw.dashboard.fronts import Dashboard, WsgiDashboard
from ratelimit_mw.settings import SettingsValue

__all__ = ["dashboard", "dashboard_wsgi"]


@check_arguments()
def dashboard(
    settings: SettingsValue | Path,
    *,
    secret: str | None = None,
    authorize: Authorize | None = None,
    write: bool = False,
) -> Dashboard:
    """Return the page as an ASGI app.

    For example `app.mount("/rate-limits", dashboard("limits.toml"))`.

    `settings`: those of the app, whose store it reads. `secret`: 16 characters or more, for the login page, Bearer or
    the password of Basic; by default `RATELIMIT_MW_DASHBOARD_SECRET`. `authorize`: instead, a callable of the request
    that returns `"viewer"`, `"operator"` or None. Without either, it answers callers on loopback only, as viewers.
    `write`: whether operators may change something; needs one of the two. Raises `ConfigError` for invalid arguments.
    """
    return Dashboard(Page(settings, secret=secret, authorize=authorize, write=write))


@check_arguments()
def dashboard_wsgi(
    settings: SettingsValue | Path,
    *,
    secret: str | None = None,
    authorize: Authorize | None = None,
    write: bool = False,
) -> WsgiDashboard:
    """Return the page as a WSGI app.

    For example `app.wsgi_app = dashboard_wsgi("limits.toml").beside(app.wsgi_app, "/rate-limits")`. The arguments are
    those of `dashboard`.
    """
    return WsgiDashboard(Page(settings, secret=secret, authorize=authorize, write=write))
