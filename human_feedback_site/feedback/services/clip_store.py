"""Whether the clips of an experiment are in the store that the settings name."""

from human_feedback_site.feedback.errors import ClipsElsewhereError
from human_feedback_site.feedback.media import media_store, name_of
from human_feedback_site.feedback.models import Comparison, Experiment


def clips_named(experiment: Experiment) -> int:
    """Count the clips and videos that the store should hold: registered, and not deleted since.

    A trainer registers none that is not there. Of comparisons that were imported only those have clips which
    labelers are shown.
    """
    comparisons, episodes = experiment.comparisons.all(), experiment.episodes.all()
    if experiment.trainer_seen_at is None:
        shown = (Comparison.Status.OPEN, Comparison.Status.GOLD)
        comparisons = comparisons.filter(status__in=shown)
    if experiment.media_deleted_at is not None:
        comparisons = comparisons.filter(created_at__gt=experiment.media_deleted_at)
        episodes = episodes.filter(created_at__gt=experiment.media_deleted_at)
    return 2 * comparisons.count() + episodes.count()


def refuse_another_store(experiment: Experiment, if_gone: str) -> None:
    """Raise :class:`ClipsElsewhereError` where the store holds none of the clips that it should hold.

    ``if_gone`` says what to do where that is right. Raises :class:`MediaStoreError` where it cannot be known.
    """
    named = clips_named(experiment)
    store = media_store()
    if named and not store.count(experiment.name, 1):
        raise ClipsElsewhereError(
            f"Expected {named:,} clips of {experiment} in {name_of(store)}, found none: name the store that "
            f"the site uses in TEACHER_STORAGE; if they are gone for good, {if_gone}."
        )
