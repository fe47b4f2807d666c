"""Apps that respond with the path as their server passed it on, in UTF-8."""

from typing import Any


async def over_asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body = scope["path"].encode("utf-8", "surrogatepass")
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def over_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    body: bytes = environ["PATH_INFO"].encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
