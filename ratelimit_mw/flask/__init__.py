"""Flask: limits for apps, blueprints and views, enforced after routing."""

from collections.abc import Mapping
from typing import Any, Final, Unpack

from ratelimit_mw.core.errors import ConfigError, require
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RateLimited
from ratelimit_mw.flask.commands import ratelimit_command
from ratelimit_mw.flask.endpoint_limits import CONFIG, exempt, limit, register_app, warn_unless_limits_app
from ratelimit_mw.flask.first_request import FirstRequestCheck
from ratelimit_mw.flask.hooks import Hooks
from ratelimit_mw.settings import Settings, SettingsValue, is_settings_callable
from ratelimit_mw.settings.options import Options

with require("flask"):
    from flask import Flask, got_request_exception

__all__ = ["RateLimiter", "exempt", "limit"]


class RateLimiter:
    """Limits how often a client may call Flask apps, their views and their blueprints.

    `RateLimiter(app, limits="100/minute")`, or call `init_app(app)` later, for any number of apps.

    `settings`: a `Settings` object or a mapping, or a callable that returns one. Keyword arguments are the same
    settings and take precedence. After these come `app.config["RATELIMIT_MW"]`, which has the same kinds of values, and
    then the environment. A `Settings` object is complete, so no later source is read. Views find the verdict in
    `g.ratelimit.verdict`, which is None if nothing was charged. Invalid settings raise `ConfigError`: at once if they
    are passed here, in `init_app` if they come from `app.config` or the environment.
    """

    limit = staticmethod(limit)
    exempt = staticmethod(exempt)

    @check_arguments(Options)
    def __init__(
        self,
        app: Flask | None = None,
        settings: SettingsValue = None,
        **options: Unpack[Options],
    ) -> None:
        mapping = isinstance(settings, Mapping)
        self._settings: Final = None if mapping else settings
        self._options: Final[Mapping[str, Any]] = {**settings, **options} if isinstance(settings, Mapping) else options
        if app is not None:
            self.init_app(app)
        elif is_settings_callable(self._settings):
            pass  # it may need the app
        elif self._settings is not None:
            Settings.of(self._settings, self._options)
        else:
            Settings.check(self._options)
        if app is None and (settings or options) and self._options.get("enabled") is not False:
            strict = any(map(Settings.strict_setting, (self._settings, self._options)))
            warn_unless_limits_app(self, strict=strict)

    def init_app(self, app: Flask) -> None:
        """Limit this app too.

        Functions that the app registered earlier with `before_request` run before the limits. Requests that they answer
        are also charged, and may be refused. Raises `ConfigError` for invalid settings, and for an app that has a
        RateLimiter.
        """
        if not isinstance(app, Flask):
            raise ConfigError(_no_app(app), code="RL-048")
        if "ratelimit_mw" in app.extensions:
            raise ConfigError(f"app {app.name!r} has a RateLimiter already", code="RL-048")
        hooks = self._hooks(app)
        hooks.first_request = FirstRequestCheck(app, hooks.gate.settings, reads=self._settings is None)
        if hooks.gate.settings.enabled is not False or hooks.reloader is not None:
            app.before_request(hooks.before)
            app.after_request(hooks.after)
            got_request_exception.connect(hooks.failed, app)
            app.register_error_handler(RateLimited, hooks.refused)  # an app's own replaces it
        app.extensions["ratelimit_mw"] = hooks
        app.cli.add_command(ratelimit_command)
        register_app(app, self)

    def _hooks(self, app: Flask) -> Hooks:
        config = app.config.get(CONFIG) if self._settings is None else None
        try:
            return Hooks(app, Settings.of(self._settings if config is None else config, self._options))
        except ConfigError as error:
            if config is None:
                raise
            config_names = set(config) - set(self._options) if isinstance(config, Mapping) else {"settings"}
            raise ConfigError(*[_with_config_place(problem, config_names) for problem in error.problems]) from None


def _no_app(found: object) -> str:
    """Return the error message for an `app` argument that is not a Flask app."""
    if isinstance(found, Mapping):
        return "app: got a mapping, expected a Flask app; settings come second: RateLimiter(app, settings)"
    if callable(found):
        return f"app: got {callable_name(found)}, expected a Flask app; a callable that gives the key goes into `key`"
    return f"app: got {found!r:.100}, expected a Flask app: RateLimiter(app, limits='100/minute')"


def _with_config_place(problem: str, config_names: set[str]) -> str:
    """Return the problem, prefixed with its place if it concerns one of these options of the app's config."""
    starts = [f"{word}{end}" for word in config_names for end in ":.["] + [
        f"unknown setting `{word}`" for word in config_names
    ]
    return f"app.config[{CONFIG!r}]: {problem}" if problem.startswith(tuple(starts)) else problem
