"""What commands show on a terminal only: progress on stderr, and color on stdout."""

import os
import sys
import time
from collections.abc import Callable
from typing import Final, Literal

_WIDTH: Final = 30  # characters of the bar
_QUIET: Final = 1.0  # seconds before the bar appears
_INTERVAL: Final = 0.1  # seconds between its updates
_LEAST: Final = 0.01  # the share from which the time left is shown
_MINUTE: Final = 60
_CODES: Final = {"green": 32, "yellow": 33}


class ProgressBar:
    """A bar on stderr that shows how much was read, how fast, and the time left. Appears after a second.

    Shows nothing unless stderr is a terminal. `rate`: returns the text for a number of things per second.
    """

    def __init__(self, rate: Callable[[float], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._rate: Final = rate
        self._clock: Final = clock
        self._started = self._changed = clock()
        self._visible = False
        self.is_shown: Final = sys.stderr.isatty()

    def show(self, done: float, total: float, count: float | None = None) -> None:
        """Show how much was read. `total`: 0 if it is unknown. `count`: the things for the rate; default: `done`."""
        now = self._clock()
        if not self.is_shown or now - self._started < _QUIET or now - self._changed < _INTERVAL:
            return
        self._changed, self._visible = now, True
        parts = [self._rate((done if count is None else count) / (now - self._started))]
        if total:
            share = min(1.0, done / total)
            filled = round(share * _WIDTH)
            parts.insert(0, f"[{'#' * filled}{' ' * (_WIDTH - filled)}] {share:4.0%}")
            if share >= _LEAST:
                parts.append(_left((now - self._started) * (1 - share) / share))
        _write(f"\r{'  '.join(parts)}\x1b[K")

    def clear(self) -> None:
        """Remove the bar."""
        if self._visible:
            _write("\r\x1b[K")
            self._visible = False


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _left(seconds: float) -> str:
    return f"{seconds:.0f} s left" if seconds < _MINUTE else f"{seconds / _MINUTE:.0f} min left"


def colored(text: str, color: Literal["green", "yellow"]) -> str:
    """Return a text in color if stdout is a terminal, and `NO_COLOR` is unset or empty (no-color.org)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m"
