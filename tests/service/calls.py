"""Calls the service within this process."""

import asyncio
from typing import Any

import httpx

from ratelimit_mw.service import service


def client(app: Any, peer: str | None = "127.0.0.1", base_url: str = "http://service") -> httpx.AsyncClient:
    """Return a client of an ASGI app. `peer`: the address of the client."""
    transport = httpx.ASGITransport(app=app, client=(peer, 1) if peer else ("", 0))
    return httpx.AsyncClient(transport=transport, base_url=base_url)


def calls(app: Any, *asked: tuple[str, str, dict[str, Any]], peer: str = "127.0.0.1") -> list[httpx.Response]:
    """Send requests in order, and return the responses. Each request: method, path and options of httpx."""

    async def run() -> list[httpx.Response]:
        async with client(app, peer) as one:
            return [await one.request(method, path, **options) for method, path, options in asked]

    return asyncio.run(run())


def call(app: Any, path: str, body: Any, peer: str = "127.0.0.1") -> httpx.Response:
    """Send a POST request, and return the response."""
    (answer,) = calls(app, ("POST", path, {"json": body}), peer=peer)
    return answer


def made(**options: Any) -> Any:
    """Return a service with these settings."""
    return service({"trusted_proxies": ["127.0.0.1"], "limits": "100/minute", **options})
