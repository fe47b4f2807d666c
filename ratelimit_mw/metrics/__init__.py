"""Metrics for Prometheus: what the setting `metrics` counts, in all processes of a host."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ratelimit_mw.core.errors import require
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.metrics.families import BOUND_LABELS, FAMILIES, GUARDS, Family, Series, sample_name
from ratelimit_mw.metrics.folder import read_folder
from ratelimit_mw.metrics.recording import STORE_CALLS
from ratelimit_mw.metrics.registry import COUNTS, default_folder

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # of `exposition`
_NO_APP: Final = "are scraped, but no limiter of this process has metrics = true, so there are no counts; set it"
_NO_FOLDER: Final = (
    "is scraped, but does not exist, so there are no counts; give PrometheusCollector the metrics_folder of an app"
)

__all__ = ["PrometheusCollector"]


class PrometheusCollector:
    """A collector for a registry of prometheus_client: `REGISTRY.register(PrometheusCollector())`.

    With the setting `metrics_folder`, one scrape has the counts of all processes of this host, including those that
    have ended. Without it, a scrape has the counts of this process. The collector adds the processes up itself, so it
    works in one registry with a `MultiProcessCollector`.

    `folder`: the folder to read, for a process that serves metrics only; the default is that of the app's settings.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        with require("prometheus_client", "'ratelimit-mw[prometheus]'"):
            import prometheus_client  # noqa: F401, PLC0415  # raises here if it is missing, not in a scrape
        self._folder: Final = None if folder is None else Path(folder).absolute()

    def describe(self) -> "Iterable[Metric]":
        """Return the metrics without numbers, with which prometheus_client detects a second collector of them."""
        return [_metric(family, {}) for family in FAMILIES]

    def collect(self) -> "Iterator[Metric]":
        """Yield the metrics that have numbers."""
        counts = self._counts()
        by_name: dict[str, dict[tuple[str, ...], int]] = {}
        for (name, labels), count in counts.items():
            by_name.setdefault(name, {})[labels] = count
        for family in FAMILIES:
            yield _metric(family, by_name)

    def _counts(self) -> Mapping[Series, int]:
        folder = self._folder
        if folder is None and COUNTS.folder is None:  # no app counts in this process
            folder = default_folder()
        if folder is None or folder == COUNTS.folder:
            if not STORE_CALLS.enabled:
                warn_throttled("metrics", _NO_APP, code="RL-246")
            return COUNTS.counts()
        if folder.is_dir():
            return read_folder(folder)[0]
        if self._folder is not None:
            warn_throttled(f"metrics folder {folder}", _NO_FOLDER, code="RL-246")
        return {}


def exposition() -> bytes:
    """Return what a `PrometheusCollector` collects as the text that Prometheus scrapes."""
    registry = _registry()
    from prometheus_client import generate_latest  # noqa: PLC0415  # optional

    text: bytes = generate_latest(registry)
    return text


def _registry() -> Any:
    collector = PrometheusCollector()  # raises if prometheus_client is missing, and says how to install it
    from prometheus_client import CollectorRegistry  # noqa: PLC0415  # optional

    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def _metric(family: Family, by_name: Mapping[str, Mapping[tuple[str, ...], int]]) -> "Metric":
    """Return a metric. `by_name`: the counts by the name of the sample and by the labels."""
    from prometheus_client import core  # noqa: PLC0415  # optional

    if family.kind == "histogram":
        histogram = core.HistogramMetricFamily(family.name, family.help, labels=family.labels)
        buckets, sums = (by_name.get(sample_name(family, part), {}) for part in ("bucket", "sum"))
        for labels in sorted(sums):
            upto = accumulate(buckets.get((*labels, bound), 0) for bound in BOUND_LABELS)
            bounds = list(zip(BOUND_LABELS, upto, strict=True))
            histogram.add_metric(list(labels), bounds, sum_value=sums[labels] / family.unit)
        return histogram
    kind = core.CounterMetricFamily if family.kind == "counter" else core.GaugeMetricFamily
    made: Any = kind(family.name, family.help, labels=family.labels)
    for labels, count in sorted(by_name.get(family.name, {}).items()):
        if family.once and not count:
            continue
        value: float = min(count, 1) if family.once else count
        if family.mean:
            value /= max(1, by_name.get(GUARDS.name, {}).get((), 0))
        made.add_metric(list(labels), value if family.unit == 1 else value / family.unit)
    metric: Metric = made
    return metric
