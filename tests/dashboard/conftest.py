"""Fixtures of the tests of the dashboard."""

from collections.abc import Iterator

import pytest

from ratelimit_mw.engine.live import LIVE, LOCAL_BOARD
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.metrics.sample import SAMPLE


@pytest.fixture(autouse=True)
def fresh_counts() -> Iterator[None]:
    """Forget what this process has counted and reported, before and after each test."""
    forget()
    yield
    forget()


def forget() -> None:
    COUNTS.forget()
    SAMPLE.forget()
    LOCAL_BOARD.clear()
    LIVE.forget()
