"""Finding and deleting an experiment's clips in the configured media store."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from django.db import transaction
from django.db.models import Q, QuerySet

from human_feedback_site.feedback.errors import ClipsElsewhereError
from human_feedback_site.feedback.media.store import media_store, name_of
from human_feedback_site.feedback.models import Comparison, Experiment
from human_feedback_site.feedback.models.querysets import (
    comparisons_with_clips,
    lock_comparisons,
    watchable_episodes,
)

_CONNECTIONS = 8


def unreadable(keys: Sequence[str]) -> set[str]:
    """Return the keys of clips that can't be shown: missing from the media store, empty or too large."""
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        readable = pool.map(media_store().readable, keys)  # an exception in one cancels the rest
        return {key for key, found in zip(keys, readable, strict=True) if not found}


def note_clips(comparisons: QuerySet[Comparison]) -> None:
    """Check the media store for the comparisons' clips and update ``clips_missing``."""
    pairs = {
        pk: {first, second} for pk, first, second in comparisons.values_list("pk", "first_key", "second_key")
    }
    missing = unreadable([key for pair in pairs.values() for key in pair])
    without = [pk for pk, pair in pairs.items() if pair & missing]
    Comparison.objects.filter(pk__in=without).update(clips_missing=True)
    Comparison.objects.filter(pk__in=pairs.keys() - set(without)).update(clips_missing=False)


def clips_named(experiment: Experiment) -> int:
    """Return the number of clips and episode videos that should be in the media store."""
    return 2 * comparisons_with_clips(experiment).count() + watchable_episodes(experiment).count()


def delete_clips(experiment: Experiment, keys: Sequence[str]) -> None:
    """Delete one batch of clips from the media store; raise :class:`MediaStoreError` on failure.

    First sets ``clips_missing`` for every comparison that uses one of the clips. If the deletion is then
    interrupted, :func:`refuse_another_store` doesn't mistake the emptied store for the wrong one.
    """
    with transaction.atomic():
        theirs = experiment.comparisons.filter(Q(first_key__in=keys) | Q(second_key__in=keys))
        lock_comparisons(theirs)
        theirs.update(clips_missing=True)
    media_store().delete(keys)


def refuse_another_store(experiment: Experiment, if_gone: str) -> None:
    """Raise :class:`ClipsElsewhereError` if the media store has none of the experiment's clips.

    The message ends with ``if_gone``, which says what to do if the clips are permanently gone. Raises
    :class:`MediaStoreError` if the store can't be read.
    """
    store = media_store()
    if comparisons_with_clips(experiment).exists() and not store.count(experiment.name, 1):
        named = clips_named(experiment)
        raise ClipsElsewhereError(
            f"Expected {named:,} clips of {experiment} in {name_of(store)}, but found none: set "
            f"TEACHER_STORAGE to the store that the site uses; if the clips are gone for good, {if_gone}."
        )
