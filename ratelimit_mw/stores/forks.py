"""After a fork the child must not talk on its parent's sockets, and has none of its threads."""

import os
import weakref
from collections.abc import Callable


def start_over_in_child(method: Callable[[], None]) -> None:
    """Have a child process call this method of an object, if the object still lives."""
    own = weakref.WeakMethod(method)
    os.register_at_fork(after_in_child=lambda: (start_over := own()) and start_over())
