"""The answer that the decision service is compared with: an app that answers 200 with nothing."""

from typing import Any

_START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
_END = {"type": "http.response.body", "body": b""}


def empty() -> Any:
    """An ASGI app without any work."""

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send(_START)
            await send(_END)

    return app
