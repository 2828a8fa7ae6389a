"""Versions of an experiment's prompt; all are kept, and each label records the version it answers."""

from django.contrib.auth.models import User
from django.db import transaction

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.models import Experiment, PromptVersion


def edit_prompt(experiment: Experiment, text: str, author: User, *, seen: int) -> None:
    """Change the prompt if ``seen``, the version that the author loaded, is still the current one.

    Raises :class:`ConflictError` if the prompt has changed in the meantime.
    """
    with transaction.atomic():
        locked = Experiment.objects.select_for_update(no_key=True).get(pk=experiment.pk)
        if locked.prompt_version != seen:
            raise ConflictError(
                f"The prompt of {experiment} has changed since you loaded it; reload it and try again."
            )
        change_prompt(locked, text, author)


def take_prompt_of_run(locked: Experiment, text: str) -> None:
    """Use the run's prompt ``text`` if it differs from the one that the run sent before.

    A run sends its prompt at every start, so a prompt edited on the site stays in effect until the run sends
    a different one.
    """
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
