"""An app that sends each request to every WSGI framework behind the middleware.

It returns how many endpoints the request reached, and which of them without a limit.
"""

import atexit
from collections.abc import Coroutine
from contextlib import ExitStack
from threading import Lock
from typing import Any

import msgspec

from spellings.drive import frameworks, opened
from spellings.endpoints import escaped

RUNNING = ExitStack()
atexit.register(RUNNING.close)
ASKED = {name: RUNNING.enter_context(opened(name)) for name in frameworks("wsgi")}
ONE_BY_ONE = Lock()  # a server may have threads


def app(environ: Any, start_response: Any) -> Any:
    read = {name: value for name, value in environ.items() if isinstance(value, str)}
    escapes, count = [], 0
    with ONE_BY_ONE:
        for name, ask in ASKED.items():
            reached, charged = _done(ask(read))
            count += len(reached)
            escapes += [(name, one, sorted(charged)) for one in reached if escaped(one, charged)]
    body = msgspec.json.encode((count, escapes))
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def _done(asked: Any) -> Any:
    """Return the result of a coroutine that never suspends."""
    running: Coroutine[Any, Any, Any] = asked
    try:
        running.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError(asked)
