"""Import of exported comparisons and labels: all or nothing, and safe to repeat."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from django.db import transaction

from human_feedback_site.feedback.kinds import ITEMS, KINDS, PAIR
from human_feedback_site.feedback.media.store import is_key_of
from human_feedback_site.feedback.models import (
    MAX_LABELER_NAME,
    MAX_REASON,
    Comparison,
    Decision,
    Experiment,
    Label,
    Labeler,
    Lease,
    Undo,
)
from human_feedback_site.feedback.models.comparisons import REASON
from human_feedback_site.feedback.models.names import normalized
from human_feedback_site.feedback.models.querysets import judgments, lock_comparisons
from human_feedback_site.feedback.services import parts
from human_feedback_site.feedback.services.accounts import labeler_named, participation_of
from human_feedback_site.feedback.services.clip_store import note_clips, unreadable
from human_feedback_site.feedback.services.decisions import (
    COUNTED_FIELDS,
    confusions_in,
    count_anew,
    decide_anew,
    labels_of,
    next_numbers,
    promote_all,
)
from human_feedback_site.feedback.tables.columns import COMPARISONS, LABELS
from human_feedback_site.feedback.tables.reader import ADVICE, Problems, Row, is_same_number, read_table

_AT_ONCE = 500
# These must match if a comparison already exists; the other columns may have changed since.
_KEYS = tuple(f"{item}_key" for item in ITEMS)
_RETURNS = tuple(f"{item}_return" for item in ITEMS)
_DESCRIPTION = ("kind", "phase", "step", "priority", *_KEYS, *_RETURNS)
_ABSENT = {"kind": PAIR.name, **dict.fromkeys(_KEYS, "")}  # where a cell is empty, or the column missing
_NUMBERS = (*_RETURNS, "probability")
_SHOWN = {Comparison.Status.OPEN, Comparison.Status.GOLD}  # statuses shown to labelers
_ROUNDED_DIGITS = range(8, 12)  # significant digits left after a spreadsheet has rounded

_Item = TypeVar("_Item")


_AS_TOLD = ("choice", "swapped", "prompt_version", "response_ms", "shown_ms", "created_at")
_JUDGED = {Comparison.Status.OPEN, Comparison.Status.ANSWERED}
_Part: TypeAlias = tuple[Labeler, int | None]
_STATUSES = {
    Lease.Purpose.JUDGE: {Label.Status.COUNTED, Label.Status.SURPLUS, Label.Status.VOID},
    Lease.Purpose.GOLD: {Label.Status.GOLD, Label.Status.SURPLUS, Label.Status.VOID},
    Lease.Purpose.REPEAT: {Label.Status.REPEAT, Label.Status.SURPLUS, Label.Status.VOID},
}


class AddedLabels:
    """Adds the labels and undos of an import, and counts what it added.

    Attributes:
        touched: IDs of the comparisons whose counted labels have changed.
        added: number of new labels.
        withdrawn: number of new undos.
        answers: number of new valid labels, keyed by (labeler, invitation ID).
        undone: number of new undos of valid labels, keyed by (labeler, invitation ID).
    """

    def __init__(self, experiment: Experiment, problems: Problems) -> None:
        self.touched: set[int] = set()
        self.added = self.withdrawn = 0
        self.answers: Counter[_Part] = Counter()
        self.undone: Counter[_Part] = Counter()
        self._experiment = experiment
        self._problems = problems
        self._labelers: dict[str, Labeler] = {}

    def add(self, rows: Sequence[Row], made: Container[UUID]) -> None:
        """Add the labels and undos in these rows to the database; report rows that can't be imported.

        ``made`` contains the UUIDs of the comparisons that this import created. A label of such a comparison
        counts if it counted at export, even if no slot is free.
        """
        comparisons = {
            row.uuid: row
            for row in lock_comparisons(
                self._experiment.comparisons.filter(uuid__in={row["comparison"] for row in rows})
            )
        }
        known = {
            label.uuid: label
            for label in Label.objects.select_related("comparison", "labeler", "lease", "undo").filter(
                uuid__in=[row["label"] for row in rows]
            )
        }
        undos = dict(
            Undo.objects.filter(uuid__in=[row["undo"] for row in rows]).values_list("uuid", "label__uuid")
        )
        sound = [row for row in rows if self._fits(row, comparisons, known, undos)]
        new = {row["label"]: row for row in sound if row["label"] not in known}
        leases = self._leases(list(new.values()), comparisons)
        room = _Room(comparisons.values())
        labels = Label.objects.bulk_create(
            self._label(row, leases[row["lease"]], room, trusted=row["comparison"] in made)
            for row in new.values()
            if row["lease"] in leases
        )
        self._note(labels)
        self._withdraw(sound, known | {label.uuid: label for label in labels})

    def note_in_participations(self) -> None:
        """Add the new labels and undos to the answer counts of their labelers."""
        for part in self.answers | self.undone:
            labeler, invite = part
            own = participation_of(labeler, self._experiment)
            parts.add(own.pk, invite, answers=self.answers[part], undone=self.undone[part])

    def _fits(
        self,
        row: Row,
        comparisons: Mapping[UUID, Comparison],
        known: Mapping[UUID, Label],
        undos: Mapping[UUID, UUID],
    ) -> bool:
        label = known.get(row["label"])
        if label is None and row.file in self._problems.resaved and row.may_be_changed("labeler"):
            self._report_doubtful_name(row)
        comparison = comparisons.get(row["comparison"])
        kind = PAIR if comparison is None else comparison.question
        is_choice = row["choice"] in kind.choices
        meaning = kind.meaning_of(row["choice"], swapped=row["swapped"]) if is_choice else row["meaning"]
        wrong = {
            f"there is no comparison {row['comparison']} in this experiment": comparison is None,
            f"choice: expected one of {', '.join(kind.choices)}, found {row['choice']}": not is_choice,
            f"meaning: expected {meaning}, found {row['meaning']}": row["meaning"] != meaning,
            f"status: {row['status']} is not allowed for purpose {row['purpose']}": row["status"]
            not in _STATUSES[row["purpose"]],
            f"labeler: expected at most {MAX_LABELER_NAME} characters": len(row["labeler"])
            > MAX_LABELER_NAME,
            f"reason: expected at most {MAX_REASON} characters": len(row.cells.get("reason") or "")
            > MAX_REASON,
            "undo and undone_at must both be set or both be empty": (row["undo"] is None)
            != (row["undone_at"] is None),
            "the undo already belongs to a different label": undos.get(row["undo"], row["label"])
            != row["label"],
        }
        for number, (message, holds) in enumerate(wrong.items()):
            if holds:
                self._problems.add(row, message, f"rule {number}")
        return not any(wrong.values()) and (label is None or self._matches_record(row, label))

    def _matches_record(self, row: Row, label: Label) -> bool:
        content = {name: known for name, known in _content(label).items() if name in row.cells}
        others = [(name, known) for name, known in content.items() if known != row[name]]
        for name, known in others:
            message = f"{name}: recorded as {str(known)!r} for this label, found {str(row[name])!r}"
            self._problems.add(row, message + ADVICE, name)
        return not others

    def _report_doubtful_name(self, row: Row) -> None:
        """Report a labeler name that a spreadsheet may have altered, for example from 007 to 7."""
        name = row["labeler"]
        message = (
            f"labeler: a spreadsheet saved this file and may have changed a name to {name!r}, as in "
            f"007 to 7; import the file as it was exported, or write '{name} if that is the real name"
        )
        self._problems.add(row, message, "labeler")

    def _labeler(self, row: Row) -> Labeler:
        name, kind = row["labeler"], row.cells.get("labeler_kind", Labeler.Kind.HUMAN)
        if name not in self._labelers:
            self._labelers[name] = labeler = labeler_named(self._experiment.owner, name)
            if kind not in {Labeler.Kind.HUMAN, labeler.kind}:
                labeler.kind = kind
                labeler.save(update_fields=["kind"])
        return self._labelers[name]

    def _leases(self, rows: Sequence[Row], comparisons: Mapping[UUID, Comparison]) -> dict[UUID, Lease]:
        """Return the leases of the new labels by UUID, creating missing ones."""
        wanted = {row["lease"]: row for row in reversed(rows)}  # so a lease gets its first answer's date
        known = Lease.objects.in_bulk(list(wanted), field_name="uuid")
        made = Lease.objects.bulk_create(
            Lease(
                uuid=uuid,
                comparison=comparisons[row["comparison"]],
                labeler=self._labeler(row),
                swapped=row["swapped"],
                purpose=row["purpose"],
                prompt_version=row.cells.get("prompt_version", 1),
                shown=True,
                expires_at=row["created_at"],
                created_at=row["created_at"],
            )
            for uuid, row in wanted.items()
            if uuid not in known
        )
        leases = known | {lease.uuid: lease for lease in made}
        for row in rows:
            lease = leases.get(row["lease"])
            told = (comparisons[row["comparison"]].pk, self._labeler(row).pk)
            if lease and (lease.comparison_id, lease.labeler_id, lease.swapped, lease.purpose) != (
                *told,
                row["swapped"],
                row["purpose"],
            ):
                self._problems.add(row, "the lease is already recorded with different content")
                del leases[row["lease"]]
        return leases

    def _label(self, row: Row, lease: Lease, room: "_Room", *, trusted: bool) -> Label:
        status = row["status"]
        if status == Label.Status.COUNTED and row["undo"] is None:
            status = room.take(lease, trusted=trusted)
        return Label(
            uuid=row["label"],
            lease=lease,
            comparison_id=lease.comparison_id,
            labeler=self._labeler(row),
            status=status,
            answer=row["meaning"],  # checked by _fits
            reason=row.cells.get("reason") or "",
            **{name: row[name] for name in _AS_TOLD if name in row.cells},
        )

    def _note(self, labels: Iterable[Label]) -> None:
        for label in labels:
            self.added += 1
            self.answers[_part_of(label)] += label.status != Label.Status.VOID
            if label.status == Label.Status.COUNTED:
                self.touched.add(label.comparison_id)

    def _withdraw(self, rows: Sequence[Row], labels: Mapping[UUID, Label]) -> None:
        new = {
            row["undo"]: (row, labels[row["label"]])
            for row in rows
            if row["undo"] is not None
            and row["label"] in labels
            and not hasattr(labels[row["label"]], "undo")
        }
        Undo.objects.bulk_create(
            Undo(uuid=uuid, label=label, created_at=row["undone_at"]) for uuid, (row, label) in new.items()
        )
        for _, label in new.values():
            self.withdrawn += 1
            self.undone[_part_of(label)] += label.status != Label.Status.VOID
            if label.status == Label.Status.COUNTED:
                self.touched.add(label.comparison_id)


class _Room:
    """Tracks how many labels locked comparisons still want during an import."""

    def __init__(self, comparisons: Iterable[Comparison]) -> None:
        """Read the labels of ``comparisons``, which must be locked."""
        self._comparisons = {comparison.pk: comparison for comparison in comparisons}
        given = judgments().filter(comparison__in=self._comparisons)
        judged = list(given.values_list("comparison", "labeler", "status"))
        self._judged = {(comparison, labeler) for comparison, labeler, _ in judged}
        self._counted = Counter(row for row, _, status in judged if status == Label.Status.COUNTED)

    def take(self, lease: Lease, *, trusted: bool) -> Label.Status:
        """Return the status of a new label, and note it if it counts; a ``trusted`` one always does."""
        comparison = self._comparisons[lease.comparison_id]
        if (comparison.pk, lease.labeler_id) in self._judged:
            return Label.Status.VOID
        wants_more = comparison.status in _JUDGED and self._counted[comparison.pk] < comparison.wanted
        if not (wants_more or trusted):
            return Label.Status.SURPLUS
        self._judged.add((comparison.pk, lease.labeler_id))
        self._counted[comparison.pk] += 1
        return Label.Status.COUNTED


def _part_of(label: Label) -> _Part:
    return label.labeler, label.lease.invite_id


def _content(label: Label) -> dict[str, object]:
    return {
        "comparison": label.comparison.uuid,
        "labeler": normalized(label.labeler.name),
        "choice": label.choice,
        "swapped": label.swapped,
    }


@dataclass
class Imported:
    """Result of an import."""

    comparisons: int = 0  # number of comparisons, labels and undos added
    labels: int = 0
    undone: int = 0
    # number of added comparisons that were canceled because they still needed labels but have no clips in the
    # media store
    cancelled: int = 0
    rounded: bool = False  # True if a spreadsheet seems to have rounded numbers in the added comparisons


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
            reason=row.cells.get("reason") or "",
            settled=row.cells.get("settled"),
            **{name: row[name] for name in ("gold", "wanted", "created_at")},
            **_described(row),
        )
        for row in new
    )
    work.made.update((comparison.uuid, comparison.pk) for comparison in made)
    work.digits = max([work.digits, *(_digits(row.cells.get(name)) for row in new for name in _NUMBERS)])
    work.done.comparisons += len(made)
    work.done.cancelled += len(cancelled)


def _described(row: Row) -> dict[str, Any]:
    return {name: row.cells.get(name) or _ABSENT.get(name, row.cells.get(name)) for name in _DESCRIPTION}


def _compare(work: _Import, row: Row, old: Comparison) -> None:
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
    return 0 if number is None else len(Decimal(repr(number)).normalize().as_tuple().digits)


def _is_sound(work: _Import, row: Row) -> bool:
    name, described = work.experiment.name, _described(row)
    kind = KINDS[described["kind"]]
    used, unused = _KEYS[: kind.size], _KEYS[kind.size :]
    reason = row.cells.get("reason") or ""
    said = [(name, row.cells.get(name)) for name in ("gold", "decision", "settled")]
    foreign = [
        f"{column}: {value} is no answer to {kind.name}"
        for column, value in said
        if value is not None and value not in kind.answers
    ]
    wrong = {
        f"{' and '.join(used)} must be clip keys under {name}/": not all(
            is_key_of(name, described[key]) for key in used
        ),
        f"{', '.join(unused)} must be empty, as the kind is {kind.name}": any(map(described.get, unused)),
        "; ".join(foreign): bool(foreign),
        f"reason: {reason} is none that trainers have": not re.match(REASON, reason),
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
    clips = {row["comparison"]: {key for name in _KEYS if (key := row.cells.get(name))} for row in rows}
    missing = unreadable([key for keys in clips.values() for key in keys])
    return {comparison for comparison, keys in clips.items() if keys & missing}


def _note_clips(experiment: Experiment, known: Sequence[int]) -> None:
    """Check the media store again for clips that earlier imports did not find."""
    rows = experiment.comparisons.filter(pk__in=known)
    # If no trainer ever connected, an earlier version may have imported these without ``clips_missing``.
    if experiment.trainer_seen_at is None:
        note_clips(rows.exclude(status__in=_SHOWN))
    else:
        note_clips(rows.filter(clips_missing=True))


def _decide_known(work: _Import) -> None:
    for batch in _batches(sorted(work.added.touched - set(work.made.values()))):
        decide_anew(work.experiment, lock_comparisons(Comparison.objects.filter(pk__in=batch)))


def _decide_made(work: _Import, rows: Sequence[Row]) -> None:
    """Count the labels of new comparisons, and publish the comparisons' decisions from the file."""
    by_id = {work.made.pop(row["comparison"]): row for row in rows if row["comparison"] in work.made}
    made = lock_comparisons(Comparison.objects.filter(pk__in=by_id))
    labels, confusions = labels_of(made), confusions_in(work.experiment.pk)
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
