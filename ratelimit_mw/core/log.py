"""Logging: warnings at startup, and throttled warnings that clients can cause."""

import builtins
import logging
import re
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple
from zlib import crc32

from ratelimit_mw.core.errors import ConfigError, RateLimitError, with_code

logger = logging.getLogger("ratelimit_mw")

_INTERVAL: float = 60.0  # seconds
_MAX_TOPICS = 1000
_MAX_LENGTH = 500  # characters of each logged value, which may come from outside
_MAX_ERROR_LENGTH = 400  # characters of the text of this package's exceptions
_WORD = re.compile(r"\w+")
_PYTHON_TEXTS = """
    NoneType a an and argument arguments as attribute be can cannot expected for from function given got has in indices
    instance instances integers invalid is iterable key keyword list local method missing must name no not number object
    of operand operands or out positional range required s slices string subscriptable support supported takes to tuple
    type types unexpected unpack unsupported values were was where with
"""
_PYTHON_WORDS = {*dir(builtins), *_WORD.findall(_PYTHON_TEXTS)}  # of Python's own messages
_quiet_until: dict[str, float] = {}
_logged_findings: set[str] = set()
_skips_repeats = ContextVar("_skips_repeats", default=False)


class Finding(NamedTuple):
    """A likely mistake that a startup check found.

    `code`: see docs/reference/messages.md; empty if the text has a code already. `weakens_limits`: the app is limited
    less than the code or the settings suggest.
    """

    text: str
    code: str
    weakens_limits: bool = True

    @property
    def message(self) -> str:
        """The text with its code."""
        return with_code(self.text, self.code)


def warn_or_fail(findings: Iterable[Finding], *, strict: bool) -> None:
    """Log each finding as a warning. With `strict`, raise one `ConfigError` for the findings that weaken limits.

    All startup warnings pass through here. `strict`: the setting of that name. In a block of `without_repeats`, what
    this process has logged before is not logged again.
    """
    skips = _skips_repeats.get()
    problems: list[str] = []
    for finding in findings:
        if strict and finding.weakens_limits:
            problems.append(finding.message)
        elif not (skips and finding.message in _logged_findings):
            if len(_logged_findings) < _MAX_TOPICS:
                _logged_findings.add(finding.message)
            logger.warning("ratelimit_mw: %s", finding.message)
    if problems:
        raise ConfigError(*problems)


@contextmanager
def without_repeats() -> Iterator[None]:
    """Log no finding in the block that was logged before, because settings that are reloaded mostly have the same."""
    token = _skips_repeats.set(True)
    try:
        yield
    finally:
        _skips_repeats.reset(token)


def warn(message: str, *args: object, code: str) -> None:
    """Log a warning that clients cannot repeat at will."""
    logger.warning(with_code(f"ratelimit_mw: {message}", code), *args)


def info(message: str, *args: object, code: str) -> None:
    """Log what an operator did, and what came of it."""
    logger.info(with_code(f"ratelimit_mw: {message}", code), *args)


def warn_throttled(
    topic: str,
    message: str,
    *args: object,
    code: str,
    error: BaseException | None = None,
    call: object = None,
    value: str | None = None,
) -> None:
    """Log a warning, unless this `topic` had one within the last minute.

    `call`: the callable of the settings that the warning is about. Two callables of the same name then have separate
    warnings. `value`: what the warning is about; up to 64 different values have a warning of their own.

    `error`: an exception, whose traceback follows. Its text follows if it has no client data; in lines of the level
    DEBUG, which are not throttled, it always does.

    `args` may contain text from outside, such as a server's reply or an exception of the app. Control characters,
    including line breaks, are escaped, and long text is truncated.
    """
    safe_args = [arg if isinstance(arg, int) else printable(str(arg), _MAX_LENGTH) for arg in (topic, *args)]
    line = with_code(f"ratelimit_mw: %s: {message}", code)
    if error is not None:
        logger.debug(line, *safe_args, exc_info=error)
    now = time.monotonic()
    subject = topic if call is None else f"{topic} {id(getattr(call, '__code__', call))}"
    if value is not None:  # a number of 64, because clients may choose values
        subject += f" {crc32(value[:_MAX_LENGTH].encode('utf-8', 'replace')) % 64}"
    if now < _quiet_until.get(subject, 0.0):
        return
    if len(_quiet_until) >= _MAX_TOPICS:
        _quiet_until.clear()
    _quiet_until[subject] = now + _INTERVAL
    logger.warning(line, *safe_args, exc_info=_without_values(error))


@contextmanager
def capture_warnings() -> Iterator[list[str]]:
    """Collect the warnings that are logged in the block, each once and on one line, and keep them out of the log."""
    messages: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        message = single_line(record.getMessage().removeprefix("ratelimit_mw: "))
        if message not in messages:
            messages.append(message)
        return False  # a handler would be too late: those of this logger get each record, too

    previous = logger.propagate, logger.level, logger.disabled
    logger.addFilter(collect)
    logger.propagate, logger.disabled = False, False  # records of child loggers do not reach the root
    logger.setLevel(logging.WARNING)
    try:
        yield messages
    finally:
        logger.removeFilter(collect)
        logger.propagate, logger.disabled = previous[0], previous[2]
        logger.setLevel(previous[1])


def single_line(text: str) -> str:
    """Replace line breaks by spaces."""
    return " ".join(text.split("\n"))


def printable(text: str, most: int = 200) -> str:
    """Return text with control characters escaped, because these could forge lines of a log or change a terminal.

    Text of more than `most` characters is cut.
    """
    if len(text) > most:
        text = f"{text[:most]}... ({len(text)} characters)"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def error_summary(error: BaseException) -> str:
    """Return the text of this package's exceptions, short and on one line; for others only the class name.

    The text of another exception may contain a secret.
    """
    if not isinstance(error, RateLimitError):
        return type(error).__name__
    return "".join(char if char.isprintable() else " " for char in str(error)[:_MAX_ERROR_LENGTH])


def _without_values(error: BaseException | None) -> BaseException | None:
    """Return an exception with the same traceback, and the text only if the code that raised has all of its words.

    Other words may be client data such as a key. `KeyError: 'user'` of `state["user"]` keeps its text.
    """
    if error is None:
        return None
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [name for code in codes for name in (code.co_qualname, *code.co_names, *map(str, code.co_consts))]
    known = _PYTHON_WORDS.union(*map(_WORD.findall, names))
    text = str(error)[:_MAX_LENGTH]
    shown = f": {printable(text)}" if known.issuperset(_WORD.findall(text)) else "; its text is left out"
    return RuntimeError(f"{type(error).__name__}{shown}").with_traceback(error.__traceback__)
