"""Tests the page where apps mount it: exempt from their limits, and nothing else is; and by the commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from dashboard.asked import SECRET, SIGNED_IN
from ratelimit_mw import ConfigError
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.cli import main
from ratelimit_mw.dashboard import dashboard, dashboard_wsgi
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.service import service
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware

LIMITS = {"limits": "2/hour", "key": "ip", "metrics": True, "remember_refused": 10, "plain_keys": True}


async def ok(_: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


PATHS = ("/", "/", "/", "/rate-limits/data.json", "/rate-limits/nothing", "/rate-limits2")
EXPECTED = [200, 200, 429, 200, 404, 429]


async def _asgi(order: str) -> list[int]:
    page = dashboard(LIMITS, secret=SECRET)
    app = Starlette(routes=[Route("/", ok)])
    prefix = "/admin" if order == "below a mount" else ""
    served: Any = app
    if order == "around":
        app.mount("/rate-limits", page)
        served = RateLimitMiddleware(app, LIMITS)
    elif order == "mounted later":
        served = RateLimitMiddleware(app, LIMITS)
        app.mount("/rate-limits", page)
    else:
        mount = Mount("/rate-limits", page)
        app.routes.append(Mount(prefix, routes=[mount]) if prefix else mount)
        app.add_middleware(RateLimitMiddleware, LIMITS)
    found = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=served), base_url="http://localhost") as client:
        for path in PATHS:
            place = f"{prefix}{path}" if path != "/" else path
            found.append((await client.get(place, headers=SIGNED_IN)).status_code)
    return found


@pytest.mark.promise(9)
@pytest.mark.parametrize("order", ["added", "around", "mounted later", "below a mount"])
def test_a_page_in_starlette_exempts_itself_and_nothing_else(order: str) -> None:
    assert asyncio.run(_asgi(order)) == EXPECTED


def flask_app(served: str) -> Any:
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "ok")
    page = dashboard_wsgi(LIMITS, secret=SECRET)
    if served == "extension":
        RateLimiter(app, LIMITS)
        app.wsgi_app = page.beside(app.wsgi_app, "/rate-limits")  # type: ignore[method-assign]  # as Flask documents
    else:
        app.wsgi_app = WsgiMiddleware(page.beside(app.wsgi_app, "/rate-limits"), LIMITS)  # type: ignore[method-assign]
    return app


@pytest.mark.promise(9)
@pytest.mark.parametrize("served", ["extension", "middleware"])
def test_a_page_beside_a_wsgi_app_exempts_itself_and_nothing_else(served: str) -> None:
    client = flask_app(served).test_client()
    assert [client.get(path, headers=SIGNED_IN).status_code for path in PATHS] == EXPECTED


def test_the_page_shows_what_the_app_next_to_it_has_refused() -> None:
    client = flask_app("extension").test_client()
    for _ in range(3):
        client.get("/", environ_base={"REMOTE_ADDR": "192.0.2.99"})
    refused: list[int] = []
    shown: Any = {"series": []}
    while not (refused and sum(row[2] for row in shown["series"])):  # within some seconds
        time.sleep(0.1)
        shown = client.get("/rate-limits/data.json", headers=SIGNED_IN).json
        refused = [one["refused"] for one in shown["refused_most"] if one["key"] == "ip=192.0.2.99"]
    assert refused == [1]  # the apps of other tests may still report what they have refused
    lines = [(one["method"], one["path"]) for one in shown["refusals"] if one["key"] == "ip=192.0.2.99"]
    assert lines == [("GET", "/")]
    assert [sum(row[index] for row in shown["series"]) for index in (1, 2)] == [2, 1]


@contextmanager
def command(folder: Path, *words: str, **environment: str) -> Iterator[str]:
    """Run a command, and yield the address that it prints; with --write, the second one, with the secret it made."""
    line = [sys.executable, "-m", "ratelimit_mw", *words]
    variables = {**os.environ, **environment}
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, text=True, env=variables) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if "--write" in words:
                said = process.stdout.readline()
            yield "http://" + said.partition("http://")[2].strip().rstrip("/")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def fetched(url: str, **headers: str) -> Any:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # http
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  # http
                return json.loads(answer.read())
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:  # it does not listen yet
            assert time.monotonic() < end
            time.sleep(0.1)


def test_the_command_serves_the_page(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(
        f'limits = "5/minute"\nmetrics = true\nstore = "sqlite://{tmp_path}/limits.db"\n'
    )
    SQLiteStore(tmp_path / "limits.db").close()
    with command(tmp_path, "dashboard", "shop.toml", "--bind", "127.0.0.1:0") as address:
        shown = fetched(f"{address}/data.json")
        assert (shown["name"], shown["you"]["role"], len(shown["series"])) == ("shop", "viewer", 300)


@pytest.mark.parametrize("words", [["dashboard"], ["serve", "--dashboard"]], ids=" ".join)
def test_a_command_with_write_makes_a_secret(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RATELIMIT_MW_DASHBOARD_SECRET", raising=False)
    (tmp_path / "shop.toml").write_text('limits = "5/minute"\nmetrics = true\n')
    with command(tmp_path, words[0], "shop.toml", *words[1:], "--bind", "127.0.0.1:0", "--write") as said:
        url, secret = said.removesuffix(", or set RATELIMIT_MW_DASHBOARD_SECRET").split(" with ")
        assert fetched(f"{url}data.json", Authorization=f"Bearer {secret}")["write"] is True
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetched(f"{url}data.json")


def test_serve_has_the_page_below_a_path(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text('limits = "5/minute"\nmetrics = true\ntrusted_proxies = ["127.0.0.1"]\n')
    words = ("serve", "shop.toml", "--bind", "127.0.0.1:0", "--dashboard", "--write")
    with command(tmp_path, *words, RATELIMIT_MW_DASHBOARD_SECRET=SECRET) as page:  # the line that says where it is
        address = page.removesuffix("/dashboard")
        shown = fetched(f"{page}/data.json", **SIGNED_IN)
        assert (shown["write"], fetched(f"{address}/healthz")) == (True, {"status": "ok"})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetched(f"{address}/dashboard/data.json")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["dashboard", "shop.toml", "--bind", "0.0.0.0:0"], "set RATELIMIT_MW_DASHBOARD_SECRET"),
        (["dashboard", "nothing.toml"], "nothing.toml"),
        (["serve", "shop.toml", "--write"], "--write: present without --dashboard"),
    ],
)
def test_a_mistake_of_the_command_line_is_said(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RATELIMIT_MW_DASHBOARD_SECRET", raising=False)
    Path("shop.toml").write_text('limits = "5/minute"\nmetrics = true\n')
    assert main(words) == 1
    assert text in capsys.readouterr().err


def test_a_page_is_no_app_of_the_service() -> None:
    assert service(LIMITS).paths[-1] == "/metrics"
    with pytest.raises(ConfigError, match="limits"):
        dashboard({})
