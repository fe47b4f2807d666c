"""A WSGI app that trusts a proxy on this machine."""

import logging
from typing import Any

from ratelimit_mw.wsgi import RateLimitMiddleware

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")


def hello(_: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]


app = RateLimitMiddleware(hello, limits="3/hour", trusted_proxies=["127.0.0.1"])
