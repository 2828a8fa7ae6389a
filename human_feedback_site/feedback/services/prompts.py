"""The prompt of an experiment: each one it ever had is kept, and each label knows its own."""

from django.contrib.auth.models import User
from django.db import transaction

from human_feedback_site.feedback.errors import ConflictError
from human_feedback_site.feedback.models import Experiment, PromptVersion


def edit_prompt(experiment: Experiment, text: str, author: User, *, seen: int) -> None:
    """Put ``text`` in the place of the prompt whose version its author has ``seen``.

    Raises :class:`ConflictError` where that is not the present one any more.
    """
    with transaction.atomic():
        locked = Experiment.objects.select_for_update(no_key=True).get(pk=experiment.pk)
        if locked.prompt_version != seen:
            raise ConflictError(f"The prompt of {experiment} was changed meanwhile.")
        change_prompt(locked, text, author)


def take_prompt_of_run(locked: Experiment, text: str) -> None:
    """Take over what the run of a locked experiment asks for, where it asks for something new.

    A run says its prompt each time it is started, so what was edited on the site stays until the run itself
    has another prompt than before.
    """
    given = locked.prompts.filter(author=None).first()
    if given is None or given.text != text:
        change_prompt(locked, text, None)


def change_prompt(locked: Experiment, text: str, author: User | None) -> None:
    """Give a locked experiment another prompt under the next number."""
    if text == locked.prompt:
        return
    locked.prompt, locked.prompt_version = text, locked.prompt_version + 1
    locked.save(update_fields=["prompt", "prompt_version"])
    note_prompt(locked, author)


def note_prompt(experiment: Experiment, author: User | None) -> None:
    """Keep the experiment's present prompt."""
    PromptVersion.objects.create(
        experiment=experiment, version=experiment.prompt_version, text=experiment.prompt, author=author
    )
