"""Gates that are built from Django's settings."""

from typing import Any, Final

from django.conf import settings

from ratelimit_mw.core.errors import error_location
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.lifecycle import fork_safe_lock

SETTING_NAME: Final = "RATELIMIT_MW"
_ALLOWED: Final = "a callable (request, verdict)"
_DJANGO: Final = "the middleware of Django"  # also under ASGI, where Django serves no websockets
_NO_MIDDLEWARE: Final = Finding(
    "Throttle has neither RateLimitMiddleware nor RATELIMIT_MW, so it counts in each process alone; "
    "add ratelimit_mw.django.RateLimitMiddleware to MIDDLEWARE",
    code="RL-104",
)
_lock: Final = fork_safe_lock()
_standalone: list[tuple[Any, Gate | AsyncGate]] = []


class DjangoGate(Gate):
    """A gate for threads. `on_refused` must be a callable, because an ASGI or WSGI app cannot respond inside Django."""

    _handler_kinds = ("plain",)
    _expected_handler = _ALLOWED
    _sees_no_messages = _DJANGO


class AsyncDjangoGate(AsyncGate):
    """The same as `DjangoGate`, for asyncio."""

    _handler_kinds = ("plain",)
    _expected_handler = _ALLOWED
    _sees_no_messages = _DJANGO


def build_gate(value: Any, *, is_async: bool) -> DjangoGate | AsyncDjangoGate:
    """Return the gate of `RATELIMIT_MW`. Raises `ConfigError` that names the setting."""
    with error_location(SETTING_NAME):
        found = Settings.of(value, {})
        return AsyncDjangoGate(found) if is_async else DjangoGate(found)


def standalone_gate() -> Gate | AsyncGate:
    """Return the gate for throttles that run without the middleware. It is built once, from the same settings."""
    value = getattr(settings, SETTING_NAME, None)
    with _lock:
        if not _standalone or _standalone[0][0] is not value:
            if value is None:
                warn_or_fail([_NO_MIDDLEWARE], strict=Settings.strict_setting(value))
            _standalone[:] = [(value, build_gate({"limits": []} if value is None else value, is_async=False))]
        return _standalone[0][1]
