"""Lets a test step a coroutine manually: the test receives what the coroutine awaits, and chooses the result."""

import types
from collections.abc import Generator
from typing import Any


@types.coroutine
def awaited(what: Any) -> Generator[Any, Any, Any]:
    """Hand `what` to the test that steps the coroutine, and return what the test sends."""
    return (yield what)
