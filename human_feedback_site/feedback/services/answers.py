"""Answers of labelers: appended, counted where a place is free, withdrawn by appending too.

A labeler's second standing answer to the same pair is void, and so is what a stopped labeler says: it is kept
and counts for nothing. ``docs/architecture.md`` has the rules in one table.

Each transaction takes its locks in the same order: the comparison, what belongs to the labeler, and last the
experiment's sequence counter, whose lock is held until the commit.
"""

from dataclasses import dataclass
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.models import (
    Comparison,
    Experiment,
    Label,
    Labeler,
    Lease,
    Participation,
    Undo,
    verdict_of,
)
from human_feedback_site.feedback.quality.aggregation import Triple
from human_feedback_site.feedback.queue.claims import Claim
from human_feedback_site.feedback.queue.leases import grant_again, live
from human_feedback_site.feedback.queue.sql import key, rows, run
from human_feedback_site.feedback.services import parts
from human_feedback_site.feedback.services.accounts import participation_of
from human_feedback_site.feedback.services.decisions import announce, score_of, verdict_on
from human_feedback_site.feedback.services.settling import fill


@dataclass(frozen=True)
class Answer:
    """An answer as the browser sends it, and may send it again."""

    uuid: UUID
    lease: UUID
    choice: str
    response_ms: int | None
    shown_ms: int | None = None


@dataclass(frozen=True)
class Recorded:
    """What became of an answer.

    Attributes:
        status: ``counted`` or ``surplus``; answers to checks look like others, void ones like surplus.
        answered: the labeler's answers that stand, of those for its present invitation.
        created: whether it is new.
    """

    uuid: UUID
    status: str
    answered: int
    created: bool


def record_answer(claim: Claim, answer: Answer) -> Recorded:
    """Append an answer, whether its lease is still live or not.

    Raises :class:`ConflictError` where the UUID is known with other content, :class:`NotFoundError` where the
    lease was forgotten.
    """
    try:
        with transaction.atomic():
            return _record(claim, answer)
    except IntegrityError:  # the UUID is known
        known = Label.objects.get(uuid=answer.uuid)
    if (known.lease_id, known.choice, known.response_ms) != (claim.lease, answer.choice, answer.response_ms):
        raise ConflictError(
            _("The label %(uuid)s is already recorded with other content.") % {"uuid": answer.uuid}
        )
    return Recorded(answer.uuid, _shown(known.status), _answered(claim), created=False)


def _shown(status: str) -> str:
    """Return a label's status as labelers may know it."""
    counts_for_nothing = status in {Label.Status.SURPLUS, Label.Status.VOID}
    return Label.Status.SURPLUS if counts_for_nothing else Label.Status.COUNTED


def _record(claim: Claim, answer: Answer) -> Recorded:
    outcome = verdict_of(answer.choice, swapped=claim.swapped)
    score = score_of(outcome, claim.confusion, weighs_labelers=claim.weighs_labelers)
    judges = claim.purpose == Lease.Purpose.JUDGE and not claim.stopped
    taken = _take_place(claim, score) if judges else None
    status = _append(claim, answer, taken[0] if taken else None)
    if status == Label.Status.VOID:
        answered = _answered(claim)
    else:
        answered = _note(claim, outcome, _watched_ms(claim, answer))
    if taken and status == Label.Status.COUNTED:
        n_labels, scores = taken
        verdict = verdict_on(scores, n_labels, claim.class_prior, weighs_labelers=claim.weighs_labelers)
        announce(claim.experiment, claim.comparison, verdict)
    elif taken:
        _leave_place(claim, score)
        if answer.uuid in fill([claim.comparison]):  # behind others that wait for as many places
            status = Label.Status.COUNTED
    return Recorded(answer.uuid, _shown(status), answered, created=True)


def _take_place(claim: Claim, score: Triple) -> tuple[int, Triple] | None:
    """Lock the comparison and count one label more; None where none is wanted.

    Returns how many labels there are then and their summed scores. Whether this one had room is certain only
    when it is appended: from here on nobody else can take a place.
    """
    found = rows(
        """
        UPDATE feedback_comparison
        SET n_labels = n_labels + 1, score_first = score_first + %s, score_equal = score_equal + %s,
            score_second = score_second + %s,
            status = CASE WHEN n_labels + 1 >= wanted THEN 'answered' ELSE status END
        WHERE id = %s AND status = 'open' AND n_labels < wanted
        RETURNING n_labels, score_first, score_equal, score_second""",
        [*score, claim.comparison],
    )
    if not found:
        return None
    n_labels, first, equal, second = found[0]
    return n_labels, (first, equal, second)


def _leave_place(claim: Claim, score: Triple) -> None:
    run(
        """
        UPDATE feedback_comparison
        SET n_labels = n_labels - 1, score_first = score_first - %s, score_equal = score_equal - %s,
            score_second = score_second - %s, status = 'open'
        WHERE id = %s""",
        [*score, claim.comparison],
    )


# A labeler gives one standing answer to a pair, and one to it as a check.
_APPEND = """
    INSERT INTO feedback_label (uuid, lease_id, comparison_id, labeler_id, choice, swapped, prompt_version,
                                response_ms, shown_ms, created_at, status)
    SELECT %s, l.id, c.id, l.labeler_id, %s, l.swapped, l.prompt_version, %s, %s, {now},
           CASE WHEN p.stopped_at IS NOT NULL OR {given} THEN 'void' WHEN {counts} THEN %s ELSE 'surplus' END
    FROM feedback_lease l
    JOIN feedback_comparison c ON c.id = l.comparison_id
    JOIN feedback_participation p ON p.labeler_id = l.labeler_id AND p.experiment_id = c.experiment_id
    WHERE l.id = %s
    RETURNING status"""
_HELD = """(SELECT COUNT(*) FROM feedback_lease l
        WHERE l.comparison_id = c.id AND l.purpose = 'judge' AND l.labeler_id {whose} %s AND {live})"""
_HELD_BY_OTHERS, _HELD_BY_LABELER = (_HELD.replace("{whose}", whose) for whose in ("<>", "="))
# A live lease of the labeler is a place; without one, labels that wait go first.
_HAS_PLACE = f"""%s + {_HELD_BY_OTHERS}
        + CASE WHEN {_HELD_BY_LABELER} > 0 THEN 0 ELSE {{waiting}} END < c.wanted"""
_CHECKED = """0 < (
        SELECT COUNT(*) FROM feedback_label a LEFT JOIN feedback_undo u ON u.label_id = a.id
        WHERE a.comparison_id = c.id AND a.labeler_id = %s AND a.status = l.purpose AND u.id IS NULL)"""
_JUDGMENT = _APPEND.replace("{given}", "{judged_by}")
_APPEND_LABEL = _JUDGMENT.replace("{counts}", _HAS_PLACE)
_APPEND_SURPLUS = _JUDGMENT.replace("{counts}", "1 = 0")
_APPEND_CHECK = _APPEND.replace("{given}", _CHECKED).replace("{counts}", "1 = 1")


def _append(claim: Claim, answer: Answer, n_labels: int | None) -> str:
    """Append the label; ``n_labels`` counts it already, None where no place is wanted.

    Returns its status; raises :class:`NotFoundError` where the lease was forgotten in this moment.
    """
    facts = [key(answer.uuid), answer.choice, answer.response_ms, answer.shown_ms, claim.labeler]
    if n_labels is None:
        _lock(claim.comparison)  # so that two answers find one another, and the lease is not being forgotten
    if claim.purpose != Lease.Purpose.JUDGE:
        appended = rows(_APPEND_CHECK, [*facts, claim.purpose, claim.lease])
    elif n_labels is None:
        appended = rows(_APPEND_SURPLUS, [*facts, Label.Status.SURPLUS, claim.lease])
    else:
        place = [n_labels - 1, claim.labeler, claim.labeler]
        appended = rows(_APPEND_LABEL, [*facts, *place, Label.Status.COUNTED, claim.lease])
    if not appended:
        raise NotFoundError(_("There is no lease %(uuid)s any more.") % {"uuid": answer.lease})
    [[status]] = appended
    return str(status)


def _watched_ms(claim: Claim, answer: Answer) -> int:
    """Return how long the clips can have been watched: what the browser says, at most the lease's age."""
    said = answer.response_ms if answer.shown_ms is None else answer.shown_ms
    return claim.age_ms if said is None else min(said, claim.age_ms)


def _note(claim: Claim, outcome: str, watched_ms: int) -> int:
    """Count the answer and what it says about its labeler; return how many of the labeler's answers stand.

    A pair is checked by its first answer. Checks are added to what the row has in this moment: a labeler's
    answers may come many at once.
    """
    gold, watch = "gold_checks", "watch_checks"
    if claim.purpose == Lease.Purpose.GOLD and not claim.again:
        gold = _with_check(gold, passed=outcome == claim.gold)
    if claim.min_watch_ms and not claim.again:
        watch = _with_check(watch, passed=watched_ms >= claim.min_watch_ms)
    invite = claim.invite or 0
    [[answered, belongs_elsewhere]] = rows(
        """
        UPDATE feedback_participation
        SET answers = answers + 1,
            elsewhere = elsewhere + CASE WHEN COALESCE(invite_id, 0) = %s THEN 0 ELSE 1 END,
            gold_checks = {gold}, watch_checks = {watch},
            stopped_at = CASE WHEN {gold_failures} >= %s OR {watch_failures} >= %s
                THEN COALESCE(stopped_at, {now}) ELSE stopped_at END
        WHERE id = %s
        RETURNING answers - undone - COALESCE(elsewhere, 0),
            elsewhere IS NOT NULL AND COALESCE(invite_id, 0) <> %s""",
        [invite, claim.stop_failures, claim.stop_failures, claim.participation, invite],
        gold=gold,
        watch=watch,
        gold_failures=_failures(gold),
        watch_failures=_failures(watch),
    )
    if belongs_elsewhere:
        parts.add_elsewhere(claim.participation, claim.invite, 1)
    return int(answered)


def _answered(claim: Claim) -> int:
    """Return how many answers of the labeler's part stand."""
    return Participation.objects.get(pk=claim.participation).part_answered


def _with_check(checks: str, *, passed: bool) -> str:
    """SQL for a column of checks and one more, the oldest of too many left out."""
    first = f"CASE WHEN LENGTH({checks}) < {Participation.CHECKS_KEPT} THEN 1 ELSE 2 END"
    return f"SUBSTR({checks} || '{int(passed)}', {first})"


def _failures(checks: str) -> str:
    """SQL for how many of them failed."""
    return f"LENGTH({checks}) - LENGTH(REPLACE({checks}, '0', ''))"


@transaction.atomic
def record_undo(
    labeler: Labeler, label_uuid: UUID, undo_uuid: UUID, *, keep_place: bool = False
) -> tuple[Undo, Lease | None, bool]:
    """Withdraw an answer and give the pair back to its labeler.

    ``keep_place`` gives it back where no work is given, too, for an answer in the same transaction.

    Returns the undo, the lease by which the labeler now has the pair again (None where there is none, or none
    any more), and whether the undo is new. Raises :class:`NotFoundError` for a label that is not the
    labeler's, :class:`ConflictError` where the label is undone already or the UUID has another use.
    """
    own = Label.objects.select_related("lease").filter(
        uuid=label_uuid, labeler=labeler, comparison__experiment__deletion_asked_at=None
    )
    label = own.first()
    if label is None:
        raise NotFoundError(_("There is no label %(uuid)s of yours.") % {"uuid": label_uuid})
    comparison = _lock(label.comparison_id)
    label = own.get()  # one that waited may count since
    known = Undo.objects.filter(label=label).first()
    if known is not None and known.uuid == undo_uuid:
        still = Lease.objects.select_related("comparison").filter(live(), pk=known.lease_id or 0)
        return known, still.first(), False
    if known is not None or Undo.objects.filter(uuid=undo_uuid).exists():
        raise ConflictError(
            _("The label %(uuid)s is undone already, or this UUID is taken.") % {"uuid": label_uuid}
        )
    left_place = label.status not in {Label.Status.SURPLUS, Label.Status.VOID}
    participation = participation_of(labeler, comparison.experiment)
    gives_work = keep_place or comparison.experiment.state == Experiment.State.RUNNING
    goes_on = gives_work and participation.stopped_at is None
    lease = grant_again(comparison, label, participation.invite_id) if left_place and goes_on else None
    undo = Undo.objects.create(uuid=undo_uuid, label=label, lease=lease)
    if label.status != Label.Status.VOID:
        parts.add(participation.pk, label.lease.invite_id, undone=1)
    if label.status == Label.Status.COUNTED:
        fill([comparison.pk], changed=[comparison.pk])
    return undo, lease, True


def _lock(comparison_id: int) -> Comparison:
    # The experiment is read afterwards: joined, it would show the settings as they were before the wait.
    return Comparison.objects.select_for_update(no_key=True).get(pk=comparison_id)
