"""Experiment lists and comparison cards for the home page, experiment page and comparison browser."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.db.models import Count, Exists, F, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils.functional import Promise

from human_feedback_site.feedback.kinds import ITEMS, Kind
from human_feedback_site.feedback.models import Comparison, Experiment, Label, Participation, PredictedRewards
from human_feedback_site.feedback.models.querysets import with_decisions
from human_feedback_site.feedback.pages.charts import sparkline
from human_feedback_site.feedback.selectors.experiments import experiments_to_label
from human_feedback_site.feedback.services.experiments import trainer_away_since


@dataclass(frozen=True)
class ShownItem:
    """One clip on a comparison card."""

    name: Promise | str
    url: str | None  # permanent URL of the clip, or None if the clip is no longer available
    true_return: float | None  # the segment's true return, or None if unknown
    preferred: bool  # True if the current decision prefers this clip
    # numbers of labelers who saw the clip in each place of the screen; None if there are not two clips
    sides: tuple[int, int] | None
    curve: str  # SVG path of the predicted rewards, on the scale of all clips; empty if not shown


@dataclass(frozen=True)
class ShownLabel:
    """Label for display.

    For two clips, this is the labeler's choice as seen on screen, and which clip was chosen. For other kinds,
    it is the answer, because clips are numbered in the same way here and on the screen.
    """

    label: Label
    undone: bool
    kind: Kind

    @property
    def choice(self) -> Promise | str:
        """Text of the labeler's choice."""
        if self.kind.size == 2:
            return self.kind.choices[self.label.choice]
        return self.kind.answers[self.label.answer]

    @property
    def clip(self) -> Promise | str | None:
        """Name of the better one of two clips; None if neither is."""
        best = self.kind.best_of(self.label.answer) if self.kind.size == 2 else None
        return None if best is None else self.kind.item_names[best]


@dataclass(frozen=True)
class Card:
    """Comparison for display in lists; ``verdict`` is the current decision's text, or None if undecided."""

    comparison: Comparison
    items: Sequence[ShownItem]
    verdict: Promise | str | None
    answers: Sequence[ShownLabel]
    predicted_at: int | None  # training step of the reward predictor; None if it is not shown


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
    return with_decisions(comparisons.select_related("predicted")).prefetch_related(
        Prefetch("labels", queryset=labels)
    )


def comparison_card(experiment: Experiment, comparison: Comparison) -> Card:
    """Return the card for ``comparison``, which must come from a :func:`with_labels` queryset."""
    decision: str | None = comparison.decision  # type: ignore[attr-defined]  # annotated by the query
    kind = comparison.question
    labels = list(comparison.labels.all())
    straight = len({label.labeler_id for label in labels if not label.swapped})
    swapped = len({label.labeler_id for label in labels if label.swapped})
    sides = [(straight, swapped), (swapped, straight)] if kind.size == 2 else [None] * kind.size
    best = kind.best_of(decision) if decision else None
    urls = [
        None if comparison.clips_gone else reverse(f"{item}-clip", args=[experiment.name, comparison.uuid])
        for item in ITEMS[: kind.size]
    ]
    predicted = _predicted(comparison)
    curves = [""] * kind.size
    if predicted:
        values = [value for item in predicted.items for value in item]
        curves = [sparkline(item, min(values), max(values)) for item in predicted.items]
    described = zip(kind.item_names, urls, comparison.returns, sides, curves, strict=True)
    return Card(
        comparison=comparison,
        items=[
            ShownItem(name, url, value, best == index, seen, curve)
            for index, (name, url, value, seen, curve) in enumerate(described)
        ],
        verdict=kind.answers[decision] if decision else None,
        answers=[ShownLabel(each, hasattr(each, "undo"), kind) for each in labels],
        predicted_at=predicted.step if predicted else None,
    )


def _predicted(comparison: Comparison) -> PredictedRewards | None:
    """Return the predicted rewards, but not of an open comparison, which the researcher may yet judge."""
    is_open = comparison.status == Comparison.Status.OPEN
    return None if is_open else getattr(comparison, "predicted", None)
