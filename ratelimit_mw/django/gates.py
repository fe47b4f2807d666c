"""Gates for Django, made of its settings."""

from typing import Any, Final

from django.conf import settings

from ratelimit_mw.errors import located
from ratelimit_mw.gate import AsyncGate, Gate
from ratelimit_mw.notices import Finding, warn_or_fail
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.forks import lock

SETTING: Final = "RATELIMIT_MW"
_ALLOWED: Final = "a callable (request, verdict)"
_ALONE: Final = Finding(
    "Throttle without RateLimitMiddleware and RATELIMIT_MW: it counts in one process; "
    "add ratelimit_mw.django.RateLimitMiddleware to MIDDLEWARE"
)
_lock: Final = lock()
_alone: list[tuple[Any, Gate | AsyncGate]] = []


class DjangoGate(Gate):
    """For threads. Apps do not answer inside of Django: of `on_refused`, only a callable does."""

    _answerers = ("plain",)
    _allowed = _ALLOWED


class AsyncDjangoGate(AsyncGate):
    """The same for asyncio."""

    _answerers = ("plain",)
    _allowed = _ALLOWED


def gate_of(value: Any, *, is_async: bool) -> DjangoGate | AsyncDjangoGate:
    """The gate of `RATELIMIT_MW`. Raises `ConfigError` that names it."""
    with located(SETTING):
        found = Settings.of(value, {})
        return AsyncDjangoGate(found) if is_async else DjangoGate(found)


def alone() -> Gate | AsyncGate:
    """The gate of throttles where no middleware runs: of the same settings if there are any, made once."""
    value = getattr(settings, SETTING, None)
    with _lock:
        if not _alone or _alone[0][0] is not value:
            if value is None:
                warn_or_fail([_ALONE], strict=Settings.strictness(value))
            _alone[:] = [(value, gate_of({"limits": []} if value is None else value, is_async=False))]
        return _alone[0][1]
