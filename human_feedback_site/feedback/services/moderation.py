"""Researchers' actions on comparisons (label, close, use as check or example) and labelers (stop, block).

An action after which a comparison wants labels again promotes its surplus labels.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from uuid import UUID, uuid4

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.kinds import CANT_TELL
from human_feedback_site.feedback.models import (
    Comparison,
    Example,
    Experiment,
    Label,
    Lease,
    Participation,
    Undo,
)
from human_feedback_site.feedback.models.querysets import lock_comparisons, newest_decision, not_undone
from human_feedback_site.feedback.quality.aggregation import Verdict, majority
from human_feedback_site.feedback.queue.leases import end_leases, expire_leases
from human_feedback_site.feedback.services import parts, webhooks
from human_feedback_site.feedback.services.decisions import announce, promote
from human_feedback_site.feedback.services.experiments import cancel_comparisons

_AT_ONCE = 200
_Status = Comparison.Status
_ASKED = (_Status.OPEN, _Status.ANSWERED)


@transaction.atomic
def request_label(chosen: QuerySet[Comparison]) -> int:
    """Request one more label for each open or answered comparison whose clips still exist.

    Returns the number of these comparisons. Labelers who have already judged a comparison are not asked
    again. The new label revises the decision.
    """
    rows = [
        row for row in lock_comparisons(chosen.filter(status__in=_ASKED, settled=None)) if not row.clips_gone
    ]
    for row in rows:
        row.wanted = max(row.wanted, row.n_labels) + 1
        row.status = _Status.OPEN
    Comparison.objects.bulk_update(rows, ["wanted", "status"])
    promote([row.pk for row in rows])
    return len(rows)


@transaction.atomic
def settle(chosen: QuerySet[Comparison], answer: str, researcher: User) -> int:
    """Make a researcher's own answer the decision, whatever labelers answer; return how many were settled.

    Skipped are canceled comparisons, attention checks, and those whose kind doesn't have the answer. Ratings
    can only be settled as ``cant_tell``, because people's scales differ.
    """
    rows = [
        row
        for row in lock_comparisons(chosen.filter(status__in=_ASKED))
        if answer == CANT_TELL or (answer in row.question.answers and not row.question.personal)
    ]
    end_leases(Lease.objects.filter(comparison__in=rows))
    return _decide(rows, answer, researcher)


@transaction.atomic
def unsettle(chosen: QuerySet[Comparison]) -> int:
    """Let the labels decide settled comparisons again; return how many were settled."""
    return _decide(lock_comparisons(chosen.exclude(settled=None)), None, None)


def _decide(rows: Sequence[Comparison], answer: str | None, researcher: User | None) -> int:
    changed = [row.pk for row in rows]
    Comparison.objects.filter(pk__in=changed).update(settled=answer, settled_by=researcher)
    promote(changed, changed)
    return len(rows)


@transaction.atomic
def close(chosen: QuerySet[Comparison]) -> int:
    """Close open comparisons with whatever labels they have; return how many were closed."""
    chosen_open = [row.pk for row in lock_comparisons(chosen.filter(status=_Status.OPEN))]
    end_leases(Lease.objects.filter(comparison__in=chosen_open))
    rows = list(Comparison.objects.filter(pk__in=chosen_open))
    for row in rows:
        row.status = _Status.ANSWERED if row.n_labels else _Status.CANCELLED
        row.wanted = row.n_labels or row.wanted  # so that nothing finds that it lacks labels
    Comparison.objects.bulk_update(rows, ["wanted", "status"])
    return len(rows)


@transaction.atomic
def reopen(chosen: QuerySet[Comparison]) -> int:
    """Reopen canceled comparisons whose clips still exist; return how many were reopened."""
    rows = [row for row in lock_comparisons(chosen.filter(status=_Status.CANCELLED)) if not row.clips_gone]
    for row in rows:
        row.status = _Status.OPEN if row.gold is None else _Status.GOLD
    Comparison.objects.bulk_update(rows, ["status"])
    promote([row.pk for row in rows])
    return len(rows)


def end_claims(chosen: QuerySet[Lease]) -> int:
    """Expire the chosen live leases, so that others can get the questions; return how many ended."""
    return end_leases(Lease.objects.filter(pk__in=list(chosen.order_by().values_list("pk", flat=True))))


@transaction.atomic
def stop(chosen: QuerySet[Participation]) -> int:
    """Stop labelers: they get no more work and their leases end. Return how many were stopped."""
    going_on = list(chosen.order_by("pk").filter(stopped_at=None).select_related("labeler", "experiment"))
    stopped = 0
    for participation in going_on:
        expire_leases(participation.labeler_id, participation.experiment_id)
        if Participation.objects.filter(pk=participation.pk, stopped_at=None).update(stopped_at=Now()):
            webhooks.announce_blocked(participation, by_checks=False)
            stopped += 1
    return stopped


def readmit(chosen: QuerySet[Participation]) -> int:
    """Readmit labelers and clear their check results; return how many were readmitted."""
    return sum(_readmit(each) for each in list(chosen.order_by("pk")))


@transaction.atomic
def _readmit(participation: Participation) -> int:
    surplus = Label.objects.filter(
        not_undone(),
        labeler=participation.labeler_id,
        comparison__experiment=participation.experiment_id,
        status=Label.Status.SURPLUS,
    )
    rows = lock_comparisons(Comparison.objects.filter(pk__in=surplus.values("comparison")))
    own = Participation.objects.filter(pk=participation.pk)
    readmitted = own.update(stopped_at=None, gold_checks="", watch_checks="")
    promote([row.pk for row in rows])
    return readmitted


def block(chosen: QuerySet[Participation], researcher: User) -> int:
    """Stop labelers and withdraw all their labels; return how many labels were withdrawn.

    The labels stay in the database with their undos. New decisions are made from the remaining labels, and
    the questions go to other labelers. Readmitting a labeler does not restore the labels.
    """
    participations = list(chosen.select_related("experiment").order_by("pk"))
    stop(chosen)
    return sum(_retract(each, researcher) for each in participations)


def _retract(participation: Participation, researcher: User) -> int:
    labels = Label.objects.filter(
        not_undone(), labeler=participation.labeler_id, comparison__experiment=participation.experiment_id
    )
    comparisons = sorted(set(labels.values_list("comparison", flat=True)))
    retracted = 0
    for start in range(0, len(comparisons), _AT_ONCE):
        with transaction.atomic():
            rows = lock_comparisons(Comparison.objects.filter(pk__in=comparisons[start : start + _AT_ONCE]))
            found = list(labels.filter(comparison__in=rows).select_related("lease"))
            Undo.objects.bulk_create(
                Undo(uuid=uuid4(), label=label, retracted_by=researcher) for label in found
            )
            given = Counter(label.lease.invite_id for label in found if label.status != Label.Status.VOID)
            for invite, undone in given.items():
                parts.add(participation.pk, invite, undone=undone)
            counted = {label.comparison_id for label in found if label.status == Label.Status.COUNTED}
            promote([row.pk for row in rows], changed=counted)
        retracted += len(found)
    return retracted


@transaction.atomic
def make_gold(chosen: QuerySet[Comparison], answer: str | None = None) -> int:
    """Turn comparisons into attention checks; return how many were changed.

    The known answer is ``answer``, by default the comparison's decision. If a trainer requested the
    comparison, the answer is also published as its decision. Skipped are canceled comparisons, those whose
    clips are gone, and those whose kind doesn't have the answer.
    """
    found = lock_comparisons(chosen.exclude(status=Comparison.Status.CANCELLED).order_by())
    decided = dict(
        Comparison.objects.filter(pk__in=[row.pk for row in found] if answer is None else ())
        .annotate(now=newest_decision("decision"))
        .values_list("pk", "now")
    )
    known_answers = {row.pk: answer or decided[row.pk] for row in found}
    rows = [row for row in found if not row.clips_gone and known_answers[row.pk] in row.question.classes]
    for comparison in rows:
        known_answer = known_answers[comparison.pk]
        trainer_asked = comparison.status != Comparison.Status.GOLD or comparison.decisions.exists()
        comparison.gold, comparison.status = known_answer, Comparison.Status.GOLD
        comparison.save(update_fields=["gold", "status"])
        if trainer_asked:
            known = majority(comparison.question, [known_answer])
            announce(
                comparison.experiment_id,
                comparison.pk,
                Verdict(known.decision, known.probability, comparison.n_labels),
            )
    return len(rows)


@transaction.atomic
def make_ordinary(chosen: QuerySet[Comparison]) -> int:
    """Turn attention checks back into ordinary comparisons; return how many were changed.

    Comparisons that a trainer requested and whose clips still exist are reopened for labeling. All others
    are canceled.
    """
    rows = lock_comparisons(chosen.filter(status=Comparison.Status.GOLD).order_by())
    asked = []
    for comparison in rows:
        comparison.gold, comparison.status = None, Comparison.Status.CANCELLED
        if comparison.decisions.exists() and not comparison.clips_gone:
            comparison.status = Comparison.Status.OPEN
            asked.append(comparison.pk)
        comparison.save(update_fields=["gold", "status"])
    promote(asked, changed=asked)
    return len(rows)


@dataclass(frozen=True)
class NewExample:
    """A new example: its correct answer, its explanation, and whether it is a practice question.

    If ``practice`` is True, labelers must answer it before their first question; otherwise it is shown with
    its answer.
    """

    better: str
    explanation: str
    practice: bool


@transaction.atomic
def use_as_example(experiment: Experiment, comparison: UUID, example: NewExample) -> None:
    """Show a comparison to labelers as an example, and cancel it if it has no label yet.

    Raises :class:`NotFoundError` if the experiment has no such comparison. Raises :class:`ConflictError` if
    its clips are gone, if it is an attention check, whose answer labelers must not learn, or if its kind
    doesn't have the answer.
    """
    found = experiment.comparisons.select_related("experiment").filter(uuid=comparison).first()
    if found is None:
        raise NotFoundError(f"There is no comparison {comparison} in this experiment.")
    if found.clips_gone or found.status == Comparison.Status.GOLD:
        raise ConflictError(
            f"Comparison {comparison} can't be an example: it is an attention check, or its clips are gone."
        )
    if example.better not in found.question.answers:
        raise ConflictError(
            f"Comparison {comparison} is about {found.question.title}, which can't have the answer "
            f"{example.better}; choose one of {', '.join(found.question.answers)}."
        )
    Example.objects.update_or_create(experiment=experiment, comparison=found, defaults=asdict(example))
    cancel_comparisons(experiment, [comparison])


def use_as_check(experiment: Experiment, comparison: UUID, answer: str) -> None:
    """Turn a comparison into an attention check.

    Raises :class:`NotFoundError` if the experiment has no such comparison, and :class:`ConflictError` if
    labelers know its answer, because it is an example, or :func:`make_gold` can't use it.
    """
    chosen = experiment.comparisons.filter(uuid=comparison)
    if not chosen.exists():
        raise NotFoundError(f"There is no comparison {comparison} in this experiment.")
    if not make_gold(chosen.exclude(pk__in=experiment.examples.values("comparison")), answer):
        raise ConflictError(f"Comparison {comparison} can't be an attention check.")


def remove_example(experiment: Experiment, comparison: UUID) -> None:
    """Stop showing a comparison as an example; its labeling status stays the same."""
    experiment.examples.filter(comparison__uuid=comparison).delete()
