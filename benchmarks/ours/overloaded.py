"""Apps that can be overloaded, with and without a latency goal: behind a semaphore, and bound by the processor."""

import asyncio
import os
import threading
import time
from typing import Any

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware

GOAL = "BENCHMARKED_GOAL"  # seconds; 0: none
SLOTS, SECONDS = 20, 0.05  # of the semaphore: 400 requests a second
WORK = 0.025  # seconds of the processor
_LIMIT = "1000000/second"
_HEADERS = [(b"content-length", b"2")]


def _work() -> None:
    """Use the processor for a while; in steps, so that other threads have their turn."""
    until = time.thread_time() + WORK
    while time.thread_time() < until:
        sum(range(200))


def asgi(goal: str) -> Any:
    """Return an ASGI app with `/wait`, behind a semaphore, and `/work`, bound by the processor."""
    slots = asyncio.Semaphore(SLOTS)

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/work":
            await asyncio.sleep(0)  # others begin, too, as with any app that awaits something
            _work()
        else:
            async with slots:
                await asyncio.sleep(SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": b"ok"})

    return RateLimitMiddleware(app, limits=_LIMIT, latency_goal=float(goal))


def wsgi() -> Any:
    """Return a WSGI app with the same paths. Its goal is in the environment."""
    slots = threading.BoundedSemaphore(SLOTS)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/work":
            _work()
        elif environ["PATH_INFO"] == "/wait":
            with slots:
                time.sleep(SECONDS)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    return WsgiMiddleware(app, limits=_LIMIT, latency_goal=float(os.environ[GOAL]))
