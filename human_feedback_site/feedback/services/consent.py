"""Consent texts: set by researchers, accepted or declined by labelers."""

from django.db import transaction

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.models import (
    ConsentAnswer,
    ConsentText,
    Experiment,
    Labeler,
    Participation,
)

MAX_CONSENT = 20_000


@transaction.atomic
def set_text(experiment: Experiment, text: str, *, seen: str | None = None) -> ConsentText | None:
    """Set the experiment's consent text and return its :class:`ConsentText`.

    Empty text removes the requirement and returns None. Labelers who accepted a different version are asked
    again; setting an earlier text restores that version.

    ``seen`` is the digest of the text that the editor loaded, or "" if there was none;
    :class:`ConflictError` is raised if the text has changed since. None skips this check.
    """
    locked = Experiment.objects.select_for_update(no_key=True, of=("self",)).select_related("consent")
    in_force = locked.get(pk=experiment.pk).consent
    if seen is not None and seen != (in_force.digest if in_force else ""):
        raise ConflictError("The consent text has changed since you loaded it; reload it and try again.")
    text = text.replace("\r\n", "\n").strip()
    version = None
    if text:
        version, _ = ConsentText.objects.get_or_create(
            experiment=experiment, digest=ConsentText.digest_of(text), defaults={"text": text}
        )
    experiment.consent = version
    experiment.save(update_fields=["consent"])
    return version


def text_to_answer(labeler: Labeler, experiment: Experiment) -> ConsentText | None:
    """Return the consent text that the labeler has yet to accept, or None."""
    if experiment.consent_id is None:
        return None
    agreed = Participation.objects.filter(
        labeler=labeler, experiment=experiment, consented_to=experiment.consent_id
    )
    return None if agreed.exists() else experiment.consent


@transaction.atomic
def answer(labeler: Labeler, text: ConsentText, *, agreed: bool) -> None:
    """Record whether a labeler accepts a consent text; labelers who decline get no pairs."""
    ConsentAnswer.objects.create(text=text, labeler=labeler, agreed=agreed)
    Participation.objects.update_or_create(
        labeler=labeler,
        experiment=text.experiment,
        defaults={"consented_to": text if agreed else None},
    )
