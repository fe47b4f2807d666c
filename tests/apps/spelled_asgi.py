"""An app that sends each request to every ASGI framework behind the middleware.

It returns which endpoints the request reached, which of them without a limit, and its Host headers.
"""

import atexit
from contextlib import ExitStack
from typing import Any

import msgspec

from spellings.drive import WITHOUT_ROOT, frameworks, opened
from spellings.endpoints import escaped

RUNNING = ExitStack()
atexit.register(RUNNING.close)
ASKED = {name: RUNNING.enter_context(opened(name)) for name in frameworks("asgi")}
# not http_version, which is "1" in granian for HTTP/1.0, so that Falcon fails
READ = ("path", "raw_path", "root_path", "query_string", "method", "scheme")


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    escapes, all_reached = [], set()
    for name, ask in ASKED.items():
        if not scope.get("root_path") or name not in WITHOUT_ROOT:
            reached, charged = await ask({part: scope[part] for part in READ if part in scope})
            all_reached |= {(name, one) for one in reached}
            escapes += [(name, one, sorted(charged)) for one in reached if escaped(one, charged)]
    hosts = [value.decode("latin-1") for header, value in scope["headers"] if header == b"host"]
    body = msgspec.json.encode((sorted(all_reached), escapes, hosts))
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
