"""The comparison browser: any comparison of an experiment, and what researchers ask of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, cast
from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.core.validators import RegexValidator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from human_feedback_site.feedback.models import Comparison, Experiment, Labeler
from human_feedback_site.feedback.pages.overview import VERDICTS, ShownLabel, comparison_card, with_labels
from human_feedback_site.feedback.pages.views import managed, message
from human_feedback_site.feedback.selectors import browse
from human_feedback_site.feedback.services import moderation
from human_feedback_site.feedback.tables.files import has_parquet
from human_feedback_site.feedback.templatetags.directions import isolated

if TYPE_CHECKING:  # it is generic for type checkers alone
    ModelChoiceField: TypeAlias = forms.ModelChoiceField[Labeler]
else:
    ModelChoiceField = forms.ModelChoiceField

COMPARISONS_PER_PAGE = 20
_BIGGEST = 2**63 - 1
_ANY = ("", _("any"))
_STATES: Mapping[str, Promise] = {
    "waiting": _("waiting for labels"),
    "leased": _("on somebody’s screen"),
    "answered": _("has all its labels"),
    "decided": _("decided"),
    "cancelled": _("cancelled"),
    "gold": _("answer is known"),
}
_ORDERS: Mapping[str, Promise] = {
    "newest": _("newest first"),
    "oldest": _("oldest first"),
    "priority": _("highest priority first"),
    "labels": _("most labels first"),
}


class LabelerField(ModelChoiceField):
    """A choice among labelers by name."""

    def label_from_instance(self, labeler: Labeler) -> str:
        """Return the name, whose direction is its own: an option holds no elements."""
        return isolated(labeler.name)


class FilterForm(forms.Form):
    """What the address asks for; :meth:`filters` leaves out what makes no sense."""

    state = forms.ChoiceField(label=_("State"), required=False, choices=[_ANY, *_STATES.items()])
    decision = forms.ChoiceField(
        label=_("Decision"), required=False, choices=[_ANY, *VERDICTS.items(), (browse.NOTHING, _("none"))]
    )
    labeler = LabelerField(
        label=_("Labeler"), required=False, queryset=Labeler.objects.none(), empty_label=_("any")
    )
    since = forms.IntegerField(label=_("Since step"), required=False, min_value=0, max_value=_BIGGEST)
    text = forms.CharField(
        label=_("UUID begins with"),
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

    def filters(self) -> browse.Filters:
        """Return what was asked for and can be understood."""
        self.is_valid()
        return browse.Filters(**{name: value for name, value in self.cleaned_data.items() if value})


@require_safe
@login_required
@never_cache
def comparisons(request: HttpRequest, name: str) -> HttpResponse:
    """List the comparisons of an experiment that match what is asked for."""
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


@require_safe
@login_required
@never_cache
def comparison(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Show one comparison with all that happened to it."""
    experiment = managed(request, name)
    found = get_object_or_404(with_labels(experiment.comparisons.filter(uuid=uuid)))
    events = [(event, _said(event)) for event in browse.history(found)]
    context = {
        "experiment": experiment,
        "comparison": found,
        "card": comparison_card(experiment, found),
        "events": events,
        "known": VERDICTS.get(found.gold or ""),
    }
    return render(request, "pages/comparison_detail.html", context)


def _said(event: browse.Event) -> ShownLabel | Promise | None:
    """Return what a labeler chose on the screen, or what was decided."""
    if event.kind in {"label", "undo"}:
        return ShownLabel(event.row, undone=event.kind == "undo")
    return VERDICTS.get(event.outcome or "")


@require_POST
@login_required
@never_cache
def act(request: HttpRequest, name: str, uuid: UUID) -> HttpResponse:
    """Ask for one label more of a comparison, for no more, or for labels again."""
    experiment = managed(request, name)
    chosen = experiment.comparisons.filter(uuid=uuid)
    if not chosen.exists():
        raise Http404
    action = _ACTIONS.get(request.POST.get("action", ""))
    if action is None:
        return message(request, 400, str(_("This cannot be done")), str(_("There is no such action.")))
    if not action(chosen):
        text = _("It is not in the state for it any more, or its clips are gone.")
        return message(request, 409, str(_("This cannot be done")), str(text))
    return redirect("comparison", name, uuid)


_ACTIONS = {
    "relabel": moderation.request_label,
    "cancel": moderation.close,
    "reopen": moderation.reopen,
}
