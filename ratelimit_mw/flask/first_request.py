"""Checks of an app at its first request: settings in its config that are not read, and rules that no route meets."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from ratelimit_mw.checks.routes import route_findings, shape_of_bracket_template
from ratelimit_mw.core.errors import require
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.flask.endpoint_limits import CONFIG
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.loading import unread_settings

with require("flask"):
    from flask import Flask, request_started
    from werkzeug.exceptions import HTTPException, NotFound

_PLACE: Final = f"app.config[{CONFIG!r}]"
_ABSENT: Final = object()


class FirstRequestCheck:
    """Reports what only the complete app shows. `reads`: whether its RateLimiter reads `RATELIMIT_MW`."""

    def __init__(self, app: Flask, settings: Settings, *, reads: bool) -> None:
        self._settings: Final = settings
        self._reads: Final = reads
        self._names: Final = frozenset(app.config)
        self._value: Final = _copied(app.config.get(CONFIG, _ABSENT))
        findings = [*unread_settings(self._names, _PLACE)]
        if not reads and self._value is not _ABSENT:
            findings.append(_beside_settings())
        warn_or_fail(findings, strict=settings.strict)
        request_started.connect(self.check, app)

    def check(self, app: Flask, **_: object) -> None:
        """Report at the first request. With `strict`, raise `ConfigError` at each request."""
        warn_or_fail(self.findings(app), strict=self._settings.strict)
        request_started.disconnect(self.check)

    def findings(self, app: Flask) -> Iterator[Finding]:
        """Yield a finding for each setting written since, and for each rule whose path or methods no route has."""
        yield from self._late_settings(app.config)
        yield from findings_on_routes(app, self._settings)

    def _late_settings(self, config: Mapping[str, Any]) -> Iterator[Finding]:
        yield from unread_settings(config.keys() - self._names, _PLACE)
        if _copied(config.get(CONFIG, _ABSENT)) == self._value:
            return
        if self._reads:
            yield Finding(
                f"{_PLACE} was written after RateLimiter(app) had read it, so it has no effect; write it before, or "
                "create RateLimiter() first and call its init_app(app) last",
                code="RL-111",
            )
        elif self._value is _ABSENT:
            yield _beside_settings()


def findings_on_routes(app: Flask, settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each rule whose path or methods no route has."""
    if not (app.url_map.host_matching or app.subdomain_matching):  # else a path has a route on some hosts only
        routes = [shape_of_bracket_template(rule.rule, rule.methods or ()) for rule in app.url_map.iter_rules()]
        yield from route_findings(settings, routes, partial(_has_route, app))


def _has_route(app: Flask, path: str) -> bool:
    try:
        app.url_map.bind("").match(path)
    except NotFound:
        return False
    except HTTPException:  # the route has another method, or redirects
        return True
    return True


def _beside_settings() -> Finding:
    return Finding(
        f"{_PLACE} is not read, because RateLimiter has a Settings object, which is complete; give it a mapping or "
        "keyword arguments instead, or remove one of them",
        code="RL-111",
    )


def _copied(value: object) -> object:
    """Return a copy of a mapping, because the app may change it."""
    return dict(value) if isinstance(value, Mapping) else value
