"""An app that delays requests to one per two seconds and client, at most two at once (the default of WSGI)."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ratelimit_mw.wsgi import RateLimitMiddleware

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


def hello(_: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


app = RateLimitMiddleware(
    hello,
    limits={"limit": "30/minute burst 5 using leaky_bucket", "max_delay": 20},
    key="ip",
    store=os.environ["STORE"],
    store_timeout=5,  # on a busy machine
    on_store_error="deny",
)
