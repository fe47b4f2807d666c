"""An app for several processes that share a limit. /process has no limit and shows the process that answers."""

import os
from typing import Any

from ratelimit_mw.asgi import RateLimitMiddleware


async def process(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})


app = RateLimitMiddleware(
    process,
    limits="20/hour",
    exempt=["/process"],
    store=os.environ["STORE"],
    store_timeout=2,  # on a busy machine
    on_store_error="deny",
)
