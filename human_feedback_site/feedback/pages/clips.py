"""Views at permanent clip URLs, which redirect to a newly presigned URL in the media store.

Pages use the permanent URLs, because a page may stay open longer than a presigned URL is valid.
"""

from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404

from human_feedback_site.feedback.media.store import media_store
from human_feedback_site.feedback.models import Comparison, Label, on_screen
from human_feedback_site.feedback.models.querysets import watchable_episodes
from human_feedback_site.feedback.pages.labeling import labeler_in
from human_feedback_site.feedback.pages.views import managed, managed_by, shows


@shows
def of_comparison(request: HttpRequest, name: str, uuid: UUID, side: str) -> HttpResponse:
    """Redirect a researcher to a comparison's clip; ``side`` is ``first`` or ``second``."""
    comparison = get_object_or_404(managed(request, name).comparisons, uuid=uuid)
    return _clip(comparison, comparison.first_key if side == "first" else comparison.second_key)


@shows
def of_answer(request: HttpRequest, name: str, label_uuid: UUID, side: str) -> HttpResponse:
    """Redirect a labeler to the clip that was shown on ``side`` when they answered."""
    labeler, experiment = labeler_in(request, name)
    own = Label.objects.select_related("comparison__experiment").filter(labeler=labeler)
    label = get_object_or_404(own, uuid=label_uuid, comparison__experiment=experiment)
    comparison = label.comparison
    left, right = on_screen(comparison.first_key, comparison.second_key, swapped=label.swapped)
    return _clip(comparison, left if side == "left" else right)


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


def _clip(comparison: Comparison, key: str) -> HttpResponse:
    if comparison.clips_gone:
        raise Http404("The clip is no longer available.")
    return HttpResponseRedirect(media_store().url(key))
