"""What is judged: pairs of clips, and those that explain the instruction."""

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from human_feedback_site.feedback.models.experiments import Experiment


class Outcome(models.TextChoices):
    """What the labels of a comparison say."""

    FIRST = "first"
    SECOND = "second"
    EQUAL = "equal"
    CANT_TELL = "cant_tell"


KNOWN_ANSWERS = [choice for choice in Outcome.choices if choice[0] != Outcome.CANT_TELL]


class Comparison(models.Model):
    """A pair of clips to judge."""

    class Phase(models.TextChoices):
        """What the segments come from: random behaviour, or the policy in training."""

        PRETRAINING = "pretraining"
        TRAINING = "training"

    class Status(models.TextChoices):
        """Whether labels are still wanted."""

        OPEN = "open"
        ANSWERED = "answered"
        CANCELLED = "cancelled"
        GOLD = "gold"  # its answer is known: it is there to find out who does not look

    uuid = models.UUIDField(unique=True)
    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="comparisons")
    phase = models.CharField(max_length=12, choices=Phase.choices)
    step = models.PositiveBigIntegerField(help_text="Environment steps made when it was asked.")
    priority = models.IntegerField(help_text="Higher is shown first.")
    first_key = models.CharField(max_length=300)
    second_key = models.CharField(max_length=300)
    # Researcher-only: a labeler's browser never receives these.
    first_return = models.FloatField(null=True, blank=True, verbose_name="true return of the first")
    second_return = models.FloatField(null=True, blank=True, verbose_name="true return of the second")
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.OPEN)
    gold = models.CharField(
        max_length=10,
        choices=KNOWN_ANSWERS,
        null=True,
        blank=True,
        help_text="The answer that is known; labelers cannot tell.",
    )
    wanted = models.PositiveSmallIntegerField(default=1, help_text="Labels that it should have.")
    n_labels = models.PositiveSmallIntegerField(
        default=0, help_text="Labels that count; written under its row lock."
    )
    # What those labels say: votes, or log-likelihoods where labelers are weighed.
    score_first = models.FloatField(default=0.0)
    score_equal = models.FloatField(default=0.0)
    score_second = models.FloatField(default=0.0)
    clips_missing = models.BooleanField(
        db_default=False, editable=False, help_text="It was imported, and its clips were not in the store."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (
            # The order in which labelers are given work.
            models.Index(
                "experiment",
                F("priority").desc(),
                F("n_labels").desc(),
                F("id").desc(),
                name="comparison_queue",
                condition=Q(status="open"),
            ),
            models.Index(fields=("experiment",), name="comparison_gold", condition=Q(status="gold")),
            # What nobody has said anything about, the newest first.
            models.Index(fields=("experiment", "id"), name="comparison_unlabeled", condition=Q(n_labels=0)),
            # Orders of the comparison browser.
            models.Index("experiment", F("priority").desc(), F("id").desc(), name="comparison_by_priority"),
            models.Index("experiment", F("n_labels").desc(), F("id").desc(), name="comparison_by_labels"),
        )

    def __str__(self) -> str:
        return str(self.uuid)

    @property
    def clips_gone(self) -> bool:
        """Whether its clips were missing from the start, or deleted since."""
        deleted_at = self.experiment.media_deleted_at
        return self.clips_missing or (deleted_at is not None and self.created_at <= deleted_at)


class Example(models.Model):
    """A pair with a known answer, by which labelers learn what the instruction means."""

    MAX_EXPLANATION = 500

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="examples")
    comparison = models.ForeignKey(
        Comparison, models.CASCADE, related_name="+", help_text="Whose clips are shown."
    )
    better = models.CharField(max_length=10, choices=Outcome.choices, help_text="The answer.")
    explanation = models.TextField(max_length=MAX_EXPLANATION, blank=True, help_text="Why; labelers read it.")
    practice = models.BooleanField(
        default=False, help_text="Asked before a labeler's first pair. Otherwise it is shown with its answer."
    )

    class Meta:
        ordering = ("id",)
        constraints = (
            models.UniqueConstraint(fields=("experiment", "comparison"), name="example_of_experiment"),
        )

    def __str__(self) -> str:
        return f"{self.experiment_id}: {self.better}"

    def clean(self) -> None:
        """Refuse a comparison of another researcher: its clips are not for these labelers."""
        comparison = Comparison.objects.select_related("experiment").filter(pk=self.comparison_id).first()
        if comparison is not None and comparison.experiment.owner_id != self.experiment.owner_id:
            raise ValidationError({"comparison": "Choose a comparison of an experiment of the same owner."})
