"""A checker for the order of ASGI messages, which wraps an app or the middleware."""

import re

from ratelimit_mw.asgi.send import App, Message, Receive, Scope, Send

# The valid orders of messages. A connection may end at any point. "+" after a message means that more messages of its
# kind follow; after START it means that trailers follow. Messages of the server are listed where they must come first.
_ANSWER = r"(START (BODY\+ )*((BODY|PATHSEND) )?|START\+ (BODY\+ )*((BODY|PATHSEND) (TRAILERS\+ )*(TRAILERS )?)?)?"
_DENIAL = r"DENY (DENIAL\+ )*(DENIAL )?"
_ORDERS = {
    "http": re.compile(_ANSWER),
    "websocket": re.compile(rf"(CONNECT (ACCEPT (SEND )*(CLOSE )?|CLOSE |{_DENIAL})?)?"),
    "lifespan": re.compile(r"(STARTUP (FAILED |STARTED (SHUTDOWN (STOPPED )?)?)?)?"),
}
_WORDS = {
    "http.response.start": "START",
    "http.response.body": "BODY",
    "http.response.pathsend": "PATHSEND",
    "http.response.trailers": "TRAILERS",
    "websocket.connect": "CONNECT",
    "websocket.accept": "ACCEPT",
    "websocket.send": "SEND",
    "websocket.close": "CLOSE",
    "websocket.http.response.start": "DENY",
    "websocket.http.response.body": "DENIAL",
    "lifespan.startup": "STARTUP",
    "lifespan.startup.failed": "FAILED",
    "lifespan.startup.complete": "STARTED",
    "lifespan.shutdown": "SHUTDOWN",
    "lifespan.shutdown.failed": "STOPPED",
    "lifespan.shutdown.complete": "STOPPED",
}  # other messages may come at any time


def in_order(app: App) -> App:
    """Return the app wrapped in a checker that raises `AssertionError` at the first message out of order."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        order, said = _ORDERS[scope["type"]], ""

        def hear(message: Message) -> None:
            nonlocal said
            if word := _WORDS.get(message["type"]):
                more = any(message.get(name) for name in ("more_body", "more_trailers", "trailers"))
                said += f"{word}{'+' if more else ''} "
                assert order.fullmatch(said), said

        async def receive_checked() -> Message:
            message = await receive()
            hear(message)
            return message

        async def send_checked(message: Message) -> None:
            hear(message)
            await send(message)

        await app(scope, receive_checked, send_checked)

    return checked
