"""What a researcher does with a comparison's card: use it as an example, or no longer."""

from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.models import Example, Outcome
from human_feedback_site.feedback.pages.views import managed, message
from human_feedback_site.feedback.services.examples import NewExample, remove_example, use_as_example


class LessonForm(forms.Form):
    """What the pair teaches."""

    better = forms.ChoiceField(choices=Outcome.choices)
    explanation = forms.CharField(max_length=Example.MAX_EXPLANATION, required=False)
    practice = forms.BooleanField(required=False)


@require_POST
@login_required
@never_cache
def use(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Show labelers a comparison as an example, or ask it for practice."""
    experiment = managed(request, name)
    form = LessonForm(request.POST)
    if not form.is_valid():
        text = _("Choose its answer, and explain it in at most 500 letters.")
        return message(request, 400, _("This cannot be an example"), text)
    try:
        use_as_example(experiment, uuid, NewExample(**form.cleaned_data))
    except NotFoundError as error:
        raise Http404 from error
    except ConflictError:
        text = _("Its clips are gone, or it is there to find out who does not look.")
        return message(request, 409, _("This cannot be an example"), text)
    return _back_to_card(request, name, uuid)


@require_POST
@login_required
@never_cache
def remove(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Show labelers a comparison as an example no longer."""
    remove_example(managed(request, name), uuid)
    return _back_to_card(request, name, uuid)


def _back_to_card(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    page = urlencode({"page": request.POST.get("page", "1")})
    return redirect(f"{reverse('experiment', args=[name])}?{page}#comparison-{uuid}")
