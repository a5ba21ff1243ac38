"""What the server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from livetables.errors import RequestError

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """One registry a server, so that two in one process do not meet."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.batches = Counter("livetables_batches", "Batches committed", registry=registry)
        self.rows = Counter("livetables_rows", "Rows upserted or deleted, by table", ["table"], registry=registry)
        self.batch_seconds = Histogram(
            "livetables_batch_seconds", "Time to commit a batch", buckets=SECONDS, registry=registry
        )
        self.clients = Gauge("livetables_clients", "WebSocket clients that have logged in", registry=registry)
        self.subscriptions = Gauge("livetables_subscriptions", "Subscriptions of all clients", registry=registry)
        self.viewports = Gauge("livetables_viewports", "Distinct viewports", registry=registry)
        self.evaluations = Counter("livetables_viewport_evaluations", "Viewports evaluated", registry=registry)
        self.evaluation_seconds = Histogram(
            "livetables_viewport_seconds", "Time to evaluate a viewport", buckets=SECONDS, registry=registry
        )
        self.frames = Counter("livetables_frames", "Frames sent", registry=registry)
        self.frames_skipped = Counter(
            "livetables_frames_skipped",
            "States that a slow client never saw, newer ones being there",
            registry=registry,
        )
        self.logins_failed = Counter("livetables_logins_failed", "Wrong keys, by door", ["door"], registry=registry)
        self.logins_refused = Counter(
            "livetables_logins_refused",
            "Keys not looked at, after too many wrong ones from their address, by door",
            ["door"],
            registry=registry,
        )

    def login_failed(self, door: str, problem: RequestError) -> None:
        """Somebody was not let in."""
        counter = self.logins_refused if problem.code == "busy" else self.logins_failed
        counter.labels(door).inc()

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)
