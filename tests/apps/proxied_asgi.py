"""An app behind a proxy: bare, and with the middleware, with which the decision service is compared."""

import os
from typing import Any

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.settings import Settings


async def bare(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    status = 403 if scope["path"] == "/forbidden" else 200
    body = f"app {scope['method']} {scope['path']}".encode()
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


limited = RateLimitMiddleware(bare, Settings.load(os.environ["TEST_LIMITS"])) if "TEST_LIMITS" in os.environ else bare
