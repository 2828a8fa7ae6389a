"""Finding and deleting an experiment's clips in the configured media store."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import or_

from django.db import transaction
from django.db.models import Count, Q, QuerySet

from human_feedback_site.feedback.errors import ClipsElsewhereError
from human_feedback_site.feedback.kinds import ITEMS, KINDS
from human_feedback_site.feedback.media.store import media_store, name_of
from human_feedback_site.feedback.models import Comparison, Experiment
from human_feedback_site.feedback.models.querysets import (
    comparisons_with_clips,
    lock_comparisons,
    watchable_episodes,
)

_CONNECTIONS = 8
_KEYS = tuple(f"{item}_key" for item in ITEMS)


def unreadable(keys: Sequence[str]) -> set[str]:
    """Return the keys of clips that can't be shown: missing from the media store, empty or too large."""
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        readable = pool.map(media_store().readable, keys)  # an exception in one cancels the rest
        return {key for key, found in zip(keys, readable, strict=True) if not found}


def note_clips(comparisons: QuerySet[Comparison]) -> None:
    """Check the media store for the comparisons' clips and update ``clips_missing``."""
    clips = {pk: {*keys} - {""} for pk, *keys in comparisons.values_list("pk", *_KEYS)}
    missing = unreadable([key for keys in clips.values() for key in keys])
    without = [pk for pk, keys in clips.items() if keys & missing]
    Comparison.objects.filter(pk__in=without).update(clips_missing=True)
    Comparison.objects.filter(pk__in=clips.keys() - set(without)).update(clips_missing=False)


def clips_named(experiment: Experiment) -> int:
    """Return the number of clips and episode videos that should be in the media store."""
    kinds = comparisons_with_clips(experiment).values_list("kind").annotate(count=Count("pk")).order_by()
    clips: int = sum(KINDS[kind].size * count for kind, count in kinds)
    return clips + watchable_episodes(experiment).count()


def delete_clips(experiment: Experiment, keys: Sequence[str]) -> None:
    """Delete one batch of clips from the media store; raise :class:`MediaStoreError` on failure.

    First sets ``clips_missing`` for every comparison that uses one of the clips. If the deletion is then
    interrupted, :func:`refuse_another_store` doesn't mistake the emptied store for the wrong one.
    """
    with transaction.atomic():
        uses_one = reduce(or_, (Q(**{f"{name}__in": keys}) for name in _KEYS))
        theirs = experiment.comparisons.filter(uses_one)
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
