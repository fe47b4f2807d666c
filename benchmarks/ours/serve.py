"""An app that sends an empty 200 response, with which the decision service is compared."""

from typing import Any

_START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
_END = {"type": "http.response.body", "body": b""}


def empty() -> Any:
    """Return an ASGI app that sends an empty response."""

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send(_START)
            await send(_END)

    return app
