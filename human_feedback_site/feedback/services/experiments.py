"""What trainers write: experiments, comparisons, cancellations, learning curves."""

from collections.abc import Iterable, Mapping, Sequence
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
from human_feedback_site.feedback.media.store import MAX_CLIP_BYTES, is_key_of
from human_feedback_site.feedback.models import (
    Comparison,
    Episode,
    Experiment,
    SequenceCounter,
    TrainingPoint,
)
from human_feedback_site.feedback.models.querysets import comparisons_with_clips
from human_feedback_site.feedback.services import prompts, settling
from human_feedback_site.feedback.services.clip_store import note_clips, unreadable
from human_feedback_site.feedback.tables.reader import is_same_number

_NO_CLIP = f"missing, empty or larger than {MAX_CLIP_BYTES // 2**20} MiB"
_SIGN_OF_LIFE_EVERY = timedelta(seconds=30)
_SPREAD, _SPREAD_OVER = 40_503, 65_536  # multiples of the first are evenly spread modulo the second


@dataclass(frozen=True)
class NewComparison:
    """A comparison as its trainer describes it."""

    uuid: UUID
    phase: str
    step: int
    priority: int
    first_key: str
    second_key: str
    first_return: float | None
    second_return: float | None
    gold: str | None = None


_SET_ON_THE_SITE = ("prompt", "gold_rate")  # once the experiment is there


@transaction.atomic
def put_experiment(
    owner: User, name: str, run_id: UUID, values: Mapping[str, Any]
) -> tuple[Experiment, bool]:
    """Create the experiment, or bring the description of a resumed one up to date.

    ``values`` are fields of :class:`Experiment`; a state that is not among them stays as it is, and so do a
    prompt that was edited on the site and the rate of gold pairs. Returns the experiment and whether it is
    new; raises :class:`ConflictError` where another run has the name, :class:`NotFoundError` where the run is
    somebody else's.
    """
    if Experiment.everything.filter(name=name).exclude(deletion_asked_at=None).exists():
        raise ConflictError(
            f"The experiment {name!r} is being deleted; choose another name, or wait a minute."
        )
    experiment, created = Experiment.objects.select_for_update(no_key=True).get_or_create(
        name=name, defaults={**values, "owner": owner, "run_id": run_id}
    )
    if created:
        SequenceCounter.objects.create(experiment=experiment)
        prompts.note_prompt(experiment, author=None)
        _note_end(experiment)
        return experiment, True
    if experiment.run_id != run_id:
        raise ConflictError(f"The experiment {name!r} belongs to another run; choose another name.")
    if experiment.owner_id != owner.pk:
        raise NotFoundError(f"There is no experiment {name!r} of yours.")
    changes = {field: value for field, value in values.items() if field not in _SET_ON_THE_SITE}
    for field, value in changes.items():
        setattr(experiment, field, value)
    experiment.save(update_fields=list(changes))
    prompts.take_prompt_of_run(experiment, values["prompt"])
    _note_end(experiment)
    return experiment, False


def _note_end(experiment: Experiment) -> None:
    """Let ``finished_at`` tell since when it is finished, and nothing where it goes on."""
    finished = When(state=Experiment.State.FINISHED, then=Coalesce("finished_at", Now()))
    Experiment.objects.filter(pk=experiment.pk).update(finished_at=Case(finished))


def hear_from_trainer(experiment: Experiment) -> None:
    """Note that the trainer is alive, which it shows every few seconds, at most twice a minute."""
    seen = experiment.trainer_seen_at
    # Where the clocks of this machine and the database differ, it is noted each time rather than never.
    if seen is None or abs(timezone.now() - seen) > _SIGN_OF_LIFE_EVERY:
        Experiment.objects.filter(pk=experiment.pk).update(trainer_seen_at=Now())


def trainer_away() -> Q:
    """Experiments that are not finished and whose trainer was not heard from for a while."""
    since = Now() - timedelta(seconds=settings.TRAINER_AWAY_SECONDS)
    silent = Q(trainer_seen_at__lt=since) | Q(trainer_seen_at=None, created_at__lt=since)
    return silent & ~Q(state=Experiment.State.FINISHED)


def trainer_away_since() -> Case:
    """When an absent trainer was last heard from; none for one that is there."""
    return Case(When(trainer_away(), then=Coalesce("trainer_seen_at", "created_at")))


def register_comparisons(experiment: Experiment, comparisons: Sequence[NewComparison]) -> tuple[int, int]:
    """Record comparisons whose clips are in the media store, all or none; twice is once.

    Returns how many are new and how many were known. Raises :class:`UnreadableClipsError`, and
    :class:`ConflictError` where a UUID is known with other content.
    """
    new = _unknown(experiment, comparisons)
    _refuse_unreadable(  # before the transaction: nobody waits for this one's lock while the store is slow
        experiment,
        {
            f"#/comparisons/{index}/{side}/key": getattr(item, f"{side}_key")
            for index, item in new.items()
            for side in ("first", "second")
        },
    )
    if len(new) < len(comparisons):
        known = experiment.comparisons.filter(uuid__in=[item.uuid for item in comparisons])
        note_clips(known.filter(clips_missing=True))  # imported without them, and uploaded since
    try:
        with transaction.atomic():
            locked = Experiment.objects.select_for_update(no_key=True).get(pk=experiment.pk)  # one at a time
            new = _unknown(experiment, comparisons)
            made = Comparison.objects.bulk_create(
                Comparison(
                    experiment=experiment,
                    wanted=locked.overlap,
                    status=Comparison.Status.GOLD if item.gold else Comparison.Status.OPEN,
                    **vars(item),
                )
                for item in new.values()
            )
            if locked.overlap_share:
                want_labels(locked, Comparison.objects.filter(pk__in=[row.pk for row in made]))
    except IntegrityError:  # another experiment has taken one of the UUIDs a moment ago
        raise ConflictError("A comparison's uuid is already in use; choose a random one.") from None
    return len(new), len(comparisons) - len(new)


def _unknown(experiment: Experiment, comparisons: Sequence[NewComparison]) -> dict[int, NewComparison]:
    """Return those not registered yet, by their index; refuses known ones that differ."""
    known = Comparison.objects.in_bulk([item.uuid for item in comparisons], field_name="uuid")
    for item in comparisons:
        old = known.get(item.uuid)
        if old is not None and (
            old.experiment_id != experiment.pk
            or any(not _is_same(getattr(old, name), value) for name, value in _described(item).items())
        ):
            raise ConflictError(f"The comparison {item.uuid} is already registered with other content.")
    return {index: item for index, item in enumerate(comparisons) if item.uuid not in known}


def _is_same(known: Any, told: Any) -> bool:
    """Say whether a trainer tells what is known, also where that came by a spreadsheet, which rounds."""
    return is_same_number(known, told) if isinstance(told, float) else bool(known == told)


def _described(item: NewComparison) -> dict[str, Any]:
    """Return what has to be the same each time; a pair may have been made gold after it was registered."""
    return {name: value for name, value in vars(item).items() if name != "gold" or value is not None}


def _refuse_unreadable(experiment: Experiment, clips: Mapping[str, str]) -> None:
    """``clips`` are object keys by where the request names them."""
    foreign = {at: key for at, key in clips.items() if not is_key_of(experiment.name, key)}
    absent = unreadable([key for at, key in clips.items() if at not in foreign])
    missing = {at: key for at, key in clips.items() if key in absent}
    if foreign or missing:
        raise UnreadableClipsError(
            {at: f"{key} is not under {experiment.name}/." for at, key in foreign.items()}
            | {at: f"{key} is {_NO_CLIP}; upload it before registering." for at, key in missing.items()}
        )


def cancel_comparisons(experiment: Experiment, uuids: Sequence[UUID]) -> int:
    """Stop asking for labels of these, except where there is one already; return how many were open."""
    settling.settle(experiment.pk)
    return _cancel(Comparison.objects.filter(experiment=experiment, uuid__in=uuids), [experiment.pk])


@transaction.atomic
def _cancel(comparisons: QuerySet[Comparison], experiments: Iterable[int]) -> int:
    """Close those that are open and have no label, not even one that waits; return how many these were."""
    rows = comparisons.filter(status=Comparison.Status.OPEN, n_labels=0)
    list(rows.select_for_update(no_key=True).order_by("id").values_list("pk"))  # no answer in between
    answered = {row for each in experiments for row in settling.with_waiting(each)}
    return rows.exclude(pk__in=answered).update(status=Comparison.Status.CANCELLED)


def store_points(experiment: Experiment, points: Iterable[TrainingPoint]) -> int:
    """Store points of learning curves, replacing those sent before; return how many there were."""
    latest = {(point.step, point.tag): point for point in points}
    TrainingPoint.objects.bulk_create(
        latest.values(),
        update_conflicts=True,
        unique_fields=["experiment", "tag", "step"],
        update_fields=["value"],
    )
    return len(latest)


def add_episode(experiment: Experiment, step: int, key: str) -> None:
    """Note a film of a whole episode that is in the media store; raises :class:`UnreadableClipsError`."""
    _refuse_unreadable(experiment, {"#/key": key})
    Episode.objects.update_or_create(experiment=experiment, step=step, defaults={"key": key})


def set_waiting_for(experiment: Experiment, waiting_for: int | None) -> None:
    """Say how many answers training waits for (None: it goes on)."""
    Experiment.objects.filter(pk=experiment.pk).update(waiting_for=waiting_for)


@transaction.atomic
def set_overlap(experiment: Experiment, overlap: int, more: int = 1, share: float = 0.0) -> None:
    """Say how many labelers judge each comparison, and how many judge a ``share`` of them.

    Those that now have enough labels are closed; those that had enough before and want more now are opened,
    unless their clips are gone.
    """
    rows = experiment.comparisons.exclude(status=Comparison.Status.CANCELLED)
    list(rows.select_for_update(no_key=True).order_by("id").values_list("pk"))  # no answer in between
    experiment.overlap, experiment.overlap_more, experiment.overlap_share = overlap, more, share
    experiment.save(update_fields=["overlap", "overlap_more", "overlap_share"])
    want_labels(experiment, rows)
    enough = rows.filter(status=Comparison.Status.OPEN, n_labels__gte=F("wanted"))
    enough.update(status=Comparison.Status.ANSWERED)
    lacking = comparisons_with_clips(experiment).filter(
        status=Comparison.Status.ANSWERED, n_labels__lt=F("wanted")
    )
    lacking.update(status=Comparison.Status.OPEN)
    settling.settle(experiment.pk)


def want_labels(experiment: Experiment, comparisons: QuerySet[Comparison]) -> None:
    """Note how many labels each comparison wants; which are the share that wants more is always the same."""
    spread = Mod(F("id") * _SPREAD, _SPREAD_OVER)
    wants_more = When(
        condition=LessThan(spread, round(experiment.overlap_share * _SPREAD_OVER)),
        then=Value(experiment.overlap_more),
    )
    comparisons.update(wanted=Case(wants_more, default=Value(experiment.overlap)))


def pause(chosen: QuerySet[Experiment]) -> int:
    """Pause experiments that run: labelers are given nothing, and trainers wait. Returns how many."""
    return chosen.order_by().filter(state=Experiment.State.RUNNING).update(state=Experiment.State.PAUSED)


def resume(chosen: QuerySet[Experiment]) -> int:
    """Let paused experiments go on. Returns how many."""
    return chosen.order_by().filter(state=Experiment.State.PAUSED).update(state=Experiment.State.RUNNING)


def finish(chosen: QuerySet[Experiment]) -> int:
    """End experiments: labelers are told so, trainers stop, and what nobody answered is asked no more.

    Returns how many.
    """
    unfinished = chosen.order_by().exclude(state=Experiment.State.FINISHED)
    ending = list(unfinished.values_list("pk", flat=True))
    settling.settle_all(ending)
    with transaction.atomic():
        _cancel(Comparison.objects.filter(experiment__in=ending), ending)
        return unfinished.filter(pk__in=ending).update(state=Experiment.State.FINISHED, finished_at=Now())


def reopen(chosen: QuerySet[Experiment]) -> int:
    """Let finished experiments go on: labelers are given what is still open. Returns how many."""
    finished = chosen.order_by().filter(state=Experiment.State.FINISHED)
    return finished.update(state=Experiment.State.RUNNING, finished_at=None)
