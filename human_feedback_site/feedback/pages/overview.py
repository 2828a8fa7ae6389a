"""Experiment lists and comparison cards for the home page, experiment page and comparison browser."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db.models import Count, Exists, F, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models import Comparison, Experiment, Label, Outcome, Participation
from human_feedback_site.feedback.models.querysets import with_decisions
from human_feedback_site.feedback.selectors.experiments import experiments_to_label
from human_feedback_site.feedback.services.experiments import trainer_away_since

VERDICTS: Mapping[str, Promise] = {
    Outcome.FIRST: _("First is better"),
    Outcome.SECOND: _("Second is better"),
    Outcome.EQUAL: _("Equal"),
    Outcome.CANT_TELL: _("Can’t tell"),
}


CHOICES: Mapping[str, Promise] = {
    Label.Choice.LEFT: _("Left"),
    Label.Choice.RIGHT: _("Right"),
    Label.Choice.EQUAL: _("Equal"),
    Label.Choice.CANT_TELL: _("Can’t tell"),
}
_CLIPS: Mapping[str, Promise] = {Outcome.FIRST: _("first clip"), Outcome.SECOND: _("second clip")}


@dataclass(frozen=True)
class Side:
    """One clip on a comparison card."""

    url: str | None  # permanent URL of the clip, or None if the clip is no longer available
    true_return: float | None  # the segment's true return, or None if unknown
    preferred: bool  # True if the current decision prefers this clip
    left: int  # number of labelers who saw the clip on the left when they answered
    right: int  # number of labelers who saw the clip on the right when they answered


@dataclass(frozen=True)
class ShownLabel:
    """Label for display: the labeler's choice as seen on screen, and which clip was chosen."""

    label: Label
    undone: bool

    @property
    def choice(self) -> Promise:
        """Text of the labeler's choice."""
        return CHOICES[self.label.choice]

    @property
    def clip(self) -> Promise | None:
        """Text that names the chosen clip (first or second); None for "equal" and "can't tell"."""
        return _CLIPS.get(self.label.answer)


@dataclass(frozen=True)
class Card:
    """Comparison for display in lists; ``verdict`` is the current decision's text, or None if undecided."""

    comparison: Comparison
    first: Side
    second: Side
    verdict: Promise | None
    answers: Sequence[ShownLabel]


def experiment_rows(user: User, managed: QuerySet[Experiment]) -> QuerySet[Experiment]:
    """Return the experiments in ``managed`` and those that ``user`` may label, newest first.

    ``asked`` and ``answered`` count comparisons; ``given`` and ``requested`` are the user's answers under the
    current invitation.
    """
    invited = experiments_to_label(user).filter(pk=OuterRef("pk"))
    given = F("answers") - F("undone") - Coalesce("elsewhere", 0)
    own = Participation.objects.filter(labeler__user=user, experiment=OuterRef("pk"))
    return (
        Experiment.objects.annotate(
            managed=Exists(managed.filter(pk=OuterRef("pk"))), invited=Exists(invited)
        )
        .filter(Q(managed=True) | Q(invited=True))
        .annotate(
            asked=Count("comparisons", filter=~Q(comparisons__status=Comparison.Status.CANCELLED)),
            answered=Count("comparisons", filter=Q(comparisons__n_labels__gt=0)),
            away_since=trainer_away_since(),
            given=Subquery(own.values(given=given)),
            requested=Subquery(own.values("invite__answers_wanted")),
        )
        .order_by("-pk")
    )


def comparisons_to_list(experiment: Experiment) -> QuerySet[Comparison]:
    """Return the comparisons, newest first, with labels; ``practice`` is None if they aren't examples."""
    examples = experiment.examples.filter(comparison=OuterRef("pk")).values("practice")[:1]
    return with_labels(experiment.comparisons.annotate(practice=Subquery(examples)).order_by("-pk"))


def with_labels(comparisons: QuerySet[Comparison]) -> QuerySet[Comparison]:
    """Annotate comparisons with their current decision and prefetch all labels, including undone ones."""
    labels = Label.objects.select_related("labeler", "undo__retracted_by").order_by("pk")
    return with_decisions(comparisons).prefetch_related(Prefetch("labels", queryset=labels))


def comparison_card(experiment: Experiment, comparison: Comparison) -> Card:
    """Return the card for ``comparison``, which must come from a :func:`with_labels` queryset."""
    decision: str | None = comparison.decision  # type: ignore[attr-defined]  # annotated by the query
    first_url, second_url = (
        None if comparison.clips_gone else reverse(f"{side}-clip", args=[experiment.name, comparison.uuid])
        for side in ("first", "second")
    )
    labels = list(comparison.labels.all())
    straight = len({label.labeler_id for label in labels if not label.swapped})
    swapped = len({label.labeler_id for label in labels if label.swapped})
    return Card(
        comparison=comparison,
        first=Side(first_url, comparison.first_return, decision == Outcome.FIRST, straight, swapped),
        second=Side(second_url, comparison.second_return, decision == Outcome.SECOND, swapped, straight),
        verdict=VERDICTS[decision] if decision else None,
        answers=[ShownLabel(each, hasattr(each, "undo")) for each in labels],
    )
