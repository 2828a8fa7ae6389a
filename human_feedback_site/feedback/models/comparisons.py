"""Comparisons, and the examples that explain a prompt to labelers."""

from collections.abc import Sequence

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from human_feedback_site.feedback.kinds import ITEMS, KINDS, PAIR, Kind, answers_of_all
from human_feedback_site.feedback.models.experiments import Experiment

REASON = r"\A(random|attention_check|disagreement(:[0-9]{1,4}){0,4})?\Z"


def answer_choices() -> list[tuple[str, str]]:
    """Return the answers to questions of all kinds, as a field's choices."""
    return [(answer, answer) for answer in answers_of_all()]


def kind_choices() -> list[tuple[str, str]]:
    """Return the kinds of questions, as a field's choices."""
    return [(kind, kind) for kind in KINDS]


class Comparison(models.Model):
    """A question about one to four clips, in most experiments about a pair of them."""

    class Phase(models.TextChoices):
        """Source of the segments: random actions (pretraining) or the policy being trained."""

        PRETRAINING = "pretraining"
        TRAINING = "training"

    class Status(models.TextChoices):
        """Labeling status of a comparison; only ``OPEN`` comparisons still need labels."""

        OPEN = "open"
        ANSWERED = "answered"
        CANCELLED = "cancelled"
        GOLD = "gold"  # an attention check, whose answer is known

    uuid = models.UUIDField(unique=True)
    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="comparisons")
    kind = models.CharField(max_length=10, choices=kind_choices, default=PAIR.name, db_default=PAIR.name)
    phase = models.CharField(max_length=12, choices=Phase.choices)
    step = models.PositiveBigIntegerField(
        help_text="Total environment steps taken when the comparison was requested."
    )
    priority = models.IntegerField(help_text="Comparisons with a higher priority are shown first.")
    # The kind says how many clips there are. The other keys are empty.
    first_key = models.CharField(max_length=300)
    second_key = models.CharField(max_length=300, blank=True)
    third_key = models.CharField(max_length=300, blank=True, default="", db_default="")
    fourth_key = models.CharField(max_length=300, blank=True, default="", db_default="")
    # For researchers only: never sent to a labeler's browser.
    first_return = models.FloatField(null=True, blank=True, verbose_name="true return of the first clip")
    second_return = models.FloatField(null=True, blank=True, verbose_name="true return of the second clip")
    third_return = models.FloatField(null=True, blank=True, verbose_name="true return of the third clip")
    fourth_return = models.FloatField(null=True, blank=True, verbose_name="true return of the fourth clip")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.OPEN)
    gold = models.CharField(
        max_length=20,
        choices=answer_choices,
        null=True,
        blank=True,
        help_text="Known answer, if this is an attention check. Labelers can't tell that it is one.",
    )
    # For researchers only, as the true returns are.
    reason = models.CharField(
        max_length=40,
        blank=True,
        default="",
        db_default="",
        validators=[RegexValidator(REASON)],
        help_text="Why the trainer asked: random, attention_check, or disagreement:5:5 with the number of "
        "reward models that prefer each answer. Empty if not known.",
    )
    disputed = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Fewer than two thirds of the reward models agreed. People answer before models.",
    )
    settled = models.CharField(
        max_length=20,
        choices=answer_choices,
        null=True,
        blank=True,
        help_text="A researcher's own answer, which is the decision whatever labelers answer.",
    )
    settled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", editable=False
    )
    wanted = models.PositiveSmallIntegerField(default=1, help_text="Number of labels requested.")
    n_labels = models.PositiveSmallIntegerField(
        default=0, help_text="Number of counted labels. Updated only while the row is locked."
    )
    # Unused; processes of 0.1.0 need the columns.
    score_first = models.FloatField(default=0.0)
    score_equal = models.FloatField(default=0.0)
    score_second = models.FloatField(default=0.0)
    clips_missing = models.BooleanField(
        db_default=False,
        editable=False,
        help_text="The comparison was imported, but its clips were not in the media store.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (
            # The order in which open comparisons are given to labelers.
            models.Index(
                "experiment",
                F("priority").desc(),
                F("n_labels").desc(),
                F("id").desc(),
                name="comparison_queue",
                condition=Q(status="open"),
            ),
            models.Index(fields=("experiment",), name="comparison_gold", condition=Q(status="gold")),
            # Comparisons without labels, newest first.
            models.Index(fields=("experiment", "id"), name="comparison_unlabeled", condition=Q(n_labels=0)),
            # Sort orders of the comparison browser.
            models.Index("experiment", F("priority").desc(), F("id").desc(), name="comparison_by_priority"),
            models.Index("experiment", F("n_labels").desc(), F("id").desc(), name="comparison_by_labels"),
        )

    def __str__(self) -> str:
        return str(self.uuid)

    @property
    def question(self) -> Kind:
        """Return the kind of question."""
        return KINDS[self.kind]

    @property
    def keys(self) -> Sequence[str]:
        """Return the clips' keys in the media store, in order."""
        return [getattr(self, f"{item}_key") for item in ITEMS[: self.question.size]]

    @property
    def returns(self) -> Sequence[float | None]:
        """Return the clips' true returns, in order; None if not known."""
        return [getattr(self, f"{item}_return") for item in ITEMS[: self.question.size]]

    def is_left_to_models(self, share: float) -> bool:
        """Return True if a model may decide it without people, as the queue's SQL says for many."""
        return share >= 1 or (not self.disputed and self.pk * 7919 % 1009 < 1009 * share)

    @property
    def clips_gone(self) -> bool:
        """Return True if the clips were missing at import or have been deleted since."""
        deleted_at = self.experiment.media_deleted_at
        return self.clips_missing or (deleted_at is not None and self.created_at <= deleted_at)


class PredictedRewards(models.Model):
    """Rewards that the reward predictor predicts for a comparison's clips; for researchers only."""

    comparison = models.OneToOneField(Comparison, models.CASCADE, primary_key=True, related_name="predicted")
    step = models.PositiveBigIntegerField(help_text="Total environment steps taken at the prediction.")
    items = models.JSONField(help_text="For each clip, a curve of its rewards.")

    def __str__(self) -> str:
        return str(self.comparison)


class Example(models.Model):
    """A question with a known answer that shows labelers what the prompt means."""

    MAX_EXPLANATION = 500

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="examples")
    comparison = models.ForeignKey(
        Comparison, models.CASCADE, related_name="+", help_text="Comparison whose clips are shown."
    )
    better = models.CharField(max_length=20, choices=answer_choices, help_text="Correct answer.")
    explanation = models.TextField(
        max_length=MAX_EXPLANATION, blank=True, help_text="Reason for the answer, shown to labelers."
    )
    practice = models.BooleanField(
        default=False,
        help_text="Ask labelers this before their first question. If unchecked, it is shown with its answer.",
    )

    class Meta:
        ordering = ("id",)
        constraints = (
            models.UniqueConstraint(fields=("experiment", "comparison"), name="example_of_experiment"),
        )

    def __str__(self) -> str:
        return f"{self.experiment_id}: {self.better}"

    def clean(self) -> None:
        """Raise ``ValidationError`` unless the comparison's experiment has the same owner as the example's.

        Labelers must not see another researcher's clips.
        """
        comparison = Comparison.objects.select_related("experiment").filter(pk=self.comparison_id).first()
        if comparison is not None and comparison.experiment.owner_id != self.experiment.owner_id:
            raise ValidationError(
                {"comparison": "Choose a comparison from an experiment with the same owner."}
            )
