"""The fixture `ratelimit`. pytest finds it by itself where this package is installed."""

from collections.abc import Iterator

import pytest

from ratelimit_mw.testing.control import Control, control


@pytest.fixture
def ratelimit() -> Iterator[Control]:
    """The stores of this process in a test's hands: `freeze()`, `advance(seconds)`, `reset()`.

    The test begins without states, time runs until it is stopped, and in the end everything is as it was, states in
    memory forgotten.
    """
    with control(empty=True) as controller:
        yield controller
