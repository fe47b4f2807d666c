"""An app that sends each request to every WSGI framework behind the middleware.

It returns which endpoints the request reached, which of them without a limit, and its Host header.
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
    escapes, all_reached = [], set()
    with ONE_BY_ONE:
        for name, ask in ASKED.items():
            reached, charged = _done(ask(read))
            all_reached |= {(name, one) for one in reached}
            escapes += [(name, one, sorted(charged)) for one in reached if escaped(one, charged)]
    hosts = [environ["HTTP_HOST"]] if "HTTP_HOST" in environ else []
    body = msgspec.json.encode((sorted(all_reached), escapes, hosts))
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
