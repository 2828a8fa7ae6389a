"""Where the clips on the pages are: addresses that last, each of which leads to a fresh link.

Links to clips expire, and a page may be open for longer than they last.
"""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from human_feedback_site.feedback.media.store import media_store
from human_feedback_site.feedback.models import Comparison, Label
from human_feedback_site.feedback.models.querysets import watchable_episodes
from human_feedback_site.feedback.pages.labeling import labeler_in
from human_feedback_site.feedback.pages.views import managed, signed_in
from human_feedback_site.feedback.selectors.experiments import experiments_to_manage


@require_safe
@login_required
@never_cache
def of_comparison(request: HttpRequest, name: str, uuid: UUID, side: str) -> HttpResponse:
    """Lead a researcher to the ``first`` or the ``second`` clip of a comparison."""
    comparison = get_object_or_404(managed(request, name).comparisons, uuid=uuid)
    return _clip(comparison, comparison.first_key if side == "first" else comparison.second_key)


@require_safe
@login_required
@never_cache
def of_answer(request: HttpRequest, name: str, label_uuid: UUID, side: str) -> HttpResponse:
    """Lead a labeler to the clip that was on the ``left`` or the ``right`` of an answer's screen."""
    labeler, experiment = labeler_in(request, name)
    own = Label.objects.select_related("comparison__experiment").filter(labeler=labeler)
    label = get_object_or_404(own, uuid=label_uuid, comparison__experiment=experiment)
    comparison, is_first = label.comparison, (side == "left") != label.swapped
    return _clip(comparison, comparison.first_key if is_first else comparison.second_key)


@require_safe
@login_required
@never_cache
def of_episode(request: HttpRequest, name: str, step: int) -> HttpResponse:
    """Lead a researcher or a labeler to the video of a whole episode."""
    experiment = experiments_to_manage(signed_in(request)).filter(name=name).first()
    if experiment is None:
        _, experiment = labeler_in(request, name)
    episode = get_object_or_404(watchable_episodes(experiment), step=step)
    return HttpResponseRedirect(media_store().url(episode.key))


def _clip(comparison: Comparison, key: str) -> HttpResponse:
    if comparison.clips_gone:
        raise Http404("The clip is gone.")
    return HttpResponseRedirect(media_store().url(key))
