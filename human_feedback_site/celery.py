"""The site's chores by the clock: ``celery --app human_feedback_site.celery worker --beat --concurrency 1``.

This app does chores and nothing else, on a queue of its own; the web process never imports it and needs no
Redis. ``python manage.py chores`` does the same without Celery.
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

TIME_LIMIT = 60  # seconds; chores work in batches to keep it
_VISIBILITY_TIMEOUT = 120  # seconds until a chore whose worker vanished is given to another
_GRACE = 1  # second between a signal that the beat gets and the worker's own
_MINUTE, _HOUR = 60, 3600

_log = logging.getLogger(__name__)


@import_modules.connect  # before Celery's own receiver, which would end in a traceback
def _check_settings(**_: Any) -> None:
    """Refuse to start with settings that cannot work."""
    try:
        settings.LOGGING  # noqa: B018 (the first that is asked for has all of them read)
    except ImproperlyConfigured as error:
        raise SystemExit(f"site chores: {error}") from None


app = Celery("human_feedback_site", include=["human_feedback_site.feedback.tasks"])
app.conf.update(
    broker_url=os.environ.get("REDIS_URL", "").strip() or None,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # Without a limit a worker waits for ever where Redis is gone and nothing has told the connection so.
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
    # Forked processes will do: the site never loads OpenGL or torch, whose threads and handles would not
    # survive a fork.
    worker_pool="prefork",
    worker_disable_prefetch=True,
    worker_cancel_long_running_tasks_on_connection_loss=True,  # it will be handed out once more
    beat_scheduler=f"{__name__}:ForgetfulScheduler",
    # A chore that could not be handed out before the next one is due is dropped, so that none pile up while
    # Redis is there and the worker is not. By the clock rather than by intervals, which restarts would
    # stretch.
    beat_schedule={
        "stale runs": {
            "task": "chores.stale_runs",
            "schedule": crontab(),
            "options": {"expires": _MINUTE},
        },
        "waiting labels": {
            "task": "chores.waiting_labels",
            "schedule": crontab(),
            "options": {"expires": _MINUTE},
        },
        "labelers": {
            "task": "chores.labelers",
            "schedule": crontab(),
            "options": {"expires": _MINUTE},
        },
        "deletions": {
            "task": "chores.deletions",
            "schedule": crontab(),
            "options": {"expires": _MINUTE},
        },
        "leases": {"task": "chores.leases", "schedule": crontab(minute="7"), "options": {"expires": _HOUR}},
        "media": {"task": "chores.media", "schedule": crontab(minute="17"), "options": {"expires": _HOUR}},
        "attempts": {
            "task": "chores.attempts",
            "schedule": crontab(minute="37"),
            "options": {"expires": _HOUR},
        },
        "sessions": {
            "task": "chores.sessions",
            "schedule": crontab(minute="27", hour="3"),
            "options": {"expires": _HOUR},
        },
    },
)


class ForgetfulScheduler(Scheduler):
    """A schedule by the clock needs no memory; the usual scheduler would keep one as a pickle on disk."""

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Hand out a chore; say in one line, not with a traceback each time, that Redis is away."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            _log.warning("No chores are handed out while Redis is away: %s", error)


class EndWithBeat(bootsteps.StartStopStep):
    """End the worker whose beat has died: it would hand out no chore ever again, and look healthy.

    Whoever keeps the worker running then starts both anew.
    """

    requires = ("celery.worker.components:Beat",)

    def include_if(self, worker: Any) -> bool:
        """Say whether there is a beat."""
        return worker.beat is not None

    def start(self, worker: Any) -> None:
        """Watch the beat, which has been started a moment ago."""
        threading.Thread(target=self._watch, args=(worker,), daemon=True).start()

    def _watch(self, worker: Any) -> None:
        worker.beat.join()
        time.sleep(_GRACE)
        stopping = (state.should_stop, state.should_terminate) != (None, None)
        if worker.blueprint.state == bootsteps.RUN and not stopping:  # type: ignore[attr-defined]
            _log.error("The beat, which hands out the chores, has died; this worker ends too.")
            state.should_stop = EX_FAILURE  # type: ignore[assignment]


app.steps["worker"].add(EndWithBeat)


@celeryd_init.connect
@beat_init.connect
def _check_redis(**_: Any) -> None:
    """Refuse to start where there is no Redis to work with."""
    try:
        read_redis_url()
    except ImproperlyConfigured as error:
        raise SystemExit(f"site chores: {error}") from None


@setup_logging.connect
def _log_as_the_site_does(**_: Any) -> None:
    """Leave the log as Django's settings say; Celery would put its own format in place."""
    from django.utils.log import configure_logging  # noqa: PLC0415

    configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
