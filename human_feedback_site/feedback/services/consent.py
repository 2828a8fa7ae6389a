"""The consent text of an experiment: written by its researcher, agreed to by each labeler or not."""

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
    """Ask from now on for agreement to ``text``; an empty one asks for nothing. Returns the version.

    Whoever agreed to another version is asked again; one that was used before is that version again. Raises
    :class:`ConflictError` where the one whose digest was ``seen`` (empty: none) is in force no more.
    """
    locked = Experiment.objects.select_for_update(no_key=True, of=("self",)).select_related("consent")
    in_force = locked.get(pk=experiment.pk).consent
    if seen is not None and seen != (in_force.digest if in_force else ""):
        raise ConflictError("The consent text was changed meanwhile.")
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
    """Return the version that the labeler has still to agree to, if there is one."""
    if experiment.consent_id is None:
        return None
    agreed = Participation.objects.filter(
        labeler=labeler, experiment=experiment, consented_to=experiment.consent_id
    )
    return None if agreed.exists() else experiment.consent


@transaction.atomic
def answer(labeler: Labeler, text: ConsentText, *, agreed: bool) -> None:
    """Note what a labeler says to a version; without agreement it is given no pairs."""
    ConsentAnswer.objects.create(text=text, labeler=labeler, agreed=agreed)
    Participation.objects.update_or_create(
        labeler=labeler,
        experiment=text.experiment,
        defaults={"consented_to": text if agreed else None},
    )
