"""Tests that a client gains no requests by resetting its connection at once, which hides its address from uvicorn."""

import json
import socket
import struct

import pytest

from attacks.wire import Request, send
from web.real_servers import APPS, KINDS

RESETS = 100
SETTINGS = {
    "defaults": {},
    "no key": {"missing_key": "exempt"},
    "forged address": {"trusted_proxies": ["192.0.2.1", "unix:"], "safelist": ["10.1.0.0/16"]},
    "rules": {"rules": [{"path": "/other", "limits": "1/minute"}]},
}


@pytest.mark.promise(10)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(("interface", "app"), [("asgi3", "resets_asgi:app"), ("wsgi", "resets_wsgi:app")])
@pytest.mark.parametrize("kind", ["uvicorn", "uvicorn-standard"])
def test_reset_connection_evades_no_limit(kind: str, interface: str, app: str, settings: dict[str, object]) -> None:
    server = KINDS[kind]
    env = {"SETTINGS": json.dumps({"limits": "5/hour", **settings})}
    options = (*server.options, "--no-proxy-headers", "--interface", interface)
    with server.serve(app, APPS, *options, env=env) as running:
        port = int(running.url.rpartition(":")[2])
        request = Request("POST", "/send", (("X-Forwarded-For", "10.1.2.3"),))
        assert [send(port, request).status for _ in range(6)] == [200] * 5 + [429]
        for _ in range(RESETS):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(request.written())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert send(port, request).status == 429  # the server accepted the other connections before this one
        assert send(port, Request("GET", "/facts")).body == b"5"
