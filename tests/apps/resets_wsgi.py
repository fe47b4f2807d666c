"""A WSGI app that counts the requests it receives. SETTINGS has the settings of its limits, as JSON."""

import json
import os
from typing import Any

from ratelimit_mw.wsgi import RateLimitMiddleware

served: list[str] = []


def count(environ: Any, start_response: Any) -> list[bytes]:
    if environ["PATH_INFO"] == "/facts":
        body = str(len(served)).encode()
    else:
        served.append(environ["PATH_INFO"])
        body = b"sent"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


app = RateLimitMiddleware(count, exempt=["/facts"], **json.loads(os.environ["SETTINGS"]))
