"""Reports to the guard of the latency goal when the response of a request on the short way starts."""

from collections.abc import Awaitable

from ratelimit_mw.asgi.send import Message, Send
from ratelimit_mw.engine.overload import OverloadGuard


def measured(guard: OverloadGuard, number: int, send: Send) -> Send:
    """Return a `send` that reports the start of the app's response to `guard`. `number`: of the request there."""
    answered = guard.answered

    def measured_send(message: "Message") -> "Awaitable[None]":  # quoted: not evaluated for each request
        if message["type"] == "http.response.start":
            answered(number)
        return send(message)

    return measured_send
