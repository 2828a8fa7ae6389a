"""Whether the clips of an experiment are in the store that the settings name."""

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
    """Return the keys of what cannot be shown as a clip: it is not in the media store, empty or too large."""
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        readable = pool.map(media_store().readable, keys)  # cancels the rest where one fails
        return {key for key, found in zip(keys, readable, strict=True) if not found}


def note_clips(comparisons: QuerySet[Comparison]) -> None:
    """Look which comparisons have their clips in the store now; raises :class:`MediaStoreError`."""
    pairs = {
        pk: {first, second} for pk, first, second in comparisons.values_list("pk", "first_key", "second_key")
    }
    missing = unreadable([key for pair in pairs.values() for key in pair])
    without = [pk for pk, pair in pairs.items() if pair & missing]
    Comparison.objects.filter(pk__in=without).update(clips_missing=True)
    Comparison.objects.filter(pk__in=pairs.keys() - set(without)).update(clips_missing=False)


def clips_named(experiment: Experiment) -> int:
    """Count the clips and videos that the store should hold: registered or found, and not deleted since.

    A trainer registers none that is not there.
    """
    return 2 * comparisons_with_clips(experiment).count() + watchable_episodes(experiment).count()


def delete_clips(experiment: Experiment, keys: Sequence[str]) -> None:
    """Delete clips from the store, up to as many as it takes at once; raises :class:`MediaStoreError`.

    It is noted first which comparisons have none any more: where the rest is interrupted, an empty store is
    no other store.
    """
    with transaction.atomic():
        theirs = experiment.comparisons.filter(Q(first_key__in=keys) | Q(second_key__in=keys))
        lock_comparisons(theirs)
        theirs.update(clips_missing=True)
    media_store().delete(keys)


def refuse_another_store(experiment: Experiment, if_gone: str) -> None:
    """Raise :class:`ClipsElsewhereError` where the store holds none of the clips that it should hold.

    ``if_gone`` says what to do where that is right. Raises :class:`MediaStoreError` where it cannot be known.
    """
    store = media_store()
    if comparisons_with_clips(experiment).exists() and not store.count(experiment.name, 1):
        named = clips_named(experiment)
        raise ClipsElsewhereError(
            f"Expected {named:,} clips of {experiment} in {name_of(store)}, found none: name the store that "
            f"the site uses in TEACHER_STORAGE; if they are gone for good, {if_gone}."
        )
