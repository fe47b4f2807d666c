"""Steps a coroutine by hand: what it awaits comes out, and the test decides what it gets for it."""

import types
from collections.abc import Generator
from typing import Any


@types.coroutine
def awaited(what: Any) -> Generator[Any, Any, Any]:
    """Hand `what` to the test that steps the coroutine, and return what the test sends."""
    return (yield what)
