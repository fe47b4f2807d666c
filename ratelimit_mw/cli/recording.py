"""Records log lines, and the results of the user's callables, while a command evaluates settings."""

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.core.log import logger
from ratelimit_mw.http.callables import FAILED, CallResults, RequestCallable, is_callable_name, resolve_callable
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings

_MAX_RESULT_LENGTH: Final = 100  # characters of a result that are shown
_LOG_PREFIX: Final = "ratelimit_mw: "  # of all log lines of this package

CallLog = list[tuple[str, str]]
"""Pairs of a callable's name and its result."""


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Collect the warnings that are logged in the block, each once and on one line, and keep them out of the log."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = single_line(record.getMessage().removeprefix(_LOG_PREFIX))
            if message not in messages:
                messages.append(message)

    collector, previous = Collector(), (logger.propagate, logger.level, logger.disabled)
    logger.addHandler(collector)
    logger.propagate, logger.disabled = False, False
    logger.setLevel(logging.WARNING)
    try:
        yield messages
    finally:
        logger.removeHandler(collector)
        logger.propagate, logger.disabled = previous[0], previous[2]
        logger.setLevel(previous[1])


def single_line(text: str) -> str:
    """Replace line breaks by spaces."""
    return " ".join(text.split("\n"))


def with_recording(settings: Settings, call_log: CallLog) -> Settings:
    """Return the settings with plain identities, and with callables of `when` and of the client lists recorded.

    Matching calls these; `evaluate_callables` calls all others.
    """

    def with_log(value: Any) -> Any:
        return (
            RecordedCallable(resolve_callable(value), call_log) if callable(value) or is_callable_name(value) else value
        )

    return replace(
        settings,
        rules=[replace(rule, when=with_log(rule.when)) for rule in settings.parsed_rules()],
        safelist=[with_log(entry) for entry in settings.safelist],
        blocklist=[with_log(entry) for entry in settings.blocklist],
        key_secret="",
        plain_keys=True,
    )


def evaluate_callables(calls: Sequence[RequestCallable], request: Request, call_log: CallLog) -> CallResults:
    """Call the callables and return their results. Awaits async ones. One that raises counts as `FAILED`."""
    results: dict[RequestCallable, Any] = {}
    for call in calls:
        try:
            result = call(request)
            results[call] = asyncio.run(_wait_for(result)) if isawaitable(result) else result
            call_log.append((qualified_name(call), _format_result(results[call])))
        except Exception as error:  # noqa: BLE001  # it is recorded and shown
            results[call] = FAILED
            call_log.append((qualified_name(call), _format_error(error)))
    return results


def qualified_name(call: Any) -> str:
    """Return `package.module:function`."""
    return f"{getattr(call, '__module__', '')}:{getattr(call, '__qualname__', type(call).__qualname__)}"


class RecordedCallable:
    """A plain callable that wraps another one and records its results.

    `failed`: the last call raised, or returned neither True nor False.
    """

    def __init__(self, call: RequestCallable, call_log: CallLog) -> None:
        self._call: Final = call
        self._call_log: Final = call_log
        self.failed = False
        self.__qualname__ = qualified_name(call)

    def __call__(self, request: Request) -> Any:
        """Call it and record the result."""
        try:
            result = self._call(request)
        except Exception as error:
            self.failed = True
            self._call_log.append((qualified_name(self._call), _format_error(error)))
            raise
        self.failed = not isinstance(result, bool)
        self._call_log.append((qualified_name(self._call), _format_result(result)))
        return result


async def _wait_for(result: Awaitable[Any]) -> Any:
    return await result


def _format_result(result: object) -> str:
    return single_line(f"{result!r:.{_MAX_RESULT_LENGTH}}")


def _format_error(error: Exception) -> str:
    return single_line(f"raised {type(error).__name__}: {error}")
