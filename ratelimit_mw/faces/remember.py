"""What is remembered of an app: on an object of its own, so that it goes when the app goes."""

from typing import Any, Final

_ATTRIBUTE: Final = "__remembered_by_ratelimit_mw__"


class NoApp:
    """Remembers what is of no app."""


_NO_APP: Final = NoApp()


def app_cache(owner: object, what: str) -> dict[Any, Any]:
    """A dictionary of the owner's, the same one each time. None, and what bears no attribute, share theirs."""
    try:  # the common case, in one step
        cache: dict[Any, Any] = owner.__dict__[_ATTRIBUTE][what]
    except (AttributeError, KeyError):
        return _create(owner, what)
    return cache


def _create(owner: object, what: str) -> dict[Any, Any]:
    own = getattr(owner, "__dict__", {})
    if _ATTRIBUTE not in own:
        try:
            setattr(owner, _ATTRIBUTE, {})
        except (AttributeError, TypeError):
            return app_cache(_NO_APP, what)
    caches: dict[str, dict[Any, Any]] = own[_ATTRIBUTE]
    return caches.setdefault(what, {})
