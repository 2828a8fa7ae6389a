"""Celery request that counts the failures that only a worker's main process sees."""

from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request

from teacher.clips.metrics import LOST, METRICS, OTHER, TIMEOUT


class CountedRequest(Request):
    """Request whose task may be killed after its time limit, lose its process, or raise an exception."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Count a task that was killed after its time limit."""
        if not soft:
            METRICS.note_failure(TIMEOUT)
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Count a task whose process died, or that raised an exception other than a ``TeacherError``."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, (WorkerLostError, SystemExit, KeyboardInterrupt)):
            METRICS.note_failure(LOST)
        elif not isinstance(error, (Terminated, TimeLimitExceeded)):
            METRICS.note_failure(OTHER)
        super().on_failure(exc_info, send_failed_event, return_ok)
