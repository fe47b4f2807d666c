"""Checks settings for the service, which sees requests, but not their responses, and not messages of websockets."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.checks.deployment import switched_off
from ratelimit_mw.checks.rules import unseen_messages
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import has_concurrency, parse_limits
from ratelimit_mw.settings.loading import unread_variables
from ratelimit_mw.settings.rule import Rule, placed

_NO_SLOTS: Final = (
    "counts requests in progress, and the service does not see when a request ends; take slots by POST /v1/hit with "
    '"limits": {"concurrent": 20}, or set it in the app'
)
_NO_RESPONSE: Final = "the service does not see responses, so every request stays charged"
_NO_LATENCY: Final = "the service does not see how long the app takes, so it has no effect here"
_NO_PROXIES: Final = (
    "trusted_proxies: empty, so the service believes no proxy, and /v1/nginx, /v1/forward and /v1/envoy answer 403; "
    "list the addresses of the proxies, or 'unix:' for a unix socket"
)


def served_settings(settings: Settings) -> Settings:
    """Return the settings without the options that need a response. Logs these options; with `strict`, some are errors.

    Raises `ConfigError` for limits on requests in progress, because the service does not see when a request ends.
    """
    rules = settings.parsed_rules()
    problems = [*_slots(settings, rules)]
    if problems:
        raise ConfigError(*problems, code="RL-060")
    warn_or_fail(_findings(settings, rules), strict=settings.strict)
    return replace(
        settings,
        settle=None,
        count_status=(),
        messages=(),
        latency_goal=0.0,
        rules=[replace(rule, settle=None, count_status=None, messages=None) for rule in rules],
    )


def _slots(settings: Settings, rules: list[Rule]) -> Iterator[str]:
    tiers = (settings.tier, settings.default_tier)
    for field in ("limits", "app_limits"):
        if has_concurrency(parse_limits(field, getattr(settings, field), *tiers)):
            yield f"{field}: {_NO_SLOTS}"
    if settings.concurrent:
        yield f"concurrent: {_NO_SLOTS}"
    for place, rule in placed(rules):
        if rule.concurrent:
            yield f"{place}.concurrent: {_NO_SLOTS}"
        elif has_concurrency(rule.resolve_limits(*tiers)):
            yield f"{place}.limits: {_NO_SLOTS}"


def _findings(settings: Settings, rules: list[Rule]) -> Iterator[Finding]:
    places: list[tuple[str, Settings | Rule]] = [
        ("", settings),
        *((f"{place}.", rule) for place, rule in placed(rules)),
    ]
    if settings.latency_goal:
        yield Finding(f"latency_goal: {_NO_LATENCY}", code="RL-132", weakens_limits=False)
    for place, one in places:
        for option in ("settle", "count_status"):
            if getattr(one, option):
                yield Finding(f"{place}{option}: {_NO_RESPONSE}", code="RL-132", weakens_limits=False)
    yield from switched_off(settings)
    yield from unread_variables()
    yield from unseen_messages(settings, "the service")
    if not settings.trusted_proxies:
        yield Finding(_NO_PROXIES, code="RL-134", weakens_limits=False)
