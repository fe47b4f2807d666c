"""An app for several processes that share a limit. /process has no limit and shows the process that answers."""

import os
from typing import TYPE_CHECKING

from ratelimit_mw.wsgi import RateLimitMiddleware

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


def process(environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]


app = RateLimitMiddleware(
    process,
    limits="20/hour",
    exempt=["/process"],
    store=os.environ["STORE"],
    store_timeout=2,  # on a busy machine
    on_store_error="deny",
)
