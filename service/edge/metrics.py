"""What Prometheus reads at ``/metrics``. Every application has a registry of its own."""

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
    """Counters of one process. Routes are named by their template, so that ids make no new series; tenants are not named."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._seen: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "autosbp_http_requests_total", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._durations = Histogram(
            "autosbp_http_request_duration_seconds",
            "Seconds until the answer had been sent; of streams, until they began.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.reused = Counter(
            "autosbp_answers_reused_total", "Work that was answered from the store.", ("why",), registry=self._registry
        )

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count one request."""
        found = self._seen.get((method, route, status))
        if found is None:  # looking a series up by its labels takes longer than counting
            found = self._requests.labels(method, route, str(status)), self._durations.labels(method, route)
            self._seen[method, route, status] = found
        found[0].inc()
        found[1].observe(duration_s)

    def watch(self, jobs: Counts, streams: Callable[[], int]) -> None:
        """Ask for the number of jobs of each kind and state, and of event streams, when metrics are read."""
        self._registry.register(_Asked(jobs, streams))

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    @staticmethod
    def text_of_tenant(jobs: Counts, streams: Callable[[], int]) -> bytes:
        """What one tenant may know: these numbers of its own."""
        registry = CollectorRegistry()
        registry.register(_Asked(jobs, streams))
        return generate_latest(registry)


class _Asked(Collector):
    """Numbers that the database and the feed know."""

    def __init__(self, jobs: Counts, streams: Callable[[], int]) -> None:
        self._jobs, self._streams = jobs, streams

    def describe(self) -> list[Metric]:
        """Nothing is asked before metrics are read."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One gauge each."""
        jobs = GaugeMetricFamily("autosbp_jobs", "Stored jobs.", labels=("kind", "state"))
        for (kind, state), count in sorted(self._jobs().items()):
            jobs.add_metric((kind, state), count)
        yield jobs
        yield GaugeMetricFamily("autosbp_event_streams", "Open event streams.", value=self._streams())
