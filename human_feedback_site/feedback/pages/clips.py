"""Views at permanent clip URLs, which redirect to a newly presigned URL in the media store.

Pages use the permanent URLs, because a page may stay open longer than a presigned URL is valid.
"""

from collections.abc import Sequence
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404

from human_feedback_site.feedback.kinds import ITEMS, on_screen
from human_feedback_site.feedback.media.store import media_store
from human_feedback_site.feedback.models import Comparison, Label
from human_feedback_site.feedback.models.querysets import watchable_episodes
from human_feedback_site.feedback.pages.labeling import labeler_in
from human_feedback_site.feedback.pages.views import managed, managed_by, shows


@shows
def of_comparison(request: HttpRequest, name: str, uuid: UUID, item: str) -> HttpResponse:
    """Redirect a researcher to the clip of one of a comparison's ``ITEMS``."""
    comparison = get_object_or_404(managed(request, name).comparisons, uuid=uuid)
    return _clip(comparison, comparison.keys, ITEMS.index(item))


@shows
def of_answer(request: HttpRequest, name: str, label_uuid: UUID, place: int) -> HttpResponse:
    """Redirect a labeler to the clip that was shown in a place, counted from 1, when they answered."""
    labeler, experiment = labeler_in(request, name)
    own = Label.objects.select_related("comparison__experiment").filter(labeler=labeler)
    label = get_object_or_404(own, uuid=label_uuid, comparison__experiment=experiment)
    keys = on_screen(label.comparison.keys, swapped=label.swapped)
    return _clip(label.comparison, keys, place - 1)


@shows
def of_episode(request: HttpRequest, name: str, step: int) -> HttpResponse:
    """Redirect to the video of an episode; labelers get 404 if the experiment hides videos from them."""
    experiment = managed_by(request).filter(name=name).first()
    if experiment is None:
        _, experiment = labeler_in(request, name)
        if not experiment.show_episodes:
            raise Http404("This experiment does not show videos of episodes.")
    episode = get_object_or_404(watchable_episodes(experiment), step=step)
    return HttpResponseRedirect(media_store().url(episode.key))


def _clip(comparison: Comparison, keys: Sequence[str], index: int) -> HttpResponse:
    if comparison.clips_gone or not 0 <= index < len(keys):
        raise Http404("There is no such clip, or it is no longer available.")
    return HttpResponseRedirect(media_store().url(keys[index]))
