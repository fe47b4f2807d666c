"""uvicorn examples.websocket_app:app, with the package websockets installed"""

import os

from starlette.applications import Starlette
from starlette.endpoints import WebSocketEndpoint
from starlette.middleware import Middleware
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from ratelimit_mw.asgi import RateLimitMiddleware


class Echo(WebSocketEndpoint):
    encoding = "text"

    async def on_receive(self, websocket: WebSocket, data: str) -> None:
        await websocket.send_text(data)


RULES = [
    {"path": "/echo", "limits": "4/minute"},  # connections; a message too many closes one
    {"path": "/ticks", "limits": "4/minute", "messages": "2/hour", "on_message_refused": "drop"},
]
app = Starlette(
    routes=[WebSocketRoute("/echo", Echo), WebSocketRoute("/ticks", Echo)],
    middleware=[
        Middleware(
            RateLimitMiddleware,
            limits="100/minute",
            messages="5/hour",  # of each client, over all its websockets
            rules=RULES,
            store=os.environ.get("STORE", "memory://"),
        )
    ],
)
