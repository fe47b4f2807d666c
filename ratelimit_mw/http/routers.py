"""What is known of the router of an app that a middleware is put around."""

from typing import Final

_MAX_DEPTH: Final = 50  # apps around apps
_APP_ATTRIBUTES: Final = ("app", "application", "wsgi_app", "__wrapped__", "__self__")  # where middleware keeps its app


def is_falcon(app: object) -> bool:
    """Whether `app` is one of Falcon, or middleware around one. Its `/users/{id}` takes `/users/`, with an empty id.

    No other supported router does. There `/users/` is mostly an endpoint of its own, which is not `/users/{id}`.
    """
    for _ in range(_MAX_DEPTH):
        if any(kind.__module__.partition(".")[0] == "falcon" for kind in type(app).__mro__):
            return True
        app = next((inner for name in _APP_ATTRIBUTES if (inner := getattr(app, name, None)) is not None), None)
        if app is None:
            return False
    return False
