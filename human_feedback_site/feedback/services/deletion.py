"""The deletion of an experiment with all that belongs to it.

From the moment when it is asked for, the experiment is hidden: no page, labeler or trainer finds it. Then its
clips are deleted, then its rows in batches, and its own row last, so that whoever goes on after an
interruption (the same command, the admin, or a chore) finds what is left by its name. Where the media store
holds none of the clips that there should be, they are in another one, and nothing is deleted.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
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
"""Clips are counted up to here before a deletion; more would keep somebody waiting who wants to read it."""
_AT_ONCE = 1000
_STOPPED_SECONDS = 60
"""So long after the last word from the trainer of a finished experiment it is certain that it has stopped:
until then it says something every few seconds, and that is noted twice a minute."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contents:
    """How many of what goes with an experiment.

    Attributes:
        clips: in the media store, no more than ``MOST_CLIPS`` of them.
        lacking: clips that are in another store, if they are anywhere.
        arrivals: people whose number on a platform is kept.
        elsewhere: examples of other experiments that show its clips.
    """

    comparisons: int
    labels: int
    clips: int
    lacking: int
    invitations: int
    arrivals: int
    consents: int
    points: int
    elsewhere: int

    def __str__(self) -> str:
        return ", ".join(self.lines()) or "nothing in it"

    def lines(self) -> list[str]:
        """Return what goes, in words, without what there is none of."""
        counts = {field.name: getattr(self, field.name) for field in fields(self)}
        return [_words(name, count) for name, count in counts.items() if count]


_NAMES = {
    "comparisons": ("comparison", "comparisons"),
    "labels": ("label", "labels"),
    "clips": ("clip in storage", "clips in storage"),
    "lacking": (
        "clip that is not in this storage, and stays where it is",
        "clips that are not in this storage, and stay where they are",
    ),
    "invitations": ("invitation", "invitations"),
    "arrivals": ("participant's number on a platform", "participants' numbers on a platform"),
    "consents": ("answer to the consent text", "answers to the consent text"),
    "points": ("point of its learning curves", "points of its learning curves"),
    "elsewhere": (
        "example of another experiment that shows its clips",
        "examples of other experiments that show its clips",
    ),
}


def _words(name: str, count: int) -> str:
    number = f"more than {MOST_CLIPS:,}" if name == "clips" and count > MOST_CLIPS else f"{count:,}"
    return f"{number} {_NAMES[name][count != 1]}"


def contents_of(experiment: Experiment, *, without_clips: bool = False) -> Contents:
    """Count what goes with an experiment; raises :class:`MediaStoreError`.

    Raises :class:`ClipsElsewhereError` where none of its clips is found, unless it goes ``without_clips``.
    """
    clips = named = 0
    if not without_clips and _clips_stored(experiment):
        _refuse_another_store(experiment)
        clips = media_store().count(experiment.name, MOST_CLIPS + 1)
        named = clips_named(experiment) if experiment.deletion_asked_at is None else 0
    labels = Label.objects.filter(comparison__experiment=experiment)
    elsewhere = Example.objects.filter(comparison__experiment=experiment).exclude(experiment=experiment)
    return Contents(
        comparisons=experiment.comparisons.count(),
        labels=labels.count(),
        clips=clips,
        lacking=max(0, named - clips) if clips <= MOST_CLIPS else 0,
        invitations=experiment.invites.count(),
        arrivals=experiment.arrivals.count(),
        consents=ConsentAnswer.objects.filter(text__experiment=experiment).count(),
        points=experiment.points.count(),
        elsewhere=elsewhere.count(),
    )


def _clips_stored(experiment: Experiment) -> bool:
    """Say whether there can be clips: a media folder is made with the first one that there is."""
    store = media_store()
    there = not isinstance(store, FolderMedia) or store.root.exists()
    return there or clips_named(experiment) > 0


def _refuse_another_store(experiment: Experiment) -> None:
    refuse_another_store(experiment, f"run manage.py delete_experiment {experiment} --without-clips")


def state_of(experiment: Experiment) -> str:
    """Say what a deletion that failed has left."""
    asked = Experiment.everything.filter(pk=experiment.pk).exclude(deletion_asked_at=None)
    if asked.exists():
        return f"{experiment} is hidden, and its deletion goes on by itself every minute."
    return "Nothing was deleted."


def refuse_while_training(experiment: Experiment) -> None:
    """Raise :class:`TrainerAtWorkError` where the trainer was heard from recently."""
    finished = experiment.state == Experiment.State.FINISHED
    patience = timedelta(seconds=_STOPPED_SECONDS if finished else settings.TRAINER_AWAY_SECONDS)
    seen = experiment.trainer_seen_at
    if experiment.deletion_asked_at is not None or seen is None or timezone.now() - seen >= patience:
        return
    first = "wait" if finished else "stop it or finish the experiment, and wait"
    raise TrainerAtWorkError(
        f"The trainer of {experiment.name} was heard from at {seen:%H:%M:%S} UTC: {first}. An experiment can "
        f"be deleted {_STOPPED_SECONDS} s after its trainer's last word if it is finished, "
        f"{settings.TRAINER_AWAY_SECONDS // 60} min after it otherwise."
    )


def ask_for_deletion(experiment: Experiment, *, without_clips: bool = False) -> None:
    """Hide an experiment for good; what is left to do then may be done at any time, by anybody.

    ``without_clips`` leaves what is in storage where it is. Raises :class:`TrainerAtWorkError`, and
    :class:`MediaStoreError` where its clips cannot even be listed, or are elsewhere.
    """
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
    """Delete what is left of an experiment whose deletion was asked for; say whether it is all gone.

    Nothing more is begun when :func:`time.monotonic` passes ``until``. Raises :class:`MediaStoreError`.
    """
    if not _clips_are_done(experiment):
        if not _delete_clips(experiment, until):
            return False
        _note_clips_done(experiment)
    try:
        for rows in _rows_of(experiment):
            while _delete_some(rows):
                if time.monotonic() > until:
                    return False
    except ProtectedError:  # an answer that was on its way came after its kind had gone
        return False
    Experiment.everything.filter(pk=experiment.pk).delete()
    _log.info("The experiment %s is deleted.", experiment.name)
    return True


def _clips_are_done(experiment: Experiment) -> bool:
    """Say whether its clips were deleted, or left, since the deletion was asked for."""
    return Experiment.everything.filter(
        pk=experiment.pk, media_deleted_at__gte=F("deletion_asked_at")
    ).exists()


def _note_clips_done(experiment: Experiment) -> None:
    Experiment.everything.filter(pk=experiment.pk).update(media_deleted_at=F("deletion_asked_at"))


def _delete_clips(experiment: Experiment, until: float) -> bool:
    """Delete all clips that are in the store; say whether there was time for that."""
    if not _clips_stored(experiment):
        return True
    _refuse_another_store(experiment)  # it may be another one than when the deletion was asked for
    store = media_store()
    while keys := store.keys(experiment.name):
        if time.monotonic() > until:
            return False
        delete_clips(experiment, keys)
    return True


def _rows_of(experiment: Experiment) -> Iterator["QuerySet[Any]"]:
    """Yield what there may be very much of, in an order in which nothing refers to what went before.

    All else goes with the experiment's own row.
    """
    yield Undo.objects.filter(label__comparison__experiment=experiment)
    yield Label.objects.filter(comparison__experiment=experiment)
    yield Lease.objects.filter(comparison__experiment=experiment)
    yield Decision.objects.filter(experiment=experiment)
    yield TrainingPoint.objects.filter(experiment=experiment)
    yield Arrival.objects.filter(experiment=experiment)
    yield Example.objects.filter(Q(experiment=experiment) | Q(comparison__experiment=experiment))
    yield Comparison.objects.filter(experiment=experiment)


def _delete_some(rows: "QuerySet[Any]") -> bool:
    """Delete a batch; say whether there was one."""
    batch = list(rows.order_by("pk").values_list("pk", flat=True)[:_AT_ONCE])
    if batch:
        rows.model._default_manager.filter(pk__in=batch).delete()
    return bool(batch)


def finish_deletions(until: float) -> tuple[int, int]:
    """Go on with every deletion that was interrupted; return how many are done, and how many are not."""
    done = left = 0
    for experiment in Experiment.everything.exclude(deletion_asked_at=None).order_by("deletion_asked_at"):
        try:
            gone = time.monotonic() < until and go_on(experiment, until)
        except MediaStoreError as error:
            _log.warning("%s is not deleted yet: %s", experiment, error)
            gone = False
        done, left = done + gone, left + (not gone)
    return done, left
