"""Gates for Django, made of its settings."""

from typing import Any, Final

from ratelimit_mw.errors import located
from ratelimit_mw.gate import AsyncGate, Gate
from ratelimit_mw.settings import Settings

SETTING: Final = "RATELIMIT_MW"
_ALLOWED: Final = "a callable (request, verdict)"


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
        settings = Settings.of(value, {})
        return AsyncDjangoGate(settings) if is_async else DjangoGate(settings)
