"""Tests the tools of the guide with the client of FastMCP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError

from web_servers import WebServer, serve_uvicorn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def server() -> Iterator[WebServer]:
    with serve_uvicorn("mcp_tools:app", EXAMPLES) as running:
        yield running


def called(server: WebServer, key: str, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """Return the text of each call of a tool, or of its error."""

    async def run() -> list[str]:
        transport = StreamableHttpTransport(f"{server.url}/mcp", headers={"x-api-key": key})
        async with Client(transport) as client:
            return [await one(client, *call) for call in calls]

    async def one(client: Any, tool: str, arguments: dict[str, Any]) -> str:
        try:
            return str((await client.call_tool(tool, arguments)).data)
        except ToolError as error:
            return str(error)

    return asyncio.run(run())


def test_each_tool_has_its_limit_for_each_client(server: WebServer) -> None:
    search = ("search", {"words": "owls"})
    got = called(server, "ann", *[search] * 4, ("translate", {"text": "abc"}))
    assert got[:3] == ["all about owls"] * 3
    text, _, seconds = got[3].removesuffix(" seconds").rpartition(" ")
    assert (text, 50 <= int(seconds) <= 60) == ("search is used too often; try again in", True)
    assert got[4] == "cba"
    assert called(server, "bob", search) == ["all about owls"]


def test_a_tool_that_costs_by_size_refuses_what_does_not_fit(server: WebServer) -> None:
    got = called(server, "ann", *[("translate", {"text": "x" * size}) for size in (600, 401, 399, 1001)])
    assert [one[:40] for one in got] == [
        "x" * 40,
        "translate is used too often; try again i",
        "x" * 40,
        "translate never does so much at once",
    ]
