"""Detects the router of the app that the middleware wraps."""

from typing import Final

_MAX_DEPTH: Final = 50  # nested apps
_APP_ATTRIBUTES: Final = ("app", "application", "wsgi_app", "__wrapped__", "__self__")  # of middleware: the wrapped app


def is_falcon(app: object) -> bool:
    """Return whether `app` is a Falcon app, or middleware around one.

    Falcon's `/users/{id}` also matches `/users/`, with an empty id. In all other supported routers `/users/` does not
    match it, and is usually a separate endpoint.
    """
    for _ in range(_MAX_DEPTH):
        if any(kind.__module__.partition(".")[0] == "falcon" for kind in type(app).__mro__):
            return True
        app = next((inner for name in _APP_ATTRIBUTES if (inner := getattr(app, name, None)) is not None), None)
        if app is None:
            return False
    return False
