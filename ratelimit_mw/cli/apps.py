"""Finds the settings of an ASGI app for the commands of `ratelimit_mw.admin`: `--app shop.main:app`."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from ratelimit_mw.admin.target import Target
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.signatures import accepts
from ratelimit_mw.http.apps import nested_apps
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings


def target_of_app(name: str) -> Target:
    """Return the target of the outermost RateLimitMiddleware of an app. `name`: `MODULE:APP`, or that of a factory.

    Raises `ConfigError` if there is no such app, or if it has no middleware.
    """
    app = _imported(name)
    settings = next(_settings_in(app), None)
    if settings is None:
        raise ConfigError(f"--app: {name!r} has no RateLimitMiddleware of ratelimit_mw.asgi", code="RL-051")
    rules = RuleSet(settings)
    rules.adapt_to_router(app)
    return Target(settings, rules)


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        app = getattr(import_module(module), attribute)
        return app() if accepts(app, ()) else app
    except Exception as error:  # importing a module runs its code, which may raise anything
        raise ConfigError(
            f"--app: got {name!r}, expected MODULE:APP, or MODULE:FUNCTION of a function that returns the app: "
            f"{type(error).__name__}: {error}",
            code="RL-051",
        ) from error


def _settings_in(app: Any) -> Iterator[Settings]:
    """Yield the settings of each middleware, the outermost first: around the app, and not yet built inside it."""
    for one in nested_apps(app, "app"):
        if isinstance(one, RateLimitMiddleware):
            yield one.settings
        for entry in getattr(one, "user_middleware", ()):
            if isinstance(entry.cls, type) and issubclass(entry.cls, RateLimitMiddleware):
                options = dict(entry.kwargs)
                first = entry.args[0] if entry.args else options.pop("settings", None)
                yield Settings.of(first, options)
