"""Finds settings in an app's config that are not read: written too late, or in addition to a Settings object."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ratelimit_mw.core.errors import require
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.flask.endpoint_limits import CONFIG
from ratelimit_mw.settings.loading import unread_settings

with require("flask"):
    from flask import Flask, request_started

_PLACE: Final = f"app.config[{CONFIG!r}]"
_ABSENT: Final = object()


class ConfigWatch:
    """Reports settings in an app's config that its RateLimiter did not read. `reads`: if it reads `RATELIMIT_MW`."""

    def __init__(self, app: Flask, *, reads: bool, strict: bool) -> None:
        self._strict: Final = strict
        self._reads: Final = reads
        self._names: Final = frozenset(app.config)
        self._value: Final = _copied(app.config.get(CONFIG, _ABSENT))
        findings = [*unread_settings(self._names, _PLACE)]
        if not reads and self._value is not _ABSENT:
            findings.append(_beside_settings())
        warn_or_fail(findings, strict=strict)
        request_started.connect(self.check, app)

    def check(self, app: Flask, **_: object) -> None:
        """Report at the first request what was written since. With `strict`, raise `ConfigError` at each request."""
        warn_or_fail(self.findings(app.config), strict=self._strict)
        request_started.disconnect(self.check)

    def findings(self, config: Mapping[str, Any]) -> Iterator[Finding]:
        """Yield a finding for each setting that was written since."""
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


def _beside_settings() -> Finding:
    return Finding(
        f"{_PLACE} is not read, because RateLimiter has a Settings object, which is complete; give it a mapping or "
        "keyword arguments instead, or remove one of them",
        code="RL-111",
    )


def _copied(value: object) -> object:
    """Return a copy of a mapping, because the app may change it."""
    return dict(value) if isinstance(value, Mapping) else value
