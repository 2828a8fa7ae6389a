"""What has to be done from time to time, and can be done at any time.

Each chore may be done again, may be cut off, and may be done by two processes at once. It works in batches
and begins no more of them after ``WORK_SECONDS``: with one last slow answer of the media store it takes less
than a minute, and what is left is for the next time. Each returns a line that says what it did.
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
from human_feedback_site.feedback.services import aggregate, deletion, limits, settling
from human_feedback_site.feedback.services.clip_store import delete_clips, refuse_another_store
from human_feedback_site.feedback.services.experiments import trainer_away

WORK_SECONDS = 20.0
_LEASES_AT_ONCE = 500

_log = logging.getLogger(__name__)


def forget_leases() -> str:
    """Delete leases that expired long ago and were never answered.

    Whether a lease is live is judged whenever it matters, so this only keeps the table small. A late answer
    needs its lease, and may wait in a browser for as long as that stays closed. So a lease is kept while an
    answer to it is wanted: while its comparison is open and its experiment not finished. Any other is kept
    for ``INVITE_MAX_AGE_SECONDS`` after it expired, for an answer that comes too late to be of use; by then
    the labeler's session has ended, and so has the invitation that began it.
    """
    deleted = 0
    until = time.monotonic() + WORK_SECONDS
    while time.monotonic() < until and (batch := _forget_some_leases()):
        deleted += batch
    return f"{deleted} deleted"


@transaction.atomic
def _forget_some_leases() -> int:
    batch = list(_useless_leases().order_by("pk").values_list("pk", "comparison")[:_LEASES_AT_ONCE])
    # Whoever records an answer holds this lock: none arrives for a lease between the look and the deletion.
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
    """Delete the clips of experiments that finished more than ``MEDIA_KEEP_DAYS`` ago (0: never).

    Comparisons that are open by then are closed first: an experiment that goes on later must not show what is
    gone. The experiment's ``media_deleted_at`` is set when nothing is left, so where the store is away, or
    there is more than one time can do, the next time goes on.
    """
    if not settings.MEDIA_KEEP_DAYS:
        return "kept for ever"
    # Finished by a process of the version before, which did not note the time.
    unknown = Experiment.objects.filter(state=Experiment.State.FINISHED, finished_at=None)
    unknown.update(finished_at=Now())
    deleted = 0
    until = time.monotonic() + WORK_SECONDS
    for experiment in _with_expired_media().order_by("finished_at"):
        try:
            deleted += _delete_media(experiment, until)
        except MediaStoreError as error:
            _log.warning("The clips of %s are not deleted yet: %s", experiment, error)
        if time.monotonic() > until:
            break
    left = _with_expired_media().count()
    return f"{deleted} deleted" + (f", those of {left} experiment(s) left for the next time" if left else "")


def _with_expired_media() -> QuerySet[Experiment]:
    """Experiments whose clips have had their time; what was deleted before they went on does not count."""
    return Experiment.objects.filter(
        Q(media_deleted_at=None) | Q(media_deleted_at__lt=F("finished_at")),
        state=Experiment.State.FINISHED,
        finished_at__lt=Now() - timedelta(days=settings.MEDIA_KEEP_DAYS),
    )


def _delete_media(experiment: Experiment, until: float) -> int:
    """Delete clips until none is left, the time is up or the experiment goes on; return how many."""
    refuse_another_store(experiment, "set MEDIA_KEEP_DAYS=0")  # a store that deletes by itself needs no chore
    store = media_store()
    still_expired = _with_expired_media().filter(pk=experiment.pk)
    deleted = 0
    _close_comparisons(experiment)
    while time.monotonic() < until:
        keys = store.keys(experiment.name)
        if not keys:
            still_expired.update(media_deleted_at=Now())
            break
        # After the listing: what a run uploads that goes on from here has no place in it.
        if time.monotonic() > until or not still_expired.exists():
            break
        delete_clips(experiment, keys)
        deleted += len(keys)
    return deleted


@transaction.atomic
def _close_comparisons(experiment: Experiment) -> None:
    """Cancel what is open and has no label, and what is gold; where there are labels, they have to do."""
    gold = experiment.comparisons.filter(status=Comparison.Status.GOLD)
    gold.filter(experiment__in=_with_expired_media()).update(status=Comparison.Status.CANCELLED)
    rows = experiment.comparisons.filter(status=Comparison.Status.OPEN)
    lock_comparisons(rows)
    still = rows.filter(experiment__in=_with_expired_media())
    still.filter(n_labels=0).update(status=Comparison.Status.CANCELLED)
    still.update(status=Comparison.Status.ANSWERED)


def forget_stale_runs() -> str:
    """Let experiments wait for nobody whose trainer was not heard from for ``TRAINER_AWAY_SECONDS``.

    Labeling goes on; the trainer, once it is back, says again what it waits for.
    """
    stale = Experiment.objects.filter(trainer_away(), waiting_for__isnull=False)
    return f"{stale.update(waiting_for=None)} found"


def forget_sessions() -> str:
    """Delete the sessions of those who were signed in long ago."""
    deleted, _ = Session.objects.filter(expire_date__lt=timezone.now()).delete()
    return f"{deleted} deleted"


def forget_attempts() -> str:
    """Delete counts of attempts to sign in that ended."""
    return f"{limits.forget_attempts()} deleted"


def weigh_labelers() -> str:
    """Estimate again what labelers are worth, where there are new labels, and revise what that changes."""
    return f"{aggregate.weigh_all(time.monotonic() + WORK_SECONDS)} decisions revised"


def settle_labels() -> str:
    """Let labels that wait count where a place became free, as by a lease that expired."""
    until = time.monotonic() + WORK_SECONDS
    return f"{sum(settling.settle(each, until) for each in settling.experiments_to_settle())} counted"


def finish_deletions() -> str:
    """Go on with deletions of experiments that were interrupted, or were too much for one request."""
    done, left = deletion.finish_deletions(time.monotonic() + WORK_SECONDS)
    return f"{done} finished" + (f", {left} left for the next time" if left else "")


CHORES: Mapping[str, Callable[[], str]] = {
    "stale runs": forget_stale_runs,
    "waiting labels": settle_labels,
    "labelers": weigh_labelers,
    "deletions": finish_deletions,
    "expired leases": forget_leases,
    "expired clips": expire_media,
    "expired sessions": forget_sessions,
    "attempts to sign in": forget_attempts,
}
EVERY_MINUTE = frozenset({forget_stale_runs, settle_labels, weigh_labelers, finish_deletions})
"""The others are done every hour."""
