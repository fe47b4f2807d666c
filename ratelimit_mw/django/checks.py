"""System checks for `manage.py check`: invalid settings, and limits that nothing enforces."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004  # Django's name
from django.urls import LocalePrefixPattern, Resolver404, get_resolver, resolve
from django.urls.resolvers import RoutePattern

from ratelimit_mw.checks.routes import RouteShape, route_findings, shape_of_bracket_template
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import Finding, capture_warnings
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.django.endpoint_limits import (
    LOCATIONS,
    SETTING_NAME,
    compile_limits,
    is_strict,
    limits_by_level,
    unenforced_message,
)
from ratelimit_mw.django.middleware import (
    AUTHENTICATION,
    FIX_ORDER,
    METHODS,
    USER_UNKNOWN,
    build_gate,
    comes_before_authentication,
    middleware_indices,
)
from ratelimit_mw.django.throttle import FIX, idle_throttles, uses_of, views_of
from ratelimit_mw.http.keys import Key
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings, is_settings_callable
from ratelimit_mw.settings.endpoint_limits import EndpointLimit
from ratelimit_mw.settings.loading import unread_settings

_MIDDLEWARE: Final = "ratelimit_mw.django.RateLimitMiddleware"
_LITERAL_SEGMENTS: Final = re.compile(r"\^((?:[\w-]+/)*)", re.ASCII)
_BOTH: Final = (False, True)  # under WSGI, under ASGI


@register
def check_settings(**_: Any) -> list[CheckMessage]:
    """Report mistakes in and beside `RATELIMIT_MW`, and middleware that is missing or comes before authentication."""
    value, places = getattr(settings, SETTING_NAME, None), middleware_indices()
    place = next(iter(places), None)
    if value is None and place is None:
        return []
    found: list[CheckMessage] = []
    if place is None:
        text = f"{SETTING_NAME} is set, but RateLimitMiddleware is not in MIDDLEWARE: its limits are not enforced."
        found.append(_finding(text, f"Add {_MIDDLEWARE!r} to MIDDLEWARE.", "ratelimit_mw.W001"))
    if len(places) > 1:
        text = "RateLimitMiddleware is in MIDDLEWARE more than once: each decides and charges every request."
        hint = f"Remove {settings.MIDDLEWARE[places[1]]!r}."
        found.append(Warning(text, hint=hint, id="ratelimit_mw.W005"))  # never an error, as more is limited, not less
    keys, problems, warnings = _read(value)
    hint = "The server does not start with it. The page on settings in the documentation lists what is allowed."
    # never an error for a callable, which may read a table that `manage.py migrate` has to make
    kind = Warning if is_settings_callable(value) else Error
    found += [kind(problem, hint=hint, id="ratelimit_mw.E001") for problem in problems]
    found += [Warning(text, id="ratelimit_mw.W006") for text in warnings]
    unread = unread_settings(dir(settings), SETTING_NAME)
    found += [_finding(finding.message, None, "ratelimit_mw.W006") for finding in unread]
    without = AUTHENTICATION not in settings.MIDDLEWARE and any(key.requires_user for key in keys)
    if place is not None and (without or comes_before_authentication(keys)):
        found.append(_finding(f"{USER_UNKNOWN}.", f"{FIX_ORDER}.", "ratelimit_mw.W002"))
    return found


@register
def check_views(**_: Any) -> list[CheckMessage]:
    """Report limits on views that nothing enforces or that are weak, idle throttles, and rules without a URL."""
    try:
        routed = list(views_of(get_resolver().url_patterns))
    except Exception:  # noqa: BLE001  # Django's own check reports errors in the URLs
        return []
    views = [view for view, _ in routed]
    found: list[CheckMessage] = [
        Error(problem, id="ratelimit_mw.E002") for problem in dict.fromkeys(_problems_of_throttles(views))
    ]
    found += [Error(text, id="ratelimit_mw.E003") for text in _foreign_limits(routed)]
    hint = f"{FIX[0].upper()}{FIX[1:]}."
    found += [_finding(f"{idle.text}.", hint, "ratelimit_mw.W004") for idle in idle_throttles(views)]
    found += [_of_finding(finding, "ratelimit_mw.W007") for finding in _unrouted()]
    if LOCATIONS and not middleware_indices():
        found.append(_finding(unenforced_message(), None, "ratelimit_mw.W001"))
        return found
    found += [_of_finding(finding, "ratelimit_mw.W008") for finding in _on_limits(routed)]
    reached = _reached_limits(views)
    hint = "A decorator above it hides the view, unless it uses functools.wraps; or no path leads there."
    found += [
        _finding(f"The limit at {place} is not on any view of the URLs.", hint, "ratelimit_mw.W003")
        for endpoint_limit, place in sorted(LOCATIONS.items(), key=lambda pair: pair[1])
        if endpoint_limit not in reached
    ]
    return found


def _foreign_limits(routed: Sequence[tuple[Any, str]]) -> Iterator[str]:
    """Yield a text for each view with a limit by the decorator for another framework."""
    for view, route in routed:
        if any(not one.rule.exempt and one not in LOCATIONS for one in _reached_limits([view])):
            text = f"{route}: the limit on {callable_name(view)} is by the decorator for another framework"
            yield ConfigError(f"{text}; use limit of ratelimit_mw.django", code="RL-063").problems[0]


def _finding(text: str, hint: str | None, name: str) -> CheckMessage:
    """Return a warning, or with `strict` an error, because less is limited than the code suggests."""
    try:
        strict = is_strict()
    except ConfigError:  # the environment is invalid, which another finding reports
        strict = False
    return (Error if strict else Warning)(text, hint=hint, id=name)


def _of_finding(finding: Finding, name: str) -> CheckMessage:
    return _finding(finding.message, None, name) if finding.weakens_limits else Warning(finding.message, id=name)


def _read(value: Any) -> tuple[Sequence[Key], Sequence[str], Sequence[str]]:
    """Return the keys of the settings, the problems with them, and the warnings that a server logs at its start.

    Some settings are valid only under ASGI.
    """
    problems: list[Sequence[str]] = []
    for is_async in _BOTH:
        try:
            with capture_warnings() as warnings:
                return build_gate(value, is_async=is_async).rule_set.keys, (), warnings
        except ConfigError as error:
            problems.append(error.problems)
    return (), problems[0], ()


def _reached_limits(views: Sequence[Any]) -> set[EndpointLimit]:
    return {
        endpoint_limit
        for view in views
        for method in METHODS
        for endpoint_limits, *_ in limits_by_level(view, method, "")
        for endpoint_limit in endpoint_limits
    }


def _on_limits(routed: Sequence[tuple[Any, str]]) -> Sequence[Finding]:
    """Return what the first requests to all views report about their limits."""
    with suppress(ConfigError):  # reported by `check_settings`
        rules = RuleSet(_own_settings())
        return rules.endpoint_findings(
            (route, partial(compile_limits, rules, limits_by_level(view, method, route)))
            for view, route in routed
            for method in METHODS
        )
    return ()


def _own_settings() -> Settings:
    """Return what `RATELIMIT_MW` sets. Raises `ConfigError` if it is invalid."""
    return Settings.of(getattr(settings, SETTING_NAME, None), {})


def _unrouted() -> Iterator[Finding]:
    """Yield a finding for each rule whose path no URL has; none if the URLs depend on the language of a request."""
    patterns = get_resolver().url_patterns
    by_language = any(isinstance(one.pattern, LocalePrefixPattern) for one in patterns)
    if by_language or not middleware_indices():
        return
    with suppress(ConfigError):  # reported by `check_settings`
        routes = list(_shapes_of(patterns, "/"))
        yield from route_findings(_own_settings(), routes, _has_route)


def _shapes_of(patterns: Sequence[Any], above: str) -> Iterator[RouteShape]:
    for one in patterns:
        text = str(one.pattern)
        if not isinstance(one.pattern, RoutePattern):
            yield RouteShape(above + _literal_segments(text) + "{x:path}")
        elif hasattr(one, "url_patterns"):
            yield from _shapes_of(one.url_patterns, above + shape_of_bracket_template(text).path)
        else:
            yield shape_of_bracket_template(above + text)


def _literal_segments(regex: str) -> str:
    """Return the whole segments with which all paths that match this regular expression begin."""
    found = _LITERAL_SEGMENTS.match("" if "|" in regex else regex)
    return "" if found is None else found[1]


def _has_route(path: str) -> bool:
    try:
        resolve(path)
    except Resolver404:
        return False
    return True


def _problems_of_throttles(views: Sequence[Any]) -> Iterator[str]:
    for use in uses_of(views):
        try:
            use.throttle.limits_of(use.options)
        except ConfigError as error:
            yield from error.problems
