"""What the home page and the experiment page list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db.models import Count, Exists, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models import Comparison, Experiment, Label, Outcome
from human_feedback_site.feedback.models.querysets import with_decisions
from human_feedback_site.feedback.selectors.experiments import experiments_to_label, experiments_to_manage

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
    """One clip of a comparison: a link unless gone, its true return if known, whether it is preferred.

    ``left`` and ``right`` count the labelers who saw it there when they answered.
    """

    url: str | None
    true_return: float | None
    preferred: bool
    left: int
    right: int


@dataclass(frozen=True)
class ShownLabel:
    """A label as it was given on the screen, and which clip that was, if it was one."""

    label: Label
    undone: bool

    @property
    def choice(self) -> Promise:
        """What the labeler chose."""
        return CHOICES[self.label.choice]

    @property
    def clip(self) -> Promise | None:
        """The clip that was there."""
        return _CLIPS.get(self.label.verdict)


@dataclass(frozen=True)
class Card:
    """A comparison as the experiment page shows it; ``verdict`` is None while nothing is decided."""

    comparison: Comparison
    first: Side
    second: Side
    verdict: Promise | None
    answers: Sequence[ShownLabel]


def experiment_rows(user: User) -> QuerySet[Experiment]:
    """Return the experiments ``user`` manages or may label, newest first.

    Each has the numbers of its comparisons ``asked`` and ``answered``; ``managed`` and ``invited`` say what
    the user may do with it.
    """
    managed = experiments_to_manage(user).filter(pk=OuterRef("pk"))
    invited = experiments_to_label(user).filter(pk=OuterRef("pk"))
    return (
        Experiment.objects.annotate(managed=Exists(managed), invited=Exists(invited))
        .filter(Q(managed=True) | Q(invited=True))
        .annotate(
            asked=Count("comparisons", filter=~Q(comparisons__status=Comparison.Status.CANCELLED)),
            answered=Count("comparisons", filter=Q(comparisons__n_labels__gt=0)),
        )
        .order_by("-pk")
    )


def comparisons_to_list(experiment: Experiment) -> QuerySet[Comparison]:
    """Return the experiment's comparisons, newest first, with their decision and every label ever given.

    ``practice`` says whether it is asked for practice, where it is an example; else it is None.
    """
    examples = experiment.examples.filter(comparison=OuterRef("pk")).values("practice")[:1]
    return with_labels(experiment.comparisons.annotate(practice=Subquery(examples)).order_by("-pk"))


def with_labels(comparisons: QuerySet[Comparison]) -> QuerySet[Comparison]:
    """Return comparisons with their decision and every label ever given."""
    labels = Label.objects.select_related("labeler", "undo__retracted_by").order_by("pk")
    return with_decisions(comparisons).prefetch_related(Prefetch("labels", queryset=labels))


def comparison_card(experiment: Experiment, comparison: Comparison) -> Card:
    """Return one of an experiment's comparisons as it is shown; they are read by :func:`with_labels`."""
    decision: str | None = comparison.decision  # type: ignore[attr-defined]  # added by the query
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
