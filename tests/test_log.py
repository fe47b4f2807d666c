"""Log lines that clients can cause: they are throttled, and their values are escaped and shortened."""

import logging
from collections.abc import Callable

import pytest

from ratelimit_mw.core import log as notices
from ratelimit_mw.core.log import capture_warnings, logger, warn, warn_throttled


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Replace the record of logged topics with an empty one, and return it."""
    nothing: dict[str, float] = {}
    monkeypatch.setattr(notices, "_quiet_until", nothing)
    return nothing


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list whose only item is the time of the log, in seconds."""
    time = [1000.0]
    monkeypatch.setattr("ratelimit_mw.core.log.time.monotonic", lambda: time[0])
    return time


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("MISCONF cannot write", "MISCONF cannot write"),
        ("one\nforged: two\r\n", "one\\nforged: two\\r\\n"),
        ("\x1b[31mred\x00\x7f", "\\x1b[31mred\\x00\\x7f"),
        ("\x85\u2028\u2029\u202e", "\\x85\\u2028\\u2029\\u202e"),
        ("\ud800", "\\ud800"),
        ("Z\u00fcrich 100% \\n", "Z\u00fcrich 100% \\n"),
        ("x" * 500, "x" * 500),
        ("x" * 501, "x" * 500 + "... (501 characters)"),
        ("\n" * 10_000_000, "\\n" * 500 + "... (10000000 characters)"),
    ],
    ids=lambda text: ascii(text[:30]),  # pytest-xdist sends ids between processes, and a failure prints the ids
)
def test_logged_values_are_escaped_and_shortened(text: str, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_throttled("store", "failed: %s", ValueError(text), code="RL-201")
    assert lines(caplog) == [f"ratelimit_mw: store: failed: {shown}"]


def test_topic_of_a_log_line_is_escaped(caplog: pytest.LogCaptureFixture) -> None:
    warn_throttled("call\nforged", "%d keys", 7, code="RL-201")
    assert lines(caplog) == ["ratelimit_mw: call\\nforged: 7 keys"]


def test_each_topic_logs_at_most_one_line_per_minute(caplog: pytest.LogCaptureFixture, now: list[float]) -> None:
    for second in range(121):
        now[0] = 1000.0 + second
        warn_throttled("store", "failed at %s", second, code="RL-201")
        warn_throttled("user", "raised at %s", second, code="RL-201")
    assert lines(caplog) == [
        f"ratelimit_mw: {place} at {at}" for at in (0, 60, 120) for place in ("store: failed", "user: raised")
    ]


def test_record_of_logged_topics_is_bounded(caplog: pytest.LogCaptureFixture, said: dict[str, float]) -> None:
    for number in range(2500):
        warn_throttled(f"place {number}", "said", code="RL-201")
    assert len(said) == 500
    assert len(caplog.records) == 2500


@pytest.mark.parametrize(
    ("raises", "logged"),
    [
        (lambda: dict[str, str]()["user"], "KeyError: 'user'"),
        (lambda: None.user, "AttributeError: 'NoneType' object has no attribute 'user'"),  # type: ignore[attr-defined]  # raises
        (lambda: int("".join("ann")), "ValueError; its text is left out"),
    ],
)
def test_the_text_of_an_error_is_logged_if_its_words_are_in_the_code(
    raises: Callable[[], object], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ratelimit_mw")
    for _ in range(2):
        try:
            raises()
        except (LookupError, AttributeError, ValueError) as error:
            own = f"{type(error).__name__}: {error}"
            warn_throttled("key", "raised", code="RL-201", error=error)
    texts = [(record.levelname, logging.Formatter().format(record).splitlines()[-1]) for record in caplog.records]
    assert texts == [("DEBUG", own), ("WARNING", f"RuntimeError: {logged}"), ("DEBUG", own)]


def test_traceback_is_logged_without_the_text_of_the_error(caplog: pytest.LogCaptureFixture) -> None:
    known: dict[str, str] = {}
    client = "name of a client".upper()  # no text of the code

    def asks() -> None:
        try:
            known["192.0.2.1"]
        except LookupError as error:
            raise ValueError(f"a {client}") from error

    try:
        asks()
    except ValueError as error:
        warn_throttled("key", "raised", code="RL-201", error=error)
    formatted = logging.Formatter().format(caplog.records[0])
    assert "RuntimeError: ValueError; its text is left out" in formatted
    assert "in asks" in formatted
    assert "NAME" not in formatted
    assert "192.0.2.1" not in formatted


def test_captured_warnings_reach_no_handler(caplog: pytest.LogCaptureFixture) -> None:
    own: list[str] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            own.append(record.getMessage())

    handler = Own()
    logger.addHandler(handler)
    before = logger.propagate, logger.level, logger.disabled, logger.filters[:]
    try:
        with capture_warnings() as captured:
            warn("in the\nblock", code="RL-101")
            warn("in the\nblock", code="RL-101")
        assert own == lines(caplog) == []
        assert captured == ["in the block"]
        assert (logger.propagate, logger.level, logger.disabled, logger.filters) == before
        warn("after it", code="RL-101")
        assert own == lines(caplog) == ["ratelimit_mw: after it"]
    finally:
        logger.removeHandler(handler)
