"""Startup checks of what surrounds the middleware: the environment, the wrapped app and its other middleware."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.http.apps import is_of, nested_apps
from ratelimit_mw.http.keys import Key
from ratelimit_mw.http.paths import covers
from ratelimit_mw.http.response import FIELDS, HeaderStyle
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.rule import placed, texts_of


def switched_off(settings: Settings) -> Iterator[Finding]:
    """Yield a finding if a variable of the environment, perhaps a forgotten one, turns all limits off."""
    for option, value, effect in (
        ("enabled", False, "nothing is limited"),
        ("shadow", True, "nothing is limited, and limits only report"),
    ):
        if option in settings.from_environment and getattr(settings, option) is value:
            yield Finding(
                f"RATELIMIT_MW_{option.upper()} is {str(value).lower()}, so {effect}; remove the variable, if this is "
                "not meant",
                weakens_limits=False,
                code="RL-117",
            )
            return


def warn_of_cors(app: Any, outer: Any, style: HeaderStyle) -> None:
    """Warn if CORS middleware prevents browsers from reading refusals or the rate limit headers of this style.

    `app`: the wrapped app. `outer`: the Starlette app around the middleware, if any; it knows the options of CORS.
    """
    warn_or_fail(_cors_findings(app, outer, (*FIELDS[style], "Retry-After")), strict=False)


def _cors_findings(app: Any, outer: Any, names: Sequence[str]) -> Iterator[Finding]:
    if any(_is_named(kind, "CORSMiddleware") for kind in _nested_classes(app)):
        yield Finding(
            "CORSMiddleware is inside RateLimitMiddleware, so browsers cannot read a refusal; put it outside: with "
            "Starlette and FastAPI, add it after RateLimitMiddleware",
            code="RL-113",
            weakens_limits=False,
        )
        return
    for middleware in getattr(outer, "user_middleware", ()):
        exposed = {str(name).lower() for name in getattr(middleware, "kwargs", {}).get("expose_headers", ())}
        if getattr(middleware.cls, "__name__", "") == "CORSMiddleware" and not exposed & {"*", names[0].lower()}:
            yield Finding(
                "CORSMiddleware does not expose the rate limit headers to scripts; give it "
                f"expose_headers={list(names)}",
                code="RL-114",
                weakens_limits=False,
            )
            return


def warn_of_authentication(app: Any, keys: Iterable[Key], *, strict: bool) -> None:
    """Report a key that reads the user if only the wrapped app authenticates users, which is too late."""
    key = next((key for key in keys if key.may_read_user), None)
    if key is not None and any(_is_named(kind, "AuthenticationMiddleware") for kind in _nested_classes(app)):
        finding = Finding(
            "AuthenticationMiddleware is inside RateLimitMiddleware, so no user is known where the key, "
            f"{key.text}, is read, and no client is counted by its user; put AuthenticationMiddleware outside (with "
            "Starlette and FastAPI, add it after RateLimitMiddleware), or leave user out of the key",
            code="RL-115",
        )
        warn_or_fail([finding], strict=strict)


def warn_of_script_name(app: Any, settings: Settings) -> None:
    """Report rules that match only one of the two paths by which Django serves a view for `FORCE_SCRIPT_NAME`.

    Under ASGI, Django drops this prefix from a path, and serves a path without it as it is.
    """
    prefix = (sys.modules["django.conf"].settings.FORCE_SCRIPT_NAME or "" if is_of(app, "django") else "").rstrip("/")
    findings = []
    for place, rule in placed(settings.parsed_rules()) if prefix else ():
        paths = texts_of(rule.path)
        for path in () if rule.exempt else paths:
            other = path.removeprefix(prefix) if path.startswith(f"{prefix}/") else f"{prefix}{path}"
            if not any(covers(each, other, ignore_case=settings.ignore_case) for each in paths):
                text = (
                    f"{place}: Django has FORCE_SCRIPT_NAME = {prefix!r}, so it serves "
                    f"{other} as it does {path}, and the rule does not match {other}; add it to the rule's paths, or "
                    "use ratelimit_mw.django, whose middleware reads a path as Django does"
                )
                findings.append(Finding(text, code="RL-140"))
    warn_or_fail(findings, strict=settings.strict)


def _nested_classes(app: Any) -> Iterator[object]:
    """Yield the classes of an app, of the apps that it wraps, and of their middleware."""
    for wrapped in nested_apps(app, "app"):
        yield type(wrapped)
        yield from (getattr(one, "cls", None) for one in getattr(wrapped, "user_middleware", ()))


def _is_named(kind: object, name: str) -> bool:
    """Return whether `kind` is a class of this name, or a subclass of one."""
    return any(one.__name__ == name for one in getattr(kind, "__mro__", ()))
