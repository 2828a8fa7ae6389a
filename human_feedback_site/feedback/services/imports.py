"""Import of exported comparisons and labels: all or nothing, and safe to repeat."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from django.db import transaction

from human_feedback_site.feedback.media.store import is_key_of
from human_feedback_site.feedback.models import Comparison, Decision, Experiment
from human_feedback_site.feedback.models.querysets import lock_comparisons
from human_feedback_site.feedback.services.clip_store import note_clips, unreadable
from human_feedback_site.feedback.services.decisions import (
    COUNTED_FIELDS,
    confusions_in,
    count_anew,
    decide_anew,
    labels_of,
    next_numbers,
)
from human_feedback_site.feedback.services.imported_labels import AddedLabels
from human_feedback_site.feedback.services.promotion import promote_all
from human_feedback_site.feedback.tables.columns import COMPARISONS, LABELS
from human_feedback_site.feedback.tables.reader import ADVICE, Problems, Row, is_same_number, read_table

_AT_ONCE = 500
# These must match if a comparison already exists; the other columns may have changed since.
_DESCRIPTION = ("phase", "step", "priority", "first_key", "second_key", "first_return", "second_return")
_NUMBERS = ("first_return", "second_return", "probability")
_SHOWN = {Comparison.Status.OPEN, Comparison.Status.GOLD}  # statuses shown to labelers
_ROUNDED_DIGITS = range(8, 12)  # significant digits left after a spreadsheet has rounded

_Item = TypeVar("_Item")


@dataclass
class Imported:
    """Result of an import.

    Attributes:
        comparisons, labels, undone: number of comparisons, labels and undos added.
        cancelled: number of added comparisons that were canceled because they still needed labels but have no
            clips in the media store.
        rounded: True if a spreadsheet seems to have rounded numbers in the added comparisons.
    """

    comparisons: int = 0
    labels: int = 0
    undone: int = 0
    cancelled: int = 0
    rounded: bool = False


@dataclass
class _Import:
    """State of an import in progress. An import is one transaction, so an error leaves no changes."""

    experiment: Experiment
    problems: Problems
    added: AddedLabels
    done: Imported = field(default_factory=Imported)
    made: dict[UUID, int] = field(default_factory=dict)  # IDs of new comparisons by UUID
    digits: int = 0  # largest number of significant digits in any of them


def import_tables(experiment: Experiment, comparisons: Path, labels: Path) -> Imported:
    """Add an export's missing comparisons and labels, and publish their decisions in the feed.

    New comparisons keep the decisions given in the file. Existing comparisons are decided from all their
    labels; new labels for them count while labels are wanted, as if labelers had submitted them one by one.
    New comparisons whose clips are not in the media store are marked as having no clips, and canceled if they
    still need labels.

    Raises :class:`BadFileError` if the files have errors; it lists them by line, and nothing is imported.
    """
    problems = Problems()
    work = _Import(experiment, problems, AddedLabels(experiment, problems))
    with transaction.atomic():
        Experiment.objects.select_for_update(no_key=True).get(pk=experiment.pk)  # one at a time
        for rows in _batches(read_table(COMPARISONS, comparisons, problems)):
            _add_comparisons(work, rows)
        problems.complain()  # otherwise each label of a rejected comparison would be reported too
        for rows in _batches(read_table(LABELS, labels, problems)):
            work.added.add(rows, work.made)
        problems.complain()
        work.added.note_in_participations()
        _decide_known(work)
        for rows in _batches(read_table(COMPARISONS, comparisons, problems)):
            _decide_made(work, rows)
        promote_all(comparison__experiment=experiment)
        problems.complain()
    work.done.rounded = comparisons.suffix != ".parquet" and work.digits in _ROUNDED_DIGITS
    work.done.labels, work.done.undone = work.added.added, work.added.withdrawn
    return work.done


def _batches(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _AT_ONCE)):
        yield batch


def _add_comparisons(work: _Import, rows: Sequence[Row]) -> None:
    known = Comparison.objects.in_bulk([row["comparison"] for row in rows], field_name="uuid")
    new: list[Row] = []
    for row in rows:
        old = known.get(row["comparison"])
        if old is None and _is_sound(work, row):
            new.append(row)
            known[row["comparison"]] = Comparison(experiment=work.experiment, **_described(row))
        elif old is not None:
            _compare(work, row, old)
    _note_clips(work.experiment, [old.pk for old in known.values() if old.pk is not None])
    gone = _without_clips(new)
    cancelled = {row["comparison"] for row in new if row["status"] in _SHOWN} & gone
    made = Comparison.objects.bulk_create(
        Comparison(
            uuid=row["comparison"],
            experiment=work.experiment,
            status=Comparison.Status.CANCELLED if row["comparison"] in cancelled else row["status"],
            clips_missing=row["comparison"] in gone,
            **{name: row[name] for name in ("gold", "wanted", "created_at")},
            **_described(row),
        )
        for row in new
    )
    work.made.update((comparison.uuid, comparison.pk) for comparison in made)
    work.digits = max([work.digits, *(_digits(row[name]) for row in new for name in _NUMBERS)])
    work.done.comparisons += len(made)
    work.done.cancelled += len(cancelled)


def _described(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in _DESCRIPTION}


def _compare(work: _Import, row: Row, old: Comparison) -> None:
    """Report each difference between a row and the existing comparison with the same UUID."""
    if old.experiment_id != work.experiment.pk:
        work.problems.add(
            row, f"the comparison {row['comparison']} belongs to another experiment", "comparison"
        )
        return
    for name, value in _described(row).items():
        known = getattr(old, name)
        if not is_same_number(known, value) if name in _NUMBERS else known != value:
            message = f"{name}: recorded as {known!r} for this comparison, found {value!r}"
            work.problems.add(row, message + ADVICE, name)


def _digits(number: float | None) -> int:
    """Return the number of significant digits of ``number``, or 0 for None."""
    return 0 if number is None else len(Decimal(repr(number)).normalize().as_tuple().digits)


def _is_sound(work: _Import, row: Row) -> bool:
    """Return True if a new comparison's row is consistent; otherwise report the problems."""
    name = work.experiment.name
    wrong = {
        f"first_key and second_key must be clip keys under {name}/": not (
            is_key_of(name, row["first_key"]) and is_key_of(name, row["second_key"])
        ),
        "status is gold, so the column gold must contain the answer": row["status"] == Comparison.Status.GOLD
        and row["gold"] is None,
        "decision and probability require decided_at": row["decided_at"] is None
        and (row["decision"], row["probability"]) != (None, None),
        "probability must be from 0 to 1": row["probability"] is not None
        and not 0 <= row["probability"] <= 1,
    }
    for message, holds in wrong.items():
        if holds:
            work.problems.add(row, message)
    return not any(wrong.values())


def _without_clips(rows: Sequence[Row]) -> set[UUID]:
    """Return the UUIDs of the comparisons whose clips are not in the media store."""
    missing = unreadable([row[side] for row in rows for side in ("first_key", "second_key")])
    return {row["comparison"] for row in rows if {row["first_key"], row["second_key"]} & missing}


def _note_clips(experiment: Experiment, known: Sequence[int]) -> None:
    """Check the media store again for clips that earlier imports did not find."""
    rows = experiment.comparisons.filter(pk__in=known)
    # If no trainer ever connected, an earlier version may have imported these without ``clips_missing``.
    if experiment.trainer_seen_at is None:
        note_clips(rows.exclude(status__in=_SHOWN))
    else:
        note_clips(rows.filter(clips_missing=True))


def _decide_known(work: _Import) -> None:
    """Publish new decisions for existing comparisons whose counted labels have changed."""
    for batch in _batches(sorted(work.added.touched - set(work.made.values()))):
        decide_anew(work.experiment, lock_comparisons(Comparison.objects.filter(pk__in=batch)))


def _decide_made(work: _Import, rows: Sequence[Row]) -> None:
    """Count the labels of new comparisons, and publish the comparisons' decisions from the file."""
    by_id = {work.made.pop(row["comparison"]): row for row in rows if row["comparison"] in work.made}
    made = lock_comparisons(Comparison.objects.filter(pk__in=by_id))
    labels, confusions = labels_of(made), confusions_in(work.experiment)
    for comparison in made:
        row, status = by_id[comparison.pk], comparison.status
        count_anew(work.experiment, comparison, labels[comparison.pk], confusions)
        comparison.status = status
        if comparison.n_labels != row["n_labels"]:
            found = comparison.n_labels
            message = f"n_labels: expected {found}, the number of counted labels, found {row['n_labels']}"
            work.problems.add(row, message, "n_labels")
    Comparison.objects.bulk_update(made, COUNTED_FIELDS)
    decided = [comparison for comparison in made if by_id[comparison.pk]["decided_at"] is not None]
    Decision.objects.bulk_create(
        Decision(
            experiment=work.experiment,
            comparison=comparison,
            seq=seq,
            n_labels=comparison.n_labels,
            created_at=by_id[comparison.pk]["decided_at"],
            **{name: by_id[comparison.pk][name] for name in ("decision", "probability")},
        )
        for seq, comparison in zip(next_numbers(work.experiment.pk, len(decided)), decided, strict=True)
    )
