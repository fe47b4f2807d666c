"""Tests that servers on a unix socket, behind a proxy that `trusted_proxies` lists as `unix:`, limit each client."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from web.real_servers import APPS
from web_servers import WebServer, serve_gunicorn, serve_hypercorn

SETTINGS = {"limits": "2/hour", "key": "ip", "trusted_proxies": ["unix:"]}


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("serve", "options"),
    [(serve_gunicorn, ("--worker-class", "asgi")), (serve_hypercorn, ())],
    ids=["gunicorn-asgi", "hypercorn"],
)
def test_clients_behind_a_unix_socket_are_told_apart(
    serve: Callable[..., AbstractContextManager[WebServer]], options: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "app.sock"
    more = (*options, "--bind", f"unix:{path}")
    with (
        serve("resets_asgi:app", APPS, *more, env={"SETTINGS": json.dumps(SETTINGS)}),
        httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://app", timeout=60) as proxy,
    ):
        clients = ["192.0.2.1"] * 3 + ["192.0.2.2"]
        found = [proxy.post("/send", headers={"X-Forwarded-For": client}).status_code for client in clients]
    assert found == [200, 200, 429, 200]
