"""A change of mind: the old answer is withdrawn and another appended, both in one transaction."""

from dataclasses import dataclass
from uuid import UUID, uuid5

from django.db import transaction
from django.utils.translation import gettext as _

from human_feedback_site.feedback.errors import NotFoundError
from human_feedback_site.feedback.models import Label, Labeler, Lease
from human_feedback_site.feedback.queue.answered_leases import answered_lease
from human_feedback_site.feedback.services.answers import Answer, record_answer, record_undo

_WITHDRAWAL = UUID("6f6a2c07-4c0f-4f0c-9b0a-0b1f6a8f1d3e")


@dataclass(frozen=True)
class Revision:
    """The answer that takes the place of ``label``; sending it again changes nothing."""

    uuid: UUID
    label: UUID
    choice: str


@transaction.atomic
def revise_answer(labeler: Labeler, revision: Revision) -> Label:
    """Put another answer in the place of one of the labeler's, on the same sides of the screen; return it.

    It is given under the present prompt, which the history shows. The answer that is there already is kept as
    it is. Raises :class:`NotFoundError` for a label that is not the labeler's, :class:`ConflictError` where
    that was withdrawn in another way meanwhile.
    """
    found = Label.objects.select_related("lease", "comparison__experiment")
    old = found.filter(uuid=revision.label, labeler=labeler).first()
    if old is None:
        raise NotFoundError(_("There is no label %(uuid)s of yours.") % {"uuid": revision.label})
    if old.choice == revision.choice and not hasattr(old, "undo"):
        return old
    record_undo(labeler, old.uuid, uuid5(_WITHDRAWAL, str(revision.uuid)), keep_place=True)
    Lease.objects.filter(pk=old.lease_id).update(prompt_version=old.comparison.experiment.prompt_version)
    # By the old lease, which fixes the sides and the place in the history; the new one ends with the answer.
    answer = Answer(revision.uuid, old.lease.uuid, revision.choice, response_ms=None)
    record_answer(answered_lease(labeler, old.lease.uuid), answer)
    return Label.objects.get(uuid=answer.uuid)
