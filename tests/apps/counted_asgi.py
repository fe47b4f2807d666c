"""An app with metrics, for uvicorn. `/metrics` shows the counts of all workers, other paths the answering process."""

import os
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.metrics import PrometheusCollector

REGISTRY = CollectorRegistry()
REGISTRY.register(PrometheusCollector())


async def site(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError
    body = generate_latest(REGISTRY) if scope["path"] == "/metrics" else str(os.getpid()).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


app = RateLimitMiddleware(
    site,
    limits="2/hour using fixed_window",
    key="ip",
    exempt=["/metrics"],
    metrics=True,
    metrics_folder=os.environ["METRICS_FOLDER"],
)
