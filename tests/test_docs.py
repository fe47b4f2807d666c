"""Every block of the README and the docs is run, or held to something that is."""

import asyncio
import contextlib
import io
import json
import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from werkzeug.test import Client

from ratelimit_mw.settings import Options, Settings
from redis_servers import RedisServer

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([a-z{}]*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Shell lines are not run here; each names the test, the tox environment or the CI step that runs it.
SHELL = {
    "python3 -m venv .venv && . .venv/bin/activate": ".ci/run",
    'python3 -m pip install ".[demo]"': "tox -e demo",
    'python3 -m pip install ".[demo]" && python3 -m ratelimit_mw demo': "tox -e demo, test_demo.py",
    "python3 -m pip install tox && python3 -m tox": ".ci/run",
    'python3 -m pip install "ratelimit-mw[redis]"': "tox installs this extra",
    "uvicorn shop:app": "test_examples.py serves the same app",
    "for i in 1 2 3 4; do curl -i http://127.0.0.1:8000/; done": "test_examples.py calls it",
}

# Files that a page shows are not run here either.
INCLUDED = {
    ROOT / "examples/own_store.py": "test_own_parts.py",
    ROOT / "examples/own_algorithm.py": "test_own_parts.py",
}


class Block(NamedTuple):
    language: str
    argument: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs(page: Path, redis_server: RedisServer) -> None:
    found = blocks(page)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for language, argument, raw in found:
        text = raw.replace("redis://localhost:6379/0", redis_server.url)
        if language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, str(page), "exec"), names)  # noqa: S102  # the point of this test
            printed = output.getvalue()
            if "app" in names:
                assert 429 in call_often(names.pop("app"))
        elif language == "text":
            assert printed == text
        elif language == "toml":
            Settings.of(tomllib.loads(text), {})
        elif language == "http":
            json.loads(text.partition("\n\n")[2])
        elif language == "{literalinclude}":
            assert (page.parent / argument).resolve() in INCLUDED
        elif language == "sh":
            assert set(text.splitlines()) <= set(SHELL)
        else:
            assert language == "{toctree}"


def call_often(app: Any) -> list[int]:
    """Statuses of a hundred calls and one more: what the docs show refuses in the end."""
    if hasattr(app, "wsgi_app"):
        return [Client(app).get("/").status_code for _ in range(101)]

    async def call() -> list[int]:
        transport = httpx.ASGITransport(app=app)
        async with serving(app), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [(await client.get("/")).status_code for _ in range(101)]

    return asyncio.run(call())


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[None]:
    """The app's lifespan, as a server runs it: at its end the middleware closes its store."""
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    running = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, to_app.get, from_app.put))
    to_app.put_nowait({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    yield
    to_app.put_nowait({"type": "lifespan.shutdown"})
    assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
    await running


def test_the_readme_shows_how_to_start() -> None:
    first = next(block for block in blocks(PAGES[0]) if block.language == "sh")
    assert first.text.splitlines() == [
        "python3 -m venv .venv && . .venv/bin/activate",
        'python3 -m pip install ".[demo]" && python3 -m ratelimit_mw demo',
        "python3 -m pip install tox && python3 -m tox",
    ]


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    top = page.partition("## At the top")[2].partition("## In a rule")[0]
    assert re.findall(r"^\| `(\w+)` \|", top, re.MULTILINE) == list(Options.__annotations__)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+\.md)", page.read_text("utf-8")):
            assert (page.parent / target).is_file(), f"{page.name}: {target}"
