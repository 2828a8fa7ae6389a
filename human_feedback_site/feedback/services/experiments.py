"""Changes to experiments: registration by trainers, overlap, pausing and finishing."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.db.models.functions import Coalesce, Mod, Now
from django.db.models.lookups import LessThan
from django.utils import timezone

from human_feedback_site.feedback.errors import ConflictError, NotFoundError, UnreadableClipsError
from human_feedback_site.feedback.kinds import ITEMS
from human_feedback_site.feedback.media.store import MAX_CLIP_BYTES, is_key_of
from human_feedback_site.feedback.models import (
    Comparison,
    Episode,
    Experiment,
    PredictedRewards,
    SequenceCounter,
    TrainingPoint,
)
from human_feedback_site.feedback.models.querysets import answered_comparisons, comparisons_with_clips
from human_feedback_site.feedback.services import aggregate, decisions, webhooks, wording
from human_feedback_site.feedback.services.clip_store import note_clips, unreadable
from human_feedback_site.feedback.tables.reader import is_same_number

_NO_CLIP = f"missing, empty or larger than {MAX_CLIP_BYTES // 2**20} MiB"
_SIGN_OF_LIFE_EVERY = timedelta(seconds=30)
_SPREAD, _SPREAD_OVER = 40_503, 65_536  # multiples of _SPREAD are evenly spread modulo _SPREAD_OVER


@dataclass(frozen=True)
class NewComparison:
    """A new comparison, as described by the trainer."""

    uuid: UUID
    kind: str
    phase: str
    step: int
    priority: int
    items: Sequence[tuple[str, float | None]]  # each clip's key and true return
    gold: str | None = None
    reason: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """Values of :class:`Comparison` fields."""
        clips: dict[str, Any] = {}
        for name, (key, value) in zip(ITEMS, self.items, strict=False):
            clips |= {f"{name}_key": key, f"{name}_return": value}
        return {name: value for name, value in vars(self).items() if name != "items"} | clips

    @property
    def pointers(self) -> Sequence[str]:
        """JSON Pointer to each clip in the trainer's description."""
        return ITEMS[:2] if len(self.items) == 2 else [f"items/{at}" for at in range(len(self.items))]


_STUDY_REPEATS = 0.1  # share of questions that a study of kinds asks twice, unless it is changed on the site
_SET_ON_THE_SITE = ("prompt", "gold_rate")  # a resumed run does not overwrite these


@transaction.atomic
def put_experiment(
    owner: User, name: str, run_id: UUID, values: Mapping[str, Any]
) -> tuple[Experiment, bool]:
    """Create the experiment, or update its fields when its run is resumed.

    ``values`` maps :class:`Experiment` field names to values. An update keeps the gold rate. It replaces the
    state only if it is in ``values``, and the prompt only if the run's own prompt has changed.

    Returns the experiment, and whether it was created. Raises :class:`ConflictError` if the name belongs to
    another run or the experiment is being deleted, and :class:`NotFoundError` if the experiment belongs to a
    different user.
    """
    if Experiment.everything.filter(name=name).exclude(deletion_asked_at=None).exists():
        raise ConflictError(
            f"The experiment {name!r} is being deleted; choose a different name or wait a minute."
        )
    initial = {"repeat_rate": _STUDY_REPEATS} if values.get("compares_kinds") else {}
    experiment, created = Experiment.objects.select_for_update(no_key=True).get_or_create(
        name=name, defaults={**initial, **values, "owner": owner, "run_id": run_id}
    )
    if created:
        SequenceCounter.objects.create(experiment=experiment)
        wording.note_prompt(experiment, author=None)
        _note_end(experiment, was_finished=False)
        return experiment, True
    if experiment.run_id != run_id:
        raise ConflictError(f"The experiment {name!r} belongs to another run; choose a different name.")
    if experiment.owner_id != owner.pk:
        raise NotFoundError(f"You have no experiment named {name!r}.")
    was_finished = experiment.state == Experiment.State.FINISHED
    changes = {field: value for field, value in values.items() if field not in _SET_ON_THE_SITE}
    for field, value in changes.items():
        setattr(experiment, field, value)
    experiment.save(update_fields=list(changes))
    wording.take_prompt_of_run(experiment, values["prompt"])
    set_waiting_for(experiment, None)  # the run has just started or ended
    _note_end(experiment, was_finished=was_finished)
    return experiment, False


def _note_end(experiment: Experiment, *, was_finished: bool) -> None:
    """Set ``finished_at`` if the experiment is finished, else clear it; announce the end if it is new."""
    finished = When(state=Experiment.State.FINISHED, then=Coalesce("finished_at", Now()))
    Experiment.objects.filter(pk=experiment.pk).update(finished_at=Case(finished))
    if experiment.state == Experiment.State.FINISHED and not was_finished:
        webhooks.announce_finished(experiment)


def hear_from_trainer(experiment: Experiment) -> None:
    """Record the time of the trainer's request, but at most once every 30 seconds."""
    seen = experiment.trainer_seen_at
    # abs(): if this machine's clock differs from the database's, write each time rather than never.
    is_due = seen is None or abs(timezone.now() - seen) > _SIGN_OF_LIFE_EVERY
    if is_due or experiment.trainer_left_at is not None:
        Experiment.objects.filter(pk=experiment.pk).update(trainer_seen_at=Now(), trainer_left_at=None)


def note_stopped(experiment: Experiment) -> None:
    """Record that the trainer has saved its run and is about to end; its next request undoes this."""
    set_waiting_for(experiment, None)
    Experiment.objects.filter(pk=experiment.pk).update(trainer_left_at=Now())


def note_feed_cursor(experiment: Experiment, cursor: int) -> None:
    """Record how far the trainer has read the feed, if metrics are on; nothing else uses the cursor."""
    if settings.METRICS_TOKEN is not None and experiment.feed_cursor != cursor:
        Experiment.objects.filter(pk=experiment.pk).update(feed_cursor=cursor)


def trainer_away() -> Q:
    """Return a condition for unfinished experiments whose trainer has stopped or been silent for too long."""
    since = Now() - timedelta(seconds=settings.TRAINER_AWAY_SECONDS)
    silent = Q(trainer_seen_at__lt=since) | Q(trainer_seen_at=None, created_at__lt=since)
    return (silent | Q(trainer_left_at__isnull=False)) & ~Q(state=Experiment.State.FINISHED)


def trainer_away_since() -> Case:
    """Return an SQL expression for the last time an absent trainer was active."""
    return Case(When(trainer_away(), then=Coalesce("trainer_left_at", "trainer_seen_at", "created_at")))


def register_comparisons(experiment: Experiment, comparisons: Sequence[NewComparison]) -> tuple[int, int]:
    """Register comparisons atomically: if any of them is rejected, none is registered.

    Their clips must already be in the media store. Returns how many were new and how many were already
    registered. Raises :class:`UnreadableClipsError` if clips are missing or unusable, and
    :class:`ConflictError` if a UUID is already in use with different content.
    """
    new = _unknown(experiment, comparisons)
    _refuse_unreadable(  # before the transaction, so that no lock is held while waiting for the store
        experiment,
        {
            f"#/comparisons/{index}/{pointer}/key": key
            for index, item in new.items()
            for pointer, (key, _) in zip(item.pointers, item.items, strict=True)
        },
    )
    if len(new) < len(comparisons):
        known = experiment.comparisons.filter(uuid__in=[item.uuid for item in comparisons])
        # These were imported without clips, which may have been uploaded since.
        note_clips(known.filter(clips_missing=True))
    try:
        with transaction.atomic():
            locked = Experiment.objects.select_for_update(no_key=True).get(pk=experiment.pk)  # one at a time
            new = _unknown(experiment, comparisons)
            made = Comparison.objects.bulk_create(
                Comparison(
                    experiment=experiment,
                    wanted=locked.overlap,
                    status=Comparison.Status.GOLD if item.gold else Comparison.Status.OPEN,
                    disputed=_is_disputed(item.reason),
                    **item.values,
                )
                for item in new.values()
            )
            if locked.overlap_share:
                want_labels(locked, Comparison.objects.filter(pk__in=[row.pk for row in made]))
    except IntegrityError:  # another experiment used one of the UUIDs at the same time
        raise ConflictError("A comparison's UUID is already in use; generate a random one.") from None
    return len(new), len(comparisons) - len(new)


def _unknown(experiment: Experiment, comparisons: Sequence[NewComparison]) -> dict[int, NewComparison]:
    """Return the comparisons that are not registered yet, keyed by their index in ``comparisons``."""
    known = Comparison.objects.in_bulk([item.uuid for item in comparisons], field_name="uuid")
    for item in comparisons:
        old = known.get(item.uuid)
        if old is not None and (
            old.experiment_id != experiment.pk
            or any(not _is_same(getattr(old, name), value) for name, value in _described(item).items())
        ):
            raise ConflictError(f"The comparison {item.uuid} is already registered with different content.")
    return {index: item for index, item in enumerate(comparisons) if item.uuid not in known}


def _is_disputed(reason: str) -> bool:
    """Return True if a reason says that fewer than two thirds of the reward models prefer the same answer."""
    votes = [int(count) for count in reason.split(":")[1:]]
    return bool(votes) and 3 * max(votes) < 2 * sum(votes)


def _is_same(known: Any, told: Any) -> bool:
    """Return True if a stored value equals the trainer's, tolerating a spreadsheet's rounding."""
    return is_same_number(known, told) if isinstance(told, float) else bool(known == told)


def _described(item: NewComparison) -> dict[str, Any]:
    """Return the fields that must be the same again; a pair may become gold after it is registered.

    A trainer that was restarted does not know the reason.
    """
    known = {name: value for name, value in item.values.items() if name != "gold" or value is not None}
    return {name: value for name, value in known.items() if name != "reason"}


def _refuse_unreadable(experiment: Experiment, clips: Mapping[str, str]) -> None:
    """Raise :class:`UnreadableClipsError` if clips, by JSON Pointer, are unusable or outside the prefix."""
    foreign = {at: key for at, key in clips.items() if not is_key_of(experiment.name, key)}
    absent = unreadable([key for at, key in clips.items() if at not in foreign])
    missing = {at: key for at, key in clips.items() if key in absent}
    if foreign or missing:
        raise UnreadableClipsError(
            {at: f"{key} is not under {experiment.name}/." for at, key in foreign.items()}
            | {at: f"{key} is {_NO_CLIP}; upload it before registering." for at, key in missing.items()}
        )


def cancel_comparisons(experiment: Experiment, uuids: Sequence[UUID]) -> int:
    """Cancel open, unlabeled comparisons with these UUIDs; return how many were canceled."""
    return _cancel(Comparison.objects.filter(experiment=experiment, uuid__in=uuids))


@transaction.atomic
def _cancel(comparisons: QuerySet[Comparison]) -> int:
    rows = comparisons.filter(status=Comparison.Status.OPEN, n_labels=0)
    list(rows.select_for_update(no_key=True).order_by("id").values_list("pk"))  # blocks new labels
    return rows.update(status=Comparison.Status.CANCELLED)


def store_points(experiment: Experiment, points: Iterable[TrainingPoint]) -> int:
    """Upsert learning curve points by tag and step; return how many were stored."""
    latest = {(point.step, point.tag): point for point in points}
    TrainingPoint.objects.bulk_create(
        latest.values(),
        update_conflicts=True,
        unique_fields=["experiment", "tag", "step"],
        update_fields=["value"],
    )
    return len(latest)


def add_episode(experiment: Experiment, step: int, key: str) -> None:
    """Record a whole-episode video, which must already be in the media store.

    The number of answers that the trainer had at that step is stored with it: rendering takes time, and more
    come in meanwhile. Raises :class:`UnreadableClipsError` if the video is missing or unusable.
    """
    _refuse_unreadable(experiment, {"#/key": key})
    answered = answered_comparisons(experiment).count()
    known = experiment.points.filter(tag="labels/answered", step__lte=step).order_by("step").last()
    values = {"key": key, "answered": answered if known is None else min(answered, int(known.value))}
    Episode.objects.update_or_create(experiment=experiment, step=step, defaults=values)


def note_predictions(
    experiment: Experiment,
    step: int,
    films: Mapping[int, Sequence[float]],
    comparisons: Mapping[UUID, Sequence[Sequence[float]]],
) -> None:
    """Store the rewards that the predictor of environment step ``step`` predicts.

    Other episodes lose theirs, because those of different predictors are not comparable. Unknown episodes and
    comparisons are left out, and so are comparisons with a different number of clips.
    """
    episodes = list(experiment.episodes.all())
    for episode in episodes:
        episode.rewards = films.get(episode.step)
    Episode.objects.bulk_update(episodes, ["rewards"], batch_size=100)
    found = experiment.comparisons.filter(uuid__in=comparisons).only("uuid", "kind")
    PredictedRewards.objects.bulk_create(
        [
            PredictedRewards(comparison=each, step=step, items=comparisons[each.uuid])
            for each in found
            if len(comparisons[each.uuid]) == each.question.size
        ],
        update_conflicts=True,
        unique_fields=["comparison"],
        update_fields=["step", "items"],
    )


def set_waiting_for(experiment: Experiment, waiting_for: int | None) -> None:
    """Set the number of answers that training is waiting for; a wait lasts until it is None."""
    own = Experiment.objects.filter(pk=experiment.pk)
    if waiting_for is None:
        own.update(waiting_for=None, waiting_since=None, waiting_announced_at=None)
    else:
        own.update(waiting_for=waiting_for, waiting_since=Coalesce("waiting_since", Now()))


@transaction.atomic
def set_overlap(experiment: Experiment, overlap: int, more: int = 1, share: float = 0.0) -> None:
    """Set the number of labelers per comparison.

    A fraction ``share`` of the comparisons get ``more`` labelers, and the rest get ``overlap``. Comparisons
    that now have enough labels are closed. Those that now need more are reopened unless their clips are gone.
    """
    rows = experiment.comparisons.exclude(status=Comparison.Status.CANCELLED)
    list(rows.select_for_update(no_key=True).order_by("id").values_list("pk"))  # blocks new labels
    experiment.overlap, experiment.overlap_more, experiment.overlap_share = overlap, more, share
    experiment.save(update_fields=["overlap", "overlap_more", "overlap_share"])
    want_labels(experiment, rows)
    enough = rows.filter(status=Comparison.Status.OPEN, n_labels__gte=F("wanted"))
    enough.update(status=Comparison.Status.ANSWERED)
    lacking = comparisons_with_clips(experiment).filter(
        status=Comparison.Status.ANSWERED, settled=None, n_labels__lt=F("wanted")
    )
    lacking.update(status=Comparison.Status.OPEN)
    decisions.promote_all(comparison__experiment=experiment)


_OVERLAP = {"overlap", "overlap_more", "overlap_share"}


def change_settings(experiment: Experiment, changed: Collection[str]) -> None:
    """Save the ``changed`` fields of ``experiment``, other than the prompt, with all that follows from them.

    Changing the overlap opens or closes comparisons. Changing how labels are combined revises all decisions.
    """
    weighed = Experiment.objects.get(pk=experiment.pk).weighs_labelers
    experiment.save(update_fields=set(changed) - _OVERLAP)
    if _OVERLAP & set(changed):
        set_overlap(experiment, experiment.overlap, experiment.overlap_more, experiment.overlap_share)
    if experiment.weighs_labelers != weighed:
        aggregate.revise_everything(experiment)


def want_labels(experiment: Experiment, comparisons: QuerySet[Comparison]) -> None:
    """Set each comparison's target number of labels from the experiment's overlap settings."""
    spread = Mod(F("id") * _SPREAD, _SPREAD_OVER)
    wants_more = When(
        condition=LessThan(spread, round(experiment.overlap_share * _SPREAD_OVER)),
        then=Value(experiment.overlap_more),
    )
    comparisons.update(wanted=Case(wants_more, default=Value(experiment.overlap)))


def pause(chosen: QuerySet[Experiment]) -> int:
    """Pause running experiments: labelers get no work and trainers wait. Return how many were paused."""
    return chosen.order_by().filter(state=Experiment.State.RUNNING).update(state=Experiment.State.PAUSED)


def resume(chosen: QuerySet[Experiment]) -> int:
    """Resume paused experiments; return how many were resumed."""
    return chosen.order_by().filter(state=Experiment.State.PAUSED).update(state=Experiment.State.RUNNING)


def finish(chosen: QuerySet[Experiment]) -> int:
    """Finish experiments: labelers are notified, trainers stop, and unlabeled comparisons are canceled."""
    unfinished = chosen.order_by().exclude(state=Experiment.State.FINISHED)
    ending = list(unfinished.values_list("pk", flat=True))
    with transaction.atomic():
        _cancel(Comparison.objects.filter(experiment__in=ending))
        rows = list(Experiment.objects.select_for_update(no_key=True).filter(pk__in=ending).order_by("pk"))
        rows = [row for row in rows if row.state != Experiment.State.FINISHED]
        for row in rows:
            webhooks.announce_finished(row)
        finished = Experiment.objects.filter(pk__in=[row.pk for row in rows])
        return finished.update(state=Experiment.State.FINISHED, finished_at=Now())


def reopen(chosen: QuerySet[Experiment]) -> int:
    """Reopen finished experiments, so that labelers get work again; return how many were reopened."""
    finished = chosen.order_by().filter(state=Experiment.State.FINISHED)
    return finished.update(state=Experiment.State.RUNNING, finished_at=None)
