"""Completion of what processes of 0.1.0 wrote, which may run on while a site is upgraded."""

from human_feedback_site.feedback.models import Label, meaning_of
from human_feedback_site.feedback.services.promotion import promote_all


def complete_labels() -> str:
    """Store the meaning of labels that lack it, and promote labels that waited for others' leases.

    Returns a summary for the log.
    """
    stored, lacking = 0, Label.objects.filter(answer="")
    if lacking.exists():
        for choice in Label.Choice.values:
            for swapped in (False, True):
                chosen = lacking.filter(choice=choice, swapped=swapped)
                stored += chosen.update(answer=meaning_of(choice, swapped=swapped))
    promote_all()
    return f"{stored} labels completed"
