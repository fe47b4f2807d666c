"""The pytest fixture `ratelimit`, available in every test suite where this package is installed."""

from collections.abc import Iterator

import pytest

from ratelimit_mw.testing import Control, control


@pytest.fixture
def ratelimit() -> Iterator[Control]:
    """Control all stores of this process: `freeze()`, `advance(seconds)`, `reset()`.

    The test starts without states, and time runs until the test stops it. At the end, time runs again, stores on a
    server return to their previous states, and states in memory are forgotten.
    """
    with control(empty=True) as controller:
        yield controller
