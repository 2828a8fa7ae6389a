"""Changed answers: the old label is undone and a new one is added, in one transaction."""

from dataclasses import dataclass
from uuid import UUID, uuid5

from django.db import transaction
from django.utils.translation import gettext as _

from human_feedback_site.feedback.errors import NotFoundError
from human_feedback_site.feedback.models import Label, Labeler, Lease
from human_feedback_site.feedback.queue.answered_leases import answered_lease
from human_feedback_site.feedback.services.answers import Answer, record_answer, record_undo
from human_feedback_site.feedback.services.promotion import promote

_WITHDRAWAL = UUID("6f6a2c07-4c0f-4f0c-9b0a-0b1f6a8f1d3e")


@dataclass(frozen=True)
class Revision:
    """A new answer that replaces ``label``. Idempotent: resending it has no further effect."""

    uuid: UUID
    label: UUID
    choice: str


@transaction.atomic
def revise_answer(labeler: Labeler, revision: Revision) -> Label:
    """Replace one of the labeler's answers and return the new label; the clips stay on the same sides.

    The new label gets the experiment's current prompt version, because the history page shows that prompt. If
    the choice is unchanged, the old label is returned as it is. Raises :class:`NotFoundError` if the label is
    not the labeler's, and :class:`ConflictError` if it was undone by a different request.
    """
    found = Label.objects.select_related("lease", "comparison__experiment")
    old = found.filter(uuid=revision.label, labeler=labeler).first()
    if old is None:
        raise NotFoundError(_("You have no label %(uuid)s.") % {"uuid": revision.label})
    if old.choice == revision.choice and not hasattr(old, "undo"):
        return old
    record_undo(labeler, old.uuid, uuid5(_WITHDRAWAL, str(revision.uuid)), keep_slot=True)
    Lease.objects.filter(pk=old.lease_id).update(prompt_version=old.comparison.experiment.prompt_version)
    # Using the old lease keeps the sides and the position in the history; answering also ends the new lease.
    answer = Answer(revision.uuid, old.lease.uuid, revision.choice, response_ms=None)
    record_answer(answered_lease(labeler, old.lease.uuid), answer)
    promote([old.comparison_id])  # in case the labeler was stopped: then the new answer is void
    return Label.objects.get(uuid=answer.uuid)
