"""Celery app that runs the site's periodic maintenance tasks ("chores") on a schedule.

Start it with ``celery --app human_feedback_site.celery worker --beat --concurrency 1``. The worker uses its
own queue. Web processes don't import this module and don't need Redis. Without Celery, run
``python manage.py chores`` from cron.
"""

import logging
import os
import threading
import time
from typing import Any

from celery import Celery, bootsteps
from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from celery.platforms import EX_FAILURE
from celery.schedules import crontab
from celery.signals import beat_init, celeryd_init, import_modules, setup_logging
from celery.worker import state
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from human_feedback_site.environment import read_redis_url

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")

TIME_LIMIT = 60  # maximum seconds per chore; chores work in batches to stay below it
_VISIBILITY_TIMEOUT = 120  # seconds until an unfinished chore of a lost worker is delivered again
_GRACE = 1  # seconds for the worker to receive a signal that has already stopped the beat
# Times of the chores; those without run every minute.
_SCHEDULE: dict[str, dict[str, str]] = {
    **{name: {} for name in ("stale_runs", "labelers", "deletions", "webhooks")},
    "leases": {"minute": "7"},
    "media": {"minute": "17"},
    "sessions": {"minute": "27", "hour": "3"},
    "attempts": {"minute": "37"},
    "labels": {"minute": "47"},
}

_log = logging.getLogger(__name__)


@import_modules.connect  # runs before Celery's own receiver, which would fail with a traceback
def _check_settings(**_: Any) -> None:
    try:
        settings.LOGGING  # noqa: B018 (reading any setting loads all of them)
    except ImproperlyConfigured as error:
        raise SystemExit(f"Can't start the site's maintenance tasks: {error}") from None


app = Celery("human_feedback_site", include=["human_feedback_site.feedback.tasks"])
app.conf.update(
    broker_url=os.environ.get("REDIS_URL", "").strip() or None,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # Without timeouts, a worker would wait forever if Redis disappeared without closing the connection.
    broker_transport_options={
        "visibility_timeout": _VISIBILITY_TIMEOUT,
        "socket_connect_timeout": 5.0,
        "socket_timeout": 10.0,
    },
    accept_content=["json"],
    task_default_queue="chores",
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_time_limit=TIME_LIMIT,
    worker_prefetch_multiplier=1,
    # Forking is safe because the site never loads OpenGL or torch, whose threads don't survive a fork.
    worker_pool="prefork",
    worker_disable_prefetch=True,
    worker_cancel_long_running_tasks_on_connection_loss=True,  # the canceled chores are delivered again
    beat_scheduler=f"{__name__}:ForgetfulScheduler",
    # A queued chore expires when the next one is due, so that chores don't accumulate while no worker runs.
    # The schedule uses clock times because restarts would delay fixed intervals.
    beat_schedule={
        name: {
            "task": f"chores.{name}",
            "schedule": crontab(**when),
            "options": {"expires": 3600 if when else 60},
        }
        for name, when in _SCHEDULE.items()
    },
)


class ForgetfulScheduler(Scheduler):
    """Celery beat scheduler that doesn't save its schedule to disk.

    All periodic tasks use crontab schedules, so their last execution times aren't needed. Celery's default
    scheduler would save these times to a pickle file.
    """

    _redis_is_away = False

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Queue a periodic task; if Redis can't be reached, log one line per outage instead of tracebacks."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            if not self._redis_is_away:
                _log.warning("Can't queue chores because Redis isn't responding: %s", error)
            self._redis_is_away = True
        else:
            self._redis_is_away = False


class EndWithBeat(bootsteps.StartStopStep):
    """Celery bootstep that shuts down the worker if its embedded beat scheduler dies.

    Without the scheduler, the worker would look healthy but never receive another periodic task. The service
    manager should restart the worker, which also restarts the scheduler.
    """

    requires = ("celery.worker.components:Beat",)

    def include_if(self, worker: Any) -> bool:
        """Return True if this worker runs an embedded beat scheduler."""
        return worker.beat is not None

    def start(self, worker: Any) -> None:
        """Start a thread that watches the beat scheduler."""
        threading.Thread(target=self._watch, args=(worker,), daemon=True).start()

    def _watch(self, worker: Any) -> None:
        worker.beat.join()
        time.sleep(_GRACE)
        stopping = (state.should_stop, state.should_terminate) != (None, None)
        if worker.blueprint.state == bootsteps.RUN and not stopping:  # type: ignore[attr-defined]
            _log.error(
                "The beat scheduler, which queues the chores, has died; this worker is exiting so that "
                "both are restarted."
            )
            state.should_stop = EX_FAILURE  # type: ignore[assignment]


app.steps["worker"].add(EndWithBeat)


@celeryd_init.connect
@beat_init.connect
def _check_redis(**_: Any) -> None:
    """Exit with a one-line message if ``REDIS_URL`` is missing or invalid."""
    try:
        read_redis_url()
    except ImproperlyConfigured as error:
        raise SystemExit(f"Can't start the site's maintenance tasks: {error}") from None


@setup_logging.connect
def _configure_logging(**_: Any) -> None:
    from django.utils.log import configure_logging  # noqa: PLC0415

    configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
