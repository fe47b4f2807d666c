"""Looks at the app that the middleware wraps, and at the apps inside it. Imports no framework."""

from collections.abc import Iterator
from typing import Any, Final

_MAX_DEPTH: Final = 50  # nested apps
_APP_ATTRIBUTES: Final = ("app", "application", "wsgi_app", "__wrapped__", "__self__")  # of middleware: the wrapped app


def nested_apps(app: Any, *attributes: str) -> Iterator[Any]:
    """Yield an app, and the apps inside it. `attributes`: the names under which middleware keeps the app it wraps."""
    for _ in range(_MAX_DEPTH):
        yield app
        app = next((inner for name in attributes if (inner := getattr(app, name, None)) is not None), None)
        if app is None:
            return


def is_falcon(app: object) -> bool:
    """Return whether `app` is a Falcon app, or middleware around one.

    Falcon's `/users/{id}` also matches `/users/`, with an empty id. In all other supported routers `/users/` does not
    match it, and is usually a separate endpoint.
    """
    return is_of(app, "falcon")


def is_of(app: object, package: str) -> bool:
    """Return whether a class of this package made the app, or an app inside it."""
    classes = (kind for inner in nested_apps(app, *_APP_ATTRIBUTES) for kind in type(inner).__mro__)
    return any(kind.__module__.partition(".")[0] == package for kind in classes)
