"""Counts calls of functions: a measure of work that does not depend on the machine."""

import gc
import sys
from collections.abc import Callable


def function_calls(work: Callable[[], object]) -> int:
    """Return how many functions are called, in Python and in C."""
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.collect()
    gc.disable()  # otherwise calls of finalizers could be counted
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count
