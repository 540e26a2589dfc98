"""What Prometheus reads from the observer."""

from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pipelines.observer.rows import Access

_LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        both, log = ("model", "pool"), ("log",)
        self.requests = self._counter("requests", "Inference requests by model, pool and success.", (*both, "ok"))
        self.degraded = self._counter("degraded", "Of them, answered by a cheaper copy in the lite tier.", both)
        self.latency = Histogram(
            "trimtab_request_latency_seconds",
            "Time from a request's arrival to the last byte of its answer.",
            both,
            buckets=_LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.rows = self._counter("log_rows", "Rows received for the inference log.", log)
        self.undecoded = self._counter("undecoded", "Messages and bodies that could not be read.", log)
        self.dropped = self._gauge("dropped", "Rows and copies dropped because memory was full, since the start.", log)
        self.held = self._gauge("held_rows", "Rows that wait for the store.", log)
        self.store_failures = self._gauge("store_failures", "Writes that the store refused, since the start.", ())
        self.completeness = self._gauge("completeness_share", "Share of Envoy's own count that is in the log.", log)

        version = ("model", "version")
        self.distance = self._gauge(
            "drift_distance", "Distance of a feature from the version's reference, over its last block.",
            (*version, "feature"),
        )  # fmt: skip
        self.aggregate = self._gauge("drift_aggregate", "The features' weighted distance.", version)
        self.level = self._gauge("drift_level", "The aggregate's alarm level, once it is known.", version)
        self.alarm = self._gauge("drift_alarm", "1 from an alarm until the aggregate is back below its level.", version)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"trimtab_{name}_total", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"trimtab_{name}", text, labels, registry=self.registry)

    def saw(self, rows: Iterable[Access]) -> None:
        counts: Counts[tuple[str, str, str]] = Counts()
        for row in rows:
            counts[row.model, row.pool, str(row.ok).lower()] += 1
            self.latency.labels(row.model, row.pool).observe(row.latency_ms / 1e3)
            if row.degraded:
                self.degraded.labels(row.model, row.pool).inc()
        for labels, count in counts.items():
            self.requests.labels(*labels).inc(count)
        self.rows.labels("access").inc(sum(counts.values()))

    def drift(self, live: Iterable[Mapping[str, Any]]) -> None:
        """`Live.status()` as gauges; versions that no longer answer have none."""
        for gauge in (self.distance, self.aggregate, self.level, self.alarm):
            gauge.clear()
        for item in live:
            labels = item["model"], item["version"]
            for feature, distance in item["distances"].items():
                self.distance.labels(*labels, feature).set(distance)
            self.aggregate.labels(*labels).set(item["aggregate"])
            self.alarm.labels(*labels).set(item["alarm"])
            if item["level"] is not None:
                self.level.labels(*labels).set(item["level"])

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
