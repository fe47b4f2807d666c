"""An app whose store connects before the server forks. /process shows the process that answers, and its connections."""

import json
import os
from typing import TYPE_CHECKING, Any

from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.wsgi import RateLimitMiddleware

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

store = RedisStore(os.environ["STORE"], timeout=2)


def ports() -> list[int]:
    """Return the local ports of the open connections."""
    inner: Any = store._store  # the store below the layers
    return [line._connection._sock.getsockname()[1] for line in inner._transport._pool._idle]


for _ in range(10):
    try:
        store.take([Charge("before the fork", FixedWindow(9, 60))])
        break
    except StoreError:
        continue
BEFORE = {"process": os.getpid(), "ports": ports()}


def process(environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
    store.peek([Charge("after it", FixedWindow(9, 60))])
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"process": os.getpid(), "ports": ports(), "before": BEFORE}).encode()]


app = RateLimitMiddleware(process, limits="20/hour", exempt=["/process"], store=store, on_store_error="deny")
