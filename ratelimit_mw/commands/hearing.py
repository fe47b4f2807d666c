"""What is said while a command looks at settings: log lines, and what the user's callables answered."""

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.calls import FAILED, Answers, Call, call_from, named_call
from ratelimit_mw.notices import logger
from ratelimit_mw.request import Request
from ratelimit_mw.settings import Settings

_LONGEST: Final = 100  # characters of an answer
_OURS: Final = "ratelimit_mw: "  # how our log lines begin

Said = list[tuple[str, str]]
"""Names of callables, and what each answered."""


@contextmanager
def heard() -> Iterator[list[str]]:
    """The warnings that are logged inside, each once and in one line; nobody else hears them."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = one_line(record.getMessage().removeprefix(_OURS))
            if line not in lines:
                lines.append(line)

    listener, before = Listener(), (logger.propagate, logger.level, logger.disabled)
    logger.addHandler(listener)
    logger.propagate, logger.disabled = False, False
    logger.setLevel(logging.WARNING)
    try:
        yield lines
    finally:
        logger.removeHandler(listener)
        logger.propagate, logger.disabled = before[0], before[2]
        logger.setLevel(before[1])


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split("\n"))


def recorded(settings: Settings, said: Said) -> Settings:
    """The settings, with identities in clear, and with callables of `when` and of the lists that tell what they said.

    These are asked while rules are looked for; the others by `answers_of`.
    """

    def told(value: Any) -> Any:
        return Recorder(call_from(value), said) if callable(value) or named_call(value) else value

    return replace(
        settings,
        rules=[replace(rule, when=told(rule.when)) for rule in settings.compiled_rules()],
        safelist=[told(member) for member in settings.safelist],
        blocklist=[told(member) for member in settings.blocklist],
        key_secret="",
        plain_keys=True,
    )


def answers_of(calls: Sequence[Call], request: Request, said: Said) -> Answers:
    """What the callables answer. One that is async is waited for; one that raises has failed, as in the middleware."""
    answers: dict[Call, Any] = {}
    for call in calls:
        try:
            answer = call(request)
            answers[call] = asyncio.run(_awaited(answer)) if isawaitable(answer) else answer
            said.append((full_name(call), _shown(answers[call])))
        except Exception as error:  # noqa: BLE001  # it is told, with what follows
            answers[call] = FAILED
            said.append((full_name(call), _raised(error)))
    return answers


def full_name(call: Any) -> str:
    """`package.module:function`."""
    return f"{getattr(call, '__module__', '')}:{getattr(call, '__qualname__', type(call).__qualname__)}"


class Recorder:
    """A plain callable that does what another one does, and writes down what came of it.

    `failed`: it raised, or said neither True nor False.
    """

    def __init__(self, call: Call, said: Said) -> None:
        self._call: Final = call
        self._said: Final = said
        self.failed = False
        self.__qualname__ = full_name(call)

    def __call__(self, request: Request) -> Any:
        """Ask it."""
        try:
            answer = self._call(request)
        except Exception as error:
            self.failed = True
            self._said.append((full_name(self._call), _raised(error)))
            raise
        self.failed = not isinstance(answer, bool)
        self._said.append((full_name(self._call), _shown(answer)))
        return answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _shown(answer: object) -> str:
    return one_line(f"{answer!r:.{_LONGEST}}")


def _raised(error: Exception) -> str:
    return one_line(f"raised {type(error).__name__}: {error}")
