"""Periodic maintenance tasks, called chores, which are safe to run at any time.

Each task can be repeated, interrupted, or run by two processes at once. It works in batches and starts no new
batch after ``WORK_SECONDS``, so that it ends within a minute even if the media store is slow; the next run
continues where it stopped. Each task returns a one-line summary.
"""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from human_feedback_site.feedback.errors import MediaStoreError
from human_feedback_site.feedback.media.store import media_store
from human_feedback_site.feedback.models import Comparison, Experiment, Lease, Undo
from human_feedback_site.feedback.models.querysets import lock_comparisons
from human_feedback_site.feedback.services import aggregate, decisions, deletion, limits, webhooks
from human_feedback_site.feedback.services.clip_store import delete_clips, refuse_another_store
from human_feedback_site.feedback.services.experiments import trainer_away

WORK_SECONDS = 20.0
_LEASES_AT_ONCE = 500

_log = logging.getLogger(__name__)


def forget_leases() -> str:
    """Delete leases that expired long ago without an answer.

    This only keeps the table small: expired leases do no harm, because every query checks whether a lease is
    live. An answer that arrives late still needs its lease, and a closed browser can hold an unsent answer
    for a long time. Expired leases are therefore kept while their comparison is open and their experiment is
    unfinished. All other unanswered leases are deleted ``INVITE_MAX_AGE_SECONDS`` after they expire; by then,
    the labeler's session and link have expired too.
    """
    deleted = 0
    until = time.monotonic() + WORK_SECONDS
    while time.monotonic() < until and (batch := _forget_some_leases()):
        deleted += batch
    return f"{deleted} deleted"


@transaction.atomic
def _forget_some_leases() -> int:
    batch = list(_useless_leases().order_by("pk").values_list("pk", "comparison")[:_LEASES_AT_ONCE])
    # Recording an answer takes this lock, so no lease is answered between the query and the deletion.
    lock_comparisons(Comparison.objects.filter(pk__in={comparison for _, comparison in batch}))
    deleted, _ = _useless_leases().filter(pk__in=[lease for lease, _ in batch]).delete()
    return deleted


def _useless_leases() -> QuerySet[Lease]:
    finished = Q(comparison__experiment__state=Experiment.State.FINISHED)
    return Lease.objects.filter(
        ~Q(comparison__status=Comparison.Status.OPEN) | finished,
        ~Exists(Undo.objects.filter(lease=OuterRef("pk"))),
        labels=None,
        expires_at__lt=Now() - timedelta(seconds=settings.INVITE_MAX_AGE_SECONDS),
    )


def expire_media() -> str:
    """Delete the clips of experiments that finished more than ``MEDIA_KEEP_DAYS`` days ago.

    If ``MEDIA_KEEP_DAYS`` is 0, nothing is deleted. The open comparisons are closed first, so that labelers
    never see deleted clips if an experiment is reopened. ``media_deleted_at`` is set when no clips are left;
    if the media store is unreachable or time runs out, the next run continues.
    """
    if not settings.MEDIA_KEEP_DAYS:
        return "kept forever"
    # An earlier version finished these experiments without recording the time.
    unknown = Experiment.objects.filter(state=Experiment.State.FINISHED, finished_at=None)
    unknown.update(finished_at=Now())
    deleted = 0
    until = time.monotonic() + WORK_SECONDS
    for experiment in _with_expired_media().order_by("finished_at"):
        try:
            deleted += _delete_media(experiment, until)
        except MediaStoreError as error:
            _log.warning(
                "Couldn't delete the clips of experiment %s; the next run will try again: %s",
                experiment,
                error,
            )
        if time.monotonic() > until:
            break
    left = _with_expired_media().count()
    return f"{deleted} deleted" + (f", clips of {left} experiment(s) left for the next run" if left else "")


def _with_expired_media() -> QuerySet[Experiment]:
    """Return finished experiments that may have clips old enough to delete.

    An experiment whose clips were already deleted is included again if it has since been reopened and
    finished, because it may have new clips.
    """
    return Experiment.objects.filter(
        Q(media_deleted_at=None) | Q(media_deleted_at__lt=F("finished_at")),
        state=Experiment.State.FINISHED,
        finished_at__lt=Now() - timedelta(days=settings.MEDIA_KEEP_DAYS),
    )


def _delete_media(experiment: Experiment, until: float) -> int:
    # The advice is for media stores that delete old clips on their own.
    refuse_another_store(experiment, "set MEDIA_KEEP_DAYS=0")
    store = media_store()
    still_expired = _with_expired_media().filter(pk=experiment.pk)
    deleted = 0
    _close_comparisons(experiment)
    while time.monotonic() < until:
        keys = store.keys(experiment.name)
        if not keys:
            still_expired.update(media_deleted_at=Now())
            break
        # Check after listing: if a run resumes from now on, the clips it uploads are not in ``keys``.
        if time.monotonic() > until or not still_expired.exists():
            break
        delete_clips(experiment, keys)
        deleted += len(keys)
    return deleted


@transaction.atomic
def _close_comparisons(experiment: Experiment) -> None:
    gold = experiment.comparisons.filter(status=Comparison.Status.GOLD)
    gold.filter(experiment__in=_with_expired_media()).update(status=Comparison.Status.CANCELLED)
    rows = experiment.comparisons.filter(status=Comparison.Status.OPEN)
    lock_comparisons(rows)
    still = rows.filter(experiment__in=_with_expired_media())
    still.filter(n_labels=0).update(status=Comparison.Status.CANCELLED)
    still.update(status=Comparison.Status.ANSWERED)


def forget_stale_runs() -> str:
    """Clear ``waiting_for`` where the trainer is silent; it reports the number when it reconnects."""
    stale = Experiment.objects.filter(trainer_away(), waiting_for__isnull=False)
    return f"{stale.update(waiting_for=None)} found"


def forget_sessions() -> str:
    """Delete expired sessions."""
    deleted, _ = Session.objects.filter(expire_date__lt=timezone.now()).delete()
    return f"{deleted} deleted"


def forget_attempts() -> str:
    """Delete expired rate-limit counters for sign-in attempts and invalid API tokens."""
    return f"{limits.forget_attempts()} deleted"


def weigh_labelers() -> str:
    """Re-estimate labelers' accuracy in experiments that have new decisions; revise decisions."""
    return f"{aggregate.weigh_all(time.monotonic() + WORK_SECONDS)} decisions revised"


def finish_deletions() -> str:
    """Continue experiment deletions that were interrupted or too large for one request."""
    done, left = deletion.finish_deletions(time.monotonic() + WORK_SECONDS)
    return f"{done} finished" + (f", {left} left for the next run" if left else "")


def send_webhooks() -> str:
    """Queue events of training that waits for labels, and send the queued events that are due."""
    webhooks.announce_waiting(timezone.now())
    sent, failed = webhooks.deliver(time.monotonic() + WORK_SECONDS)
    return f"{sent} sent" + (f", {failed} failed" if failed else "")


CHORES: Mapping[str, Callable[[], str]] = {
    "labels of 0.1.0": decisions.complete_labels,
    "stale runs": forget_stale_runs,
    "labelers": weigh_labelers,
    "deletions": finish_deletions,
    "expired leases": forget_leases,
    "expired clips": expire_media,
    "expired sessions": forget_sessions,
    "attempts to sign in": forget_attempts,
    "webhooks": send_webhooks,
}
EVERY_MINUTE = frozenset({forget_stale_runs, weigh_labelers, finish_deletions, send_webhooks})
"""Tasks that run every minute; the others run every hour."""
