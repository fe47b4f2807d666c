"""What an ASGI app may send when: a checker that stands around an app, or around the middleware."""

import re

from ratelimit_mw.asgi.send import App, Message, Receive, Scope, Send

# How a connection may go, up to any point: where it breaks off is the app's affair. A "+" says that more of the kind
# follow, at a start that trailers do. What the server says is here where it must come first.
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
}  # all else may come at any time


def in_order(app: App) -> App:
    """The app, with an AssertionError at the first message that comes out of turn."""

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
