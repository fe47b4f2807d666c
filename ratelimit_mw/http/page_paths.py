"""Finds where an app has mounted a dashboard, which is exempt from the limits of the app."""

from collections.abc import Iterator
from typing import Any

from ratelimit_mw.http.apps import nested_apps
from ratelimit_mw.http.routes import all_routes


def page_paths(app: Any) -> list[str]:
    """Return the paths of the dashboards in an app, and all paths below them. One that is the whole app has none."""
    return [path for mount in dict.fromkeys(_mounts(app)) if mount for path in (mount, f"{mount}/{{rest:path}}")]


def _mounts(app: Any) -> Iterator[str]:
    for inner in nested_apps(app, "app", "application", "wsgi_app"):
        routes, mounts = getattr(inner, "routes", None), getattr(inner, "mounts", None)
        if isinstance(routes, list):
            yield from (info.template for info in all_routes(routes) if _is_page(info.endpoint))
        if isinstance(mounts, dict):  # of werkzeug's DispatcherMiddleware
            yield from (path for path, mounted in mounts.items() if _is_page(mounted))


def _is_page(app: Any) -> bool:
    return getattr(type(app), "exempts_itself", False) is True
