"""Versions of an experiment's prompt and consent text; all are kept.

Each label records the version of the prompt that it answers.
"""

from django.contrib.auth.models import User
from django.db import transaction

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.models import (
    ConsentAnswer,
    ConsentText,
    Experiment,
    Labeler,
    Participation,
    PromptVersion,
)


def edit_prompt(experiment: Experiment, text: str, author: User, *, seen: int) -> None:
    """Change the prompt, or raise :class:`ConflictError` if ``seen`` is no longer the current version."""
    with transaction.atomic():
        locked = Experiment.objects.select_for_update(no_key=True).get(pk=experiment.pk)
        if locked.prompt_version != seen:
            raise ConflictError(
                f"The prompt of {experiment} has changed since you loaded it; reload it and try again."
            )
        change_prompt(locked, text, author)


def take_prompt_of_run(locked: Experiment, text: str) -> None:
    """Use the run's prompt, sent at every start, if it differs from the one that the run sent before."""
    given = locked.prompts.filter(author=None).first()
    if given is None or given.text != text:
        change_prompt(locked, text, None)


def change_prompt(locked: Experiment, text: str, author: User | None) -> None:
    """Change the prompt of a locked experiment and save it as a new version."""
    if text == locked.prompt:
        return
    locked.prompt, locked.prompt_version = text, locked.prompt_version + 1
    locked.save(update_fields=["prompt", "prompt_version"])
    note_prompt(locked, author)


def note_prompt(experiment: Experiment, author: User | None) -> None:
    """Save the experiment's current prompt as a :class:`PromptVersion`."""
    PromptVersion.objects.create(
        experiment=experiment, version=experiment.prompt_version, text=experiment.prompt, author=author
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
    """Record whether a labeler accepts a consent text; labelers who decline get no questions."""
    ConsentAnswer.objects.create(text=text, labeler=labeler, agreed=agreed)
    Participation.objects.update_or_create(
        labeler=labeler,
        experiment=text.experiment,
        defaults={"consented_to": text if agreed else None},
    )
