"""An app with metrics, for gunicorn. `/metrics` shows the counts of all workers, other paths the answering process."""

import os
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ratelimit_mw.metrics import PrometheusCollector
from ratelimit_mw.wsgi import RateLimitMiddleware

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


def site(environ: "WSGIEnvironment", start_response: "StartResponse") -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    if environ["PATH_INFO"] != "/metrics":
        return [str(os.getpid()).encode()]
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # of prometheus_client
    registry.register(PrometheusCollector())
    return [generate_latest(registry)]


app = RateLimitMiddleware(  # the metrics use the folder of prometheus_client
    site, limits="2/hour using fixed_window", key="ip", exempt=["/metrics"], metrics=True
)
