"""Views that start or stop using a comparison as an example for labelers."""

from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from human_feedback_site.feedback.errors import ConflictError, NotFoundError
from human_feedback_site.feedback.models import Example, Outcome
from human_feedback_site.feedback.pages.views import first_error, managed, message
from human_feedback_site.feedback.services.examples import NewExample, remove_example, use_as_example


class LessonForm(forms.Form):
    """Form for an example: the correct answer, an explanation, and a checkbox for practice pairs."""

    better = forms.ChoiceField(
        choices=Outcome.choices,
        error_messages=dict.fromkeys(("required", "invalid_choice"), _("Choose the correct answer.")),
    )
    explanation = forms.CharField(
        max_length=Example.MAX_EXPLANATION,
        required=False,
        error_messages={
            "max_length": _("The explanation must not be longer than %(limit_value)d characters."),
        },
    )
    practice = forms.BooleanField(required=False)


@require_POST
@login_required
@never_cache
def use(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Use a comparison as an example for labelers, or as a practice pair."""
    experiment = managed(request, name)
    form = LessonForm(request.POST)
    if not form.is_valid():
        return message(request, 400, _("This comparison can’t be used as an example"), first_error(form))
    try:
        use_as_example(experiment, uuid, NewExample(**form.cleaned_data))
    except NotFoundError as error:
        raise Http404 from error
    except ConflictError:
        text = _("Its clips are no longer available, or it is used as an attention check.")
        return message(request, 409, _("This comparison can’t be used as an example"), text)
    return _back_to_card(request, name, uuid)


@require_POST
@login_required
@never_cache
def remove(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Stop using a comparison as an example."""
    remove_example(managed(request, name), uuid)
    return _back_to_card(request, name, uuid)


def _back_to_card(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    page = urlencode({"page": request.POST.get("page", "1")})
    return redirect(f"{reverse('experiment', args=[name])}?{page}#comparison-{uuid}")
