"""Tests what commands show on a terminal only."""

import io
import sys
from collections.abc import Callable

import pytest

from ratelimit_mw.core.progress import ProgressBar, colored
from ratelimit_mw.testing import Clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return a function that returns what stderr, a terminal, has received since the last call."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def take() -> str:
        text = terminal.getvalue()
        terminal.seek(0)
        terminal.truncate()
        return text

    return take


def test_progress_has_rate_and_time_left_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, clock = terminal_for(monkeypatch), Clock()
    bar = ProgressBar(lambda rate: f"{rate:.0f} B/s", clock)
    clock.advance(0.9)
    bar.show(10, 100)
    bar.clear()
    assert shown() == ""
    clock.advance(1.1)
    bar.show(10, 100)
    assert shown() == f"\r[{'#' * 3}{' ' * 27}]  10%  5 B/s  18 s left\x1b[K"
    bar.show(20, 100)  # too soon
    assert shown() == ""
    clock.advance(98)
    bar.show(0.2, 1, 4000)
    assert shown() == f"\r[{'#' * 6}{' ' * 24}]  20%  40 B/s  7 min left\x1b[K"
    clock.advance(1)
    bar.show(1010, 0)
    assert shown() == "\r10 B/s\x1b[K"
    bar.clear()
    assert shown() == "\r\x1b[K"


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pipe = Clock(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    bar = ProgressBar(str, clock)
    clock.advance(5)
    bar.show(10, 100)
    assert (bar.is_shown, pipe.getvalue()) == (False, "")


@pytest.mark.parametrize(
    ("variables", "text"), [({}, "\x1b[33m429\x1b[0m"), ({"NO_COLOR": "1"}, "429"), ({"TERM": "dumb"}, "429")]
)
def test_color_respects_the_environment(variables: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert colored("429", "yellow") == text


def test_a_pipe_has_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert colored("200", "green") == "200"
