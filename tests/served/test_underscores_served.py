"""Sends `X_Forwarded_For` of a client beside `X-Forwarded-For` of its proxy to each WSGI server."""

import pytest

from attacks.attack import statuses
from attacks.wire import Request, send
from spellings.served import WSGI_SERVERS

pytestmark = pytest.mark.promise(10)

KEEPING = {"hypercorn-wsgi", "granian-wsgi", "uwsgi", "wsgiref"}
OVERWRITING = {"granian-wsgi"}  # the app sees the last of the two headers, as if it were the only one


@pytest.mark.parametrize("name", WSGI_SERVERS)
def test_header_with_underscores_does_not_replace_the_proxys(name: str) -> None:
    with WSGI_SERVERS[name]("behind_wsgi:app") as server:
        port = int(server.url.rpartition(":")[2])
        lines = [[("X-Forwarded-For", "192.0.2.1"), ("X_Forwarded_For", f"198.51.100.{each}")] for each in range(6)]
        found = statuses([send(port, Request("GET", "/", each)) for each in lines])
    assert server.output().count("X_Forwarded_For as X-Forwarded-For") == (name in KEEPING)
    if name not in OVERWRITING:
        assert found == [200] * 3 + [429] * 3
