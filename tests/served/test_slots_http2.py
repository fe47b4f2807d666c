"""Checks that the slot of a client that closes its HTTP/2 connection is released when the app has responded.

hypercorn then never returns from `send`. The lifetime of a slot is an hour here, so nothing else releases it.
"""

import socket
import time

import httpx
import pytest
from h2.connection import H2Connection

from web.real_servers import APPS, KINDS

PATIENCE = 60.0  # seconds


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.http2])
def test_closed_http2_connection_releases_its_slot(name: str) -> None:
    kind = KINDS[name]
    with (
        kind.serve("slots_asgi:app", APPS, *kind.options, env={"STORE": "memory://"}) as server,
        httpx.Client(base_url=server.url) as client,
    ):

        def becomes(status: int) -> bool:
            end = time.monotonic() + PATIENCE
            while (found := client.get("/", headers={"X-Client": "a"}).status_code) != status:
                if time.monotonic() > end or found not in (200, 429):
                    return False
            return True

        talk = H2Connection()
        talk.initiate_connection()
        fields = [(":method", "GET"), (":scheme", "http"), (":authority", "h"), (":path", "/held"), ("x-client", "a")]
        talk.send_headers(1, fields, end_stream=True)
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
            connection.sendall(talk.data_to_send())
            assert becomes(429)
        assert client.get("/release", headers={"X-Client": "b"}).status_code == 200
        assert becomes(200)
