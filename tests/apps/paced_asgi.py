"""The same app twice: `bare`, for a proxy that limits, and `paced`, with limits that correspond to nginx's."""

from typing import Any

from ratelimit_mw.asgi import RateLimitMiddleware

LIMITS: dict[str, Any] = {
    "/burst": {"limit": "10/second burst 21 using leaky_bucket", "max_delay": 2},
    "/nodelay": "10/second burst 21 using leaky_bucket",
    "/delay": {"limit": "10/second burst 21 using leaky_bucket at_once 8", "max_delay": 2},
}


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Return the delay of the request in a header, in whole milliseconds as in nginx."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    outcome = scope.get("state", {}).get("ratelimit")
    delay = 0 if outcome is None else int(outcome.verdict.delay * 1000)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-delay-ms", str(delay).encode())]})
    await send({"type": "http.response.body", "body": b"ok"})


paced = RateLimitMiddleware(
    bare,
    limits=[],
    key="header:x-key",
    rules=[{"path": path, "limits": limits} for path, limits in LIMITS.items()],
)
