"""Metrics of a render worker's processes, and the HTTP server for them. Needs prometheus_client."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from billiard.process import current_process
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server, values
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from redis import Redis, RedisError

_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)  # seconds
_REDIS_SECONDS = 2.0


class Exporter:
    """Metrics that a worker's main process and its pool processes share through files.

    Attributes:
        seconds: histogram of the seconds that rendering a clip took, without the upload.
    """

    def __init__(self, failure_kinds: Sequence[str]) -> None:
        """Create the metrics; the environment variable ``PROMETHEUS_MULTIPROC_DIR`` names the files' folder.

        Failures of each kind are counted from 0, so that the first one is an increase.
        """
        # Even if something else has imported prometheus_client without the variable.
        # Files by place in the pool: by process ID, each killed process would leave its files behind.
        values.ValueClass = values.MultiProcessValue(_place_in_pool)  # type: ignore[no-untyped-call]
        self.seconds = Histogram(
            "rl_teacher_render_seconds",
            "Time to replay, render and encode a clip.",
            buckets=_BUCKETS,
            registry=None,
        )
        self.failures = Counter("rl_teacher_render_failures", "Failed render tasks.", ["kind"], registry=None)
        for kind in failure_kinds:
            self.failures.labels(kind)

    def serve(self, host: str, port: int, redis_url: str, queue: str) -> None:
        """Serve the sums over all processes, and the length of a queue in Redis, from a background thread.

        Raises:
            OSError: the host is not this machine's, or the port is in use.
        """
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        registry.register(_QueueLength(redis_url, queue))
        start_http_server(port, host, registry)


def _place_in_pool() -> str:
    """Return the number of this pool process, which its replacement takes over, or ``main``."""
    return str(getattr(current_process(), "index", "main"))


class _QueueLength(Collector):
    """Collector that asks Redis for the length of a queue."""

    def __init__(self, redis_url: str, queue: str) -> None:
        timeouts = {"socket_timeout": _REDIS_SECONDS, "socket_connect_timeout": _REDIS_SECONDS}
        self._redis = Redis.from_url(redis_url, **timeouts)
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        """Yield the length; while Redis is away, yield the metric without a value."""
        length = GaugeMetricFamily("rl_teacher_render_queue_length", "Clips that no render worker has taken.")
        with suppress(RedisError):
            length.add_metric([], self._redis.llen(self._queue))
        yield length
