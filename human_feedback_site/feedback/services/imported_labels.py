"""Import of exported labels: adds the missing ones and decides which of them count."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

from human_feedback_site.feedback.models import (
    MAX_LABELER_NAME,
    Comparison,
    Experiment,
    Label,
    Labeler,
    Lease,
    Undo,
    meaning_of,
)
from human_feedback_site.feedback.models.names import normalized
from human_feedback_site.feedback.models.querysets import judgments, lock_comparisons
from human_feedback_site.feedback.services import parts
from human_feedback_site.feedback.services.accounts import labeler_named, participation_of
from human_feedback_site.feedback.tables.reader import ADVICE, Problems, Row

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
        """Return True if a row is consistent with itself and the database; otherwise report the problems."""
        label = known.get(row["label"])
        if label is None and row.file in self._problems.resaved and row.may_be_changed("labeler"):
            self._report_doubtful_name(row)
        meaning = meaning_of(row["choice"], swapped=row["swapped"])
        wrong = {
            f"there is no comparison {row['comparison']} in this experiment": row["comparison"]
            not in comparisons,
            f"meaning: expected {meaning}, found {row['meaning']}": row["meaning"] != meaning,
            f"status: {row['status']} is not allowed for purpose {row['purpose']}": row["status"]
            not in _STATUSES[row["purpose"]],
            f"labeler: expected at most {MAX_LABELER_NAME} characters": len(row["labeler"])
            > MAX_LABELER_NAME,
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
        """Return True if a row agrees with the recorded label; otherwise report each difference."""
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

    def _labeler(self, name: str) -> Labeler:
        if name not in self._labelers:
            self._labelers[name] = labeler_named(self._experiment.owner, name)
        return self._labelers[name]

    def _leases(self, rows: Sequence[Row], comparisons: Mapping[UUID, Comparison]) -> dict[UUID, Lease]:
        """Return the leases of the new labels by UUID, creating missing ones.

        Leases that already exist with different content are reported and left out.
        """
        wanted = {row["lease"]: row for row in reversed(rows)}  # so a lease gets its first answer's date
        known = Lease.objects.in_bulk(list(wanted), field_name="uuid")
        made = Lease.objects.bulk_create(
            Lease(
                uuid=uuid,
                comparison=comparisons[row["comparison"]],
                labeler=self._labeler(row["labeler"]),
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
            told = (comparisons[row["comparison"]].pk, self._labeler(row["labeler"]).pk)
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
            labeler=self._labeler(row["labeler"]),
            status=status,
            answer=row["meaning"],  # checked by _fits
            **{name: row[name] for name in _AS_TOLD if name in row.cells},
        )

    def _note(self, labels: Iterable[Label]) -> None:
        for label in labels:
            self.added += 1
            self.answers[_part_of(label)] += label.status != Label.Status.VOID
            if label.status == Label.Status.COUNTED:
                self.touched.add(label.comparison_id)

    def _withdraw(self, rows: Sequence[Row], labels: Mapping[UUID, Label]) -> None:
        """Create the undos in ``rows`` that are not in the database yet."""
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
        """Return the status of a new label, and note it if it counts.

        A ``trusted`` label counts even if no more are wanted. A labeler's second label for a comparison is
        void.
        """
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
    """Return the fields that must match when a label is imported again, by column name."""
    return {
        "comparison": label.comparison.uuid,
        "labeler": normalized(label.labeler.name),
        "choice": label.choice,
        "swapped": label.swapped,
    }
