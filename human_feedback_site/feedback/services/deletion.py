"""Deletion of an experiment with all its data.

When a deletion is requested, the experiment is hidden at once from pages, labelers and trainers. Then its
clips are deleted, then its rows in batches, and its own row last. So after an interruption, the same command,
the admin or a periodic task can still find the experiment and continue. If the media store has none of the
expected clips, it is probably the wrong store, and nothing is deleted.
"""

import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, ProtectedError, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from human_feedback_site.feedback.errors import MediaStoreError, TrainerAtWorkError
from human_feedback_site.feedback.media.store import FolderMedia, media_store
from human_feedback_site.feedback.models import (
    Arrival,
    Comparison,
    ConsentAnswer,
    Decision,
    Example,
    Experiment,
    Invite,
    Label,
    Lease,
    TrainingPoint,
    Undo,
)
from human_feedback_site.feedback.services.clip_store import clips_named, delete_clips, refuse_another_store

MOST_CLIPS = 20_000
"""Maximum number of clips counted before a deletion; counting more would make the user wait."""
_AT_ONCE = 1000
_STOPPED_SECONDS = 60
"""Seconds without a request after which a finished experiment's trainer is presumed to have stopped.

A running trainer makes a request every few seconds; the time is recorded at most every 30 seconds.
"""

_log = logging.getLogger(__name__)


def contents_of(experiment: Experiment, *, without_clips: bool = False) -> list[str]:
    """Return phrases, such as "3 comparisons", for what deleting the experiment would remove or affect."""
    clips = named = 0
    if not without_clips and _clips_stored(experiment):
        _refuse_another_store(experiment)
        clips = media_store().count(experiment.name, MOST_CLIPS + 1)
        named = clips_named(experiment) if experiment.deletion_asked_at is None else 0
    labels = Label.objects.filter(comparison__experiment=experiment)
    consents = ConsentAnswer.objects.filter(text__experiment=experiment)
    elsewhere = Example.objects.filter(comparison__experiment=experiment).exclude(experiment=experiment)
    many_clips = f"more than {MOST_CLIPS:,}" if clips > MOST_CLIPS else f"{clips:,}"
    phrases = [
        _phrase(experiment.comparisons.count(), "comparison", "comparisons"),
        _phrase(labels.count(), "label", "labels"),
        f"{many_clips} {'clip' if clips == 1 else 'clips'} in storage" if clips else "",
        _phrase(
            max(0, named - clips) if clips <= MOST_CLIPS else 0,
            "clip missing from this storage (not deleted)",
            "clips missing from this storage (not deleted)",
        ),
        _phrase(experiment.invites.count(), "invitation", "invitations"),
        _phrase(
            experiment.arrivals.count(), "participant's ID on a platform", "participants' IDs on a platform"
        ),
        _phrase(consents.count(), "answer to the consent text", "answers to the consent text"),
        _phrase(experiment.points.count(), "point on its learning curves", "points on its learning curves"),
        _phrase(
            elsewhere.count(),
            "example in another experiment that shows its clips",
            "examples in other experiments that show its clips",
        ),
    ]
    return [phrase for phrase in phrases if phrase]


def _phrase(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}" if count else ""


def _clips_stored(experiment: Experiment) -> bool:
    store = media_store()
    there = not isinstance(store, FolderMedia) or store.root.exists()
    return there or clips_named(experiment) > 0


def _refuse_another_store(experiment: Experiment) -> None:
    refuse_another_store(experiment, f"run manage.py delete_experiment {experiment} --without-clips")


def state_of(experiment: Experiment) -> str:
    """Return a sentence that says what a failed deletion has already done to the experiment."""
    asked = Experiment.everything.filter(pk=experiment.pk).exclude(deletion_asked_at=None)
    if asked.exists():
        return f"{experiment} is hidden; its deletion continues automatically every minute."
    return "Nothing was deleted."


def refuse_while_training(experiment: Experiment) -> None:
    """Raise :class:`TrainerAtWorkError` if the experiment's trainer may still be running."""
    finished = experiment.state == Experiment.State.FINISHED
    patience = timedelta(seconds=_STOPPED_SECONDS if finished else settings.TRAINER_AWAY_SECONDS)
    seen = experiment.trainer_seen_at
    if experiment.trainer_left_at is not None or experiment.deletion_asked_at is not None:
        return
    if seen is None or timezone.now() - seen >= patience:
        return
    first = "wait" if finished else "stop the trainer or finish the experiment, then wait"
    raise TrainerAtWorkError(
        f"The trainer of {experiment.name} was last active at {seen:%H:%M:%S} UTC and may "
        f"still be running: {first}. A finished experiment can be deleted {_STOPPED_SECONDS} s after its "
        f"trainer's last activity, an unfinished one after {settings.TRAINER_AWAY_SECONDS // 60} min."
    )


def ask_for_deletion(experiment: Experiment, *, without_clips: bool = False) -> None:
    """Mark an experiment for deletion, which hides it; :func:`go_on` then deletes its data."""
    if not without_clips and _clips_stored(experiment):
        media_store().keys(experiment.name)
        _refuse_another_store(experiment)
    with transaction.atomic():
        locked = Experiment.everything.select_for_update(no_key=True).get(pk=experiment.pk)
        refuse_while_training(locked)
        if locked.deletion_asked_at is None:
            _hide(locked)
        if without_clips:
            _note_clips_done(locked)


def _hide(experiment: Experiment) -> None:
    Experiment.objects.filter(pk=experiment.pk).update(
        deletion_asked_at=Now(),
        state=Experiment.State.FINISHED,
        finished_at=Coalesce("finished_at", Now()),
        waiting_for=None,
    )
    Invite.objects.filter(experiment=experiment, revoked_at=None).update(revoked_at=Now())
    Comparison.objects.filter(experiment=experiment).update(status=Comparison.Status.CANCELLED)


def go_on(experiment: Experiment, until: float = float("inf")) -> bool:
    """Delete the remaining data of a marked experiment, until ``until``; return True if it is all gone."""
    if not _clips_are_done(experiment):
        if not _delete_clips(experiment, until):
            return False
        _note_clips_done(experiment)
    try:
        for rows in _rows_of(experiment):
            while _delete_some(rows):
                if time.monotonic() > until:
                    return False
    except ProtectedError:  # a late answer was recorded after the labels had been deleted
        return False
    Experiment.everything.filter(pk=experiment.pk).delete()
    _log.info("Deleted the experiment %s.", experiment.name)
    return True


def _clips_are_done(experiment: Experiment) -> bool:
    """Return True if the clips were deleted, or deliberately kept, after the deletion request."""
    return Experiment.everything.filter(
        pk=experiment.pk, media_deleted_at__gte=F("deletion_asked_at")
    ).exists()


def _note_clips_done(experiment: Experiment) -> None:
    Experiment.everything.filter(pk=experiment.pk).update(media_deleted_at=F("deletion_asked_at"))


def _delete_clips(experiment: Experiment, until: float) -> bool:
    if not _clips_stored(experiment):
        return True
    _refuse_another_store(experiment)  # the store may have changed since the request
    store = media_store()
    while keys := store.keys(experiment.name):
        if time.monotonic() > until:
            return False
        delete_clips(experiment, keys)
    return True


def _rows_of(experiment: Experiment) -> Iterator["QuerySet[Any]"]:
    """Yield querysets of the large tables, each before those that it refers to; the others cascade."""
    yield Undo.objects.filter(label__comparison__experiment=experiment)
    yield Label.objects.filter(comparison__experiment=experiment)
    yield Lease.objects.filter(comparison__experiment=experiment)
    yield Decision.objects.filter(experiment=experiment)
    yield TrainingPoint.objects.filter(experiment=experiment)
    yield Arrival.objects.filter(experiment=experiment)
    yield Example.objects.filter(Q(experiment=experiment) | Q(comparison__experiment=experiment))
    yield Comparison.objects.filter(experiment=experiment)


def _delete_some(rows: "QuerySet[Any]") -> bool:
    batch = list(rows.order_by("pk").values_list("pk", flat=True)[:_AT_ONCE])
    if batch:
        rows.model._default_manager.filter(pk__in=batch).delete()
    return bool(batch)


def finish_deletions(until: float) -> tuple[int, int]:
    """Continue all unfinished deletions; return how many finished and how many are left."""
    done = left = 0
    for experiment in Experiment.everything.exclude(deletion_asked_at=None).order_by("deletion_asked_at"):
        try:
            gone = time.monotonic() < until and go_on(experiment, until)
        except MediaStoreError as error:
            _log.warning("Couldn't delete experiment %s; the next run will try again: %s", experiment, error)
            gone = False
        done, left = done + gone, left + (not gone)
    return done, left
