"""Prometheus metrics of render workers, off unless ``TEACHER_METRICS_BIND`` says where to serve them.

The worker's main process serves the metrics over HTTP. The pool processes, which render the clips, write
their figures to files in a temporary folder, and the main process adds them up.
"""

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from billiard.process import current_process
from redis import Redis, RedisError

from teacher.errors import ConfigError, DataError, RenderError, ReplayMismatchError, StorageError, one_line
from teacher.extras import require_extra

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# ruff: noqa: PLC0415 (prometheus_client is optional)

BIND_VARIABLE = "TEACHER_METRICS_BIND"
STORAGE, TIMEOUT, LOST, OTHER = "storage", "timeout", "lost", "other"
_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (RenderError, "render"),
    (ReplayMismatchError, "replay"),
    (StorageError, STORAGE),
    (DataError, "request"),
)
FAILURE_KINDS = (*(kind for _, kind in _KINDS), TIMEOUT, LOST, OTHER)
"""Kinds of failures: the clip can't be rendered, the replay differs from the recording, the upload failed, or
the request is refused; the task was killed after its time limit; its pool process died; any other error."""
_FILES_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client
_BUCKETS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)  # seconds
_REDIS_SECONDS = 2.0


def read_bind() -> tuple[str, int] | None:
    """Return the host and port in ``TEACHER_METRICS_BIND``, or None if the variable is not set.

    The value is ``PORT``, which means port ``PORT`` of the loopback interface, or ``HOST:PORT``.
    """
    value = os.environ.get(BIND_VARIABLE, "").strip()
    if not value:
        return None
    host, colon, port = value.rpartition(":")
    if bool(host) != bool(colon) or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{BIND_VARIABLE} must be a port or HOST:PORT, such as 9101 or 10.0.0.5:9101, not {value!r}"
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def failure_kind(error: BaseException) -> str:
    """Return the kind of failure, one of :data:`FAILURE_KINDS`, that an error of a render task means."""
    return next((kind for error_type, kind in _KINDS if isinstance(error, error_type)), OTHER)


class Exporter:
    """Metrics that a worker's main process and its pool processes share through files.

    The environment variable ``PROMETHEUS_MULTIPROC_DIR`` names the files' folder. Failures of each kind are
    counted from 0, so that the first one is an increase.

    Attributes:
        seconds: histogram of the seconds that rendering a clip took, without the upload.
    """

    def __init__(self) -> None:
        from prometheus_client import Counter, Histogram, values

        # Even if something else has imported prometheus_client without the variable.
        # Files by place in the pool, which a process's replacement takes over: by process ID, each killed
        # process would leave its files behind.
        values.ValueClass = values.MultiProcessValue(  # type: ignore[no-untyped-call]
            lambda: str(getattr(current_process(), "index", "main"))
        )
        self.seconds = Histogram(
            "rl_teacher_render_seconds",
            "Time to replay, render and encode a clip.",
            buckets=_BUCKETS,
            registry=None,
        )
        self.failures = Counter("rl_teacher_render_failures", "Failed render tasks.", ["kind"], registry=None)
        for kind in FAILURE_KINDS:
            self.failures.labels(kind)


class _QueueLength:
    def __init__(self, redis_url: str, queue: str) -> None:
        timeouts = {"socket_timeout": _REDIS_SECONDS, "socket_connect_timeout": _REDIS_SECONDS}
        self._redis = Redis.from_url(redis_url, **timeouts)
        self._queue = queue

    def collect(self) -> "Iterator[Metric]":
        """Yield the length; while Redis is away, yield the metric without a value."""
        from prometheus_client.core import GaugeMetricFamily

        length = GaugeMetricFamily("rl_teacher_render_queue_length", "Clips that no render worker has taken.")
        with contextlib.suppress(RedisError):
            length.add_metric([], self._redis.llen(self._queue))
        yield length


class RenderMetrics:
    """Counts clips and failures of a render worker. The methods do nothing before :meth:`serve` is called."""

    def __init__(self) -> None:
        self._exporter: Exporter | None = None

    def serve(self, redis_url: str, queue: str) -> None:
        """Start to serve the sums over all processes from a thread if ``TEACHER_METRICS_BIND`` is set.

        The worker's main process must call this before it forks the pool processes.

        Args:
            queue: name of the queue, whose length is one of the metrics.
        """
        bind = read_bind()
        if bind is None:
            return
        client = require_extra("prometheus_client", BIND_VARIABLE, "metrics")
        multiprocess = require_extra("prometheus_client.multiprocess", BIND_VARIABLE, "metrics")
        folder = tempfile.mkdtemp(prefix="rl-teacher-metrics-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[_FILES_VARIABLE] = folder
        exporter, (host, port), registry = Exporter(), bind, client.CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        registry.register(_QueueLength(redis_url, queue))
        try:
            client.start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(
                f"cannot serve metrics at {BIND_VARIABLE}={os.environ[BIND_VARIABLE]} ({one_line(error)}); "
                "use one of this machine's addresses and a port that is free"
            ) from error
        self._exporter = exporter

    def note_clip(self, seconds: float) -> None:
        """Record that rendering a clip took this many seconds."""
        if self._exporter is not None:
            self._exporter.seconds.observe(seconds)

    def note_failure(self, kind: str) -> None:
        """Count a failure of this kind, one of :data:`FAILURE_KINDS`."""
        if self._exporter is not None:
            self._exporter.failures.labels(kind).inc()


METRICS = RenderMetrics()
"""This process's metrics."""
