"""uvicorn examples.mcp_tools:app"""

import os
from math import ceil, isinf

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.dependencies import get_http_request

from ratelimit_mw.asgi import RateLimitMiddleware

mcp = FastMCP("tools")


async def charge(limits: str, tool: str, cost: int = 1) -> None:
    request = get_http_request()
    key = (tool, request.headers.get("x-api-key", "anonymous"))
    verdict = await request.state.ratelimit.charge(limits, key=key, cost=cost, raises=False)
    if not verdict.allowed:  # a 429 would end the client's session; a model reads this text
        if isinf(verdict.retry_after):
            raise ToolError(f"{tool} never does so much at once")
        raise ToolError(f"{tool} is used too often; try again in {ceil(verdict.retry_after)} seconds")


@mcp.tool
async def search(words: str) -> str:
    await charge("3/minute using fixed_window", "search")
    return f"all about {words}"


@mcp.tool
async def translate(text: str) -> str:
    await charge("1000/hour using gcra", "translate", cost=len(text))
    return text[::-1]


app = mcp.http_app(path="/mcp", stateless_http=True)
app.add_middleware(
    RateLimitMiddleware, limits="600/minute", key="header:x-api-key | ip", store=os.environ.get("STORE", "memory://")
)
