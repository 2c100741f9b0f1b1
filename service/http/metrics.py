"""Prometheus metrics for ``/metrics``. Every application has its own registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
Counts = Callable[[], dict[tuple[str, str], int]]


class Metrics:
    """Metrics of one process. Labels are route templates, so that ids create no new series; tenants are no labels."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "autosbp_http_requests_total", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._durations = Histogram(
            "autosbp_http_request_duration_seconds",
            "Seconds until the response was sent; for streams, until they started.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.reused = Counter(
            "autosbp_answers_reused_total", "Requests answered from stored results.", ("why",), registry=self._registry
        )

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one request."""
        found = self._series.get((method, route, status))
        if found is None:  # cached, because looking up a series by its labels takes longer than counting
            found = self._requests.labels(method, route, str(status)), self._durations.labels(method, route)
            self._series[method, route, status] = found
        found[0].inc()
        found[1].observe(duration_s)

    def add_gauges(self, jobs: Counts, streams: Callable[[], int]) -> None:
        """Report the number of jobs per kind and state and of event streams, queried when metrics are read."""
        self._registry.register(_GaugeCollector(jobs, streams))

    def text(self) -> bytes:
        """Return the metrics in the exposition format."""
        return generate_latest(self._registry)

    @staticmethod
    def text_of_tenant(jobs: Counts, streams: Callable[[], int]) -> bytes:
        """Return the metrics that one tenant may see: its own jobs and event streams."""
        registry = CollectorRegistry()
        registry.register(_GaugeCollector(jobs, streams))
        return generate_latest(registry)


class _GaugeCollector(Collector):
    """Collector of numbers from the database and the change feed."""

    def __init__(self, jobs: Counts, streams: Callable[[], int]) -> None:
        self._jobs, self._streams = jobs, streams

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering runs no query."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Query the numbers and yield one gauge each."""
        jobs = GaugeMetricFamily("autosbp_jobs", "Stored jobs.", labels=("kind", "state"))
        for (kind, state), count in sorted(self._jobs().items()):
            jobs.add_metric((kind, state), count)
        yield jobs
        yield GaugeMetricFamily("autosbp_event_streams", "Open event streams.", value=self._streams())
