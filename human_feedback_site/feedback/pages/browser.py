"""Comparison browser: pages that filter, show and manage an experiment's comparisons."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, TypeAlias, cast
from uuid import UUID

from django import forms
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.kinds import Kind
from human_feedback_site.feedback.models import Comparison, Experiment, Labeler
from human_feedback_site.feedback.models.querysets import kinds_in
from human_feedback_site.feedback.pages.overview import ShownLabel, comparison_card, with_labels
from human_feedback_site.feedback.pages.views import (
    account_key,
    acts,
    managed,
    message,
    shows,
    signed_in,
)
from human_feedback_site.feedback.selectors import browse
from human_feedback_site.feedback.services import moderation
from human_feedback_site.feedback.tables.files import has_parquet
from human_feedback_site.feedback.templatetags.directions import isolated

if TYPE_CHECKING:  # generic only in the type stubs
    ModelChoiceField: TypeAlias = forms.ModelChoiceField[Labeler]
else:
    ModelChoiceField = forms.ModelChoiceField

COMPARISONS_PER_PAGE = 20
_BIGGEST = 2**63 - 1
_ANY = ("", _("any"))
_STATES: Mapping[str, Promise] = {
    "waiting": _("waiting for labels"),
    "leased": _("assigned to a labeler"),
    "answered": _("fully labeled"),
    "decided": _("decided"),
    "cancelled": _("cancelled"),
    "gold": _("attention check"),
}
_ORDERS: Mapping[str, Promise] = {
    "newest": _("newest first"),
    "oldest": _("oldest first"),
    "priority": _("highest priority first"),
    "labels": _("most labels first"),
}


class LabelerField(ModelChoiceField):
    """Form field for choosing a labeler by name."""

    def label_from_instance(self, labeler: Labeler) -> str:
        """Return the labeler's name; a right-to-left name is wrapped in Unicode directional isolates.

        A ``<bdi>`` element can't be used here, because an HTML ``<option>`` can contain only text.
        """
        return isolated(labeler.name)


class FilterForm(forms.Form):
    """Form that filters the comparison list, filled in from the query string."""

    state = forms.ChoiceField(label=_("State"), required=False, choices=[_ANY, *_STATES.items()])
    decision = forms.ChoiceField(label=_("Decision"), required=False)
    labeler = LabelerField(
        label=_("Labeler"), required=False, queryset=Labeler.objects.none(), empty_label=_("any")
    )
    since = forms.IntegerField(label=_("From step"), required=False, min_value=0, max_value=_BIGGEST)
    text = forms.CharField(
        label=_("UUID starts with"),
        required=False,
        max_length=36,
        validators=[
            RegexValidator(
                rf"\A{browse.BEGINS_A_UUID.pattern}\Z", _("Use digits, letters a to f, and hyphens.")
            )
        ],
    )
    order = forms.ChoiceField(label=_("Order"), required=False, choices=list(_ORDERS.items()))
    disagreement = forms.BooleanField(label=_("Labelers disagree"), required=False)

    def __init__(self, experiment: Experiment, request: HttpRequest) -> None:
        super().__init__(request.GET, auto_id="filter-%s")
        labelers = Labeler.objects.filter(participations__experiment=experiment).order_by("name", "pk")
        self.fields["labeler"].queryset = labelers  # type: ignore[attr-defined]
        answers = {key: text for kind in kinds_in(experiment) for key, text in kind.answers.items()}
        choices = [_ANY, *answers.items(), (browse.NOTHING, _("none"))]
        self.fields["decision"].choices = choices  # type: ignore[attr-defined]

    def filters(self) -> browse.Filters:
        """Return the filters to apply, leaving out empty and invalid ones."""
        self.is_valid()
        return browse.Filters(**{name: value for name, value in self.cleaned_data.items() if value})


@shows
def comparisons(request: HttpRequest, name: str) -> HttpResponse:
    """List the experiment's comparisons that match the filters in the query string."""
    experiment = managed(request, name)
    form = FilterForm(experiment, request)
    filters = form.filters()
    matching = browse.Matching(experiment, filters)
    paginator = Paginator(cast("QuerySet[Comparison]", matching), COMPARISONS_PER_PAGE)
    page = paginator.get_page(request.GET.get("page"))
    context = {
        "experiment": experiment,
        "form": form,
        "filtered": filters != browse.Filters(order=filters.order),
        "page": page,
        "more": matching.more,
        "cards": [comparison_card(experiment, each) for each in with_labels(matching.on(page))],
        "extensions": ["csv", "parquet"] if has_parquet() else ["csv"],
    }
    return render(request, "pages/comparisons.html", context)


@shows
def review(request: HttpRequest, name: str) -> HttpResponse:
    """Show one of the comparisons that match the filters in the query string, to be judged by a researcher.

    The oldest comes first by default, so that new ones don't shift those before.
    """
    experiment = managed(request, name)
    filters = FilterForm(experiment, request).filters()
    if not request.GET.get("order"):
        filters = replace(filters, order="oldest")
    matching = browse.Matching(experiment, filters)
    page = Paginator(cast("QuerySet[Comparison]", matching), 1).get_page(request.GET.get("page"))
    found = next(iter(with_labels(matching.on(page)).select_related("settled_by")), None)
    context = {"experiment": experiment, "page": page, "more": matching.more, "comparison": found}
    if found is not None:
        context |= {
            "card": comparison_card(experiment, found),
            "why": _why(found),
            "answers": f"pages/kinds/{found.kind}.html",
            "kind": found.question,
            "revealed": found.clips_gone or found.settled is not None,
            "settles": found.status in {Comparison.Status.OPEN, Comparison.Status.ANSWERED},
            "query": request.GET.urlencode(),
            "review": {
                "account": account_key(signed_in(request)),
                "kind": found.kind,
                "fps": experiment.fps,
            },
        }
    return render(request, "pages/review.html", context)


def _why(comparison: Comparison) -> Mapping[str, str]:
    """Return why a comparison was asked, and the numbers of models that preferred its clips, if known."""
    reason, *counts = comparison.reason.split(":")
    to = str(_("{one} to {other}"))
    shown = [each for each in counts if int(each)]
    joined = reduce(lambda one, other: to.format(one=one, other=other), shown) if shown else ""
    return {"reason": reason, "counts": joined if len(shown) > 1 else ""}


@shows
def comparison(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Show one comparison with its clips and full history."""
    experiment = managed(request, name)
    found = get_object_or_404(with_labels(experiment.comparisons.filter(uuid=uuid)))
    events = [(event, _content_of(event, found.question)) for event in browse.history(found)]
    context = {
        "experiment": experiment,
        "comparison": found,
        "card": comparison_card(experiment, found),
        "events": events,
        "known": found.question.answers.get(found.gold or ""),
        "why": _why(found),
    }
    return render(request, "pages/comparison_detail.html", context)


def _content_of(event: browse.Event, kind: Kind) -> ShownLabel | Promise | str | None:
    """Return the label of a label or undo event, or the text of a decision event."""
    if event.kind in {"label", "undo"}:
        return ShownLabel(event.row, event.kind == "undo", kind)
    return kind.answers.get(event.outcome or "")


@acts
def act(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Label a comparison again, close, reopen or settle it; status 409 if its state forbids that."""
    experiment = managed(request, name)
    chosen = experiment.comparisons.filter(uuid=uuid)
    if not chosen.exists():
        raise Http404
    action = _ACTIONS.get(request.POST.get("action", ""))
    if request.POST.get("action") == "settle":
        action = partial(_settle, choice=request.POST.get("choice", ""), researcher=signed_in(request))
    if action is None:
        return message(request, 400, _("That action isn’t possible"), _("Unknown action."))
    if not action(chosen):
        text = _("The comparison’s status has changed, or its clips are no longer available.")
        return message(request, 409, _("That action isn’t possible"), text)
    if "review" in request.POST:
        query = QueryDict(request.POST["review"]).urlencode()
        return redirect(f"{reverse('review', args=[name])}?{query}")
    return redirect("comparison", name, uuid)


def _settle(chosen: QuerySet[Comparison], choice: str, researcher: User) -> int:
    """Settle a comparison by a choice on a screen with its clips in order."""
    kind = chosen.get().question
    if choice not in kind.choices:
        return 0
    return moderation.settle(chosen, kind.meaning_of(choice, swapped=False), researcher)


_ACTIONS: Mapping[str, Callable[[QuerySet[Comparison]], int]] = {
    "unsettle": moderation.unsettle,
    "relabel": moderation.request_label,
    "cancel": moderation.close,
    "reopen": moderation.reopen,
}
