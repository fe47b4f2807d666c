"""Formats the counts as the text that Prometheus scrapes, for a server of this package."""

from functools import cache
from typing import Any, Final

from ratelimit_mw.core.errors import require
from ratelimit_mw.metrics import PrometheusCollector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition() -> bytes:
    """Return the counts of all processes of this app, if they share a folder, or else the counts of this process."""
    from prometheus_client import generate_latest  # noqa: PLC0415  # optional

    text: bytes = generate_latest(_registry())
    return text


@cache
def _registry() -> Any:
    with require("prometheus_client", "'ratelimit-mw[prometheus]'"):
        from prometheus_client import CollectorRegistry  # noqa: PLC0415  # optional
    registry = CollectorRegistry()
    registry.register(PrometheusCollector())
    return registry
