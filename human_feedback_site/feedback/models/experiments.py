"""Experiments with their prompts, decision counters, episode videos and learning curves."""

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

MAX_PROMPT = 2000  # characters
MAX_RATING_WORDS = 40  # characters
NAME_PATTERN = r"[A-Za-z0-9_-]{1,100}"
validate_name = RegexValidator(
    rf"\A{NAME_PATTERN}\Z",
    "Use 1 to 100 ASCII letters, digits, underscores and hyphens.",
    code="invalid_name",
)
_share = (MinValueValidator(0.0), MaxValueValidator(1.0))
_one_or_more = (MinValueValidator(1),)


class ExperimentManager(models.Manager["Experiment"]):
    """Default manager for experiments; hides those that are being deleted."""

    def get_queryset(self) -> models.QuerySet["Experiment"]:
        """Return all experiments except those that are being deleted."""
        return super().get_queryset().filter(deletion_asked_at=None)


class Experiment(models.Model):
    """A training run that requests labels."""

    class State(models.TextChoices):
        """State of an experiment. Labelers get work only while it is ``RUNNING``."""

        RUNNING = "running"
        PAUSED = "paused"
        FINISHED = "finished"

    class Aggregation(models.TextChoices):
        """Method that combines the labels of a comparison into one decision."""

        AUTOMATIC = (
            "automatic",
            _("Dawid-Skene if comparisons have several labelers, otherwise majority vote"),
        )
        MAJORITY = "majority", _("majority vote")
        DAWID_SKENE = "dawid_skene", _("Dawid-Skene: labels weighted by estimated labeler accuracy")

    name = models.CharField(max_length=100, unique=True, validators=[validate_name])
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="experiments")
    run_id = models.UUIDField(
        help_text="ID of the training run. A different run can't use the experiment's name."
    )
    env_id = models.CharField(max_length=200)
    prompt = models.TextField(help_text="Instruction shown to labelers.")
    prompt_version = models.PositiveIntegerField(
        default=1, db_default=1, editable=False, help_text="Version number of the current prompt."
    )
    consent = models.ForeignKey(
        "feedback.ConsentText",
        models.SET_NULL,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
        help_text="Consent text that labelers must accept before their first question. Empty: none.",
    )
    n_labels = models.PositiveIntegerField(
        null=True, blank=True, help_text="Total number of labels requested. Empty: no limit."
    )
    pretrain_labels = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Number of answers needed before training starts. Empty: training doesn't wait.",
    )
    fps = models.PositiveSmallIntegerField()
    has_true_reward = models.BooleanField()
    compares_kinds = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Each labeler gets blocks of ten questions of one kind. The experiment's page compares "
        "the kinds.",
    )
    asks_reasons = models.BooleanField(
        default=False, db_default=False, help_text="Labelers may write why they chose an answer."
    )
    lowest_rating = models.CharField(
        max_length=MAX_RATING_WORDS,
        blank=True,
        default="",
        db_default="",
        help_text='What labelers read beside rating 1. Empty: "worst".',
    )
    highest_rating = models.CharField(
        max_length=MAX_RATING_WORDS,
        blank=True,
        default="",
        db_default="",
        help_text='What labelers read beside rating 5. Empty: "best".',
    )
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    overlap = models.PositiveSmallIntegerField(
        default=1, validators=_one_or_more, help_text="Number of labelers who judge each comparison."
    )
    overlap_more = models.PositiveSmallIntegerField(
        default=3,
        validators=_one_or_more,
        help_text='Number of labelers for comparisons in the "overlap share".',
    )
    overlap_share = models.FloatField(
        default=0.0,
        validators=_share,
        help_text='Fraction of comparisons, from 0 to 1, that use "overlap more" instead of "overlap".',
    )
    repeat_rate = models.FloatField(
        default=0.0,
        validators=_share,
        help_text="Fraction of a labeler's questions, from 0 to 1, shown a second time to test consistency.",
    )
    gold_rate = models.FloatField(
        default=0.0,
        validators=_share,
        help_text="Fraction of a labeler's questions, from 0 to 1, that are attention checks.",
    )
    min_watch_ms = models.PositiveIntegerField(
        default=0,
        help_text="Minimum watch time in milliseconds. Faster answers count as failed attention checks.",
    )
    warn_failures = models.PositiveSmallIntegerField(
        default=3,
        validators=_one_or_more,
        help_text="Labelers who fail this many of their last 10 checks of the same type are warned.",
    )
    stop_failures = models.PositiveSmallIntegerField(
        default=5,
        validators=_one_or_more,
        help_text="Labelers who fail this many of their last 10 checks of a type get no more questions.",
    )
    show_episodes = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Show labelers videos of the agent's full episodes. Turn this off for studies in which the "
        "videos could influence the answers.",
    )
    aggregation = models.CharField(max_length=11, choices=Aggregation.choices, default=Aggregation.AUTOMATIC)
    class_prior = models.JSONField(
        null=True,
        blank=True,
        editable=False,
        help_text="Latest estimate of how often each answer is true: for pairs first, equal and second.",
    )
    aggregated_seq = models.PositiveBigIntegerField(
        default=0,
        editable=False,
        help_text="Sequence number of the newest decision when labelers' accuracy was last estimated.",
    )
    waiting_for = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Number of answers that training is waiting for. Empty: training isn't waiting.",
    )
    waiting_since = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Since this time, training has been waiting for answers.",
    )
    waiting_announced_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When the webhooks were told of this wait.",
    )
    models_share = models.FloatField(
        null=True,
        editable=False,
        help_text="Share of the questions that a model at work may decide without people.",
    )
    models_seen_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False)
    trainer_seen_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Approximate time of the trainer's last request."
    )
    trainer_left_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When the trainer said that it stops. Empty: it may be running.",
    )
    feed_cursor = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        editable=False,
        help_text="Sequence number of the last decision that the trainer has read. Noted only if metrics are "
        "on.",
    )
    media_deleted_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Clips of all comparisons created before this time have been deleted.",
    )
    deletion_asked_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        verbose_name="deletion requested at",
        help_text="From this time on, the experiment is hidden while its rows and clips are deleted.",
    )

    objects = ExperimentManager()
    everything = models.Manager()

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return self.name

    @property
    def weighs_labelers(self) -> bool:
        """Return True if decisions use the Dawid-Skene model, which weights labelers by accuracy."""
        if self.aggregation == self.Aggregation.AUTOMATIC:
            return self.overlap > 1 or (self.overlap_share > 0 and self.overlap_more > 1)
        return self.aggregation == self.Aggregation.DAWID_SKENE


class PromptVersion(models.Model):
    """One version of an experiment's prompt; versions are numbered from 1."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="prompts")
    version = models.PositiveIntegerField()
    text = models.TextField()
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        help_text="User who wrote this version on the site. Empty: it came from the training run.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-version",)
        constraints = (
            models.UniqueConstraint(fields=("experiment", "version"), name="prompt_of_experiment"),
        )

    def __str__(self) -> str:
        return f"{self.experiment_id}: {self.version}"


class SequenceCounter(models.Model):
    """Sequence number of an experiment's newest decision.

    Incrementing it locks this row until the transaction commits, so numbers become visible in commit order.
    After reading number n, a reader never sees a new decision with a smaller number.
    """

    experiment = models.OneToOneField(Experiment, models.CASCADE, primary_key=True, related_name="counter")
    last_seq = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.experiment_id}: {self.last_seq}"


class Episode(models.Model):
    """Video of a full training episode."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="episodes")
    step = models.PositiveBigIntegerField(help_text="Total environment steps taken when the episode ended.")
    key = models.CharField(max_length=300)
    answered = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Number of comparisons that had an answer when the video was registered. Empty: unknown.",
    )
    # For researchers only: never sent to a labeler's browser.
    rewards = models.JSONField(
        null=True,
        blank=True,
        help_text="Curve of the rewards that the newest reward predictor predicts. Empty: not known.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("experiment", "step"), name="episode_of_experiment"),)

    def __str__(self) -> str:
        return f"{self.experiment_id}@{self.step}"


class TrainingPoint(models.Model):
    """One point of a learning curve: the value of the metric ``tag`` at a training step."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="points")
    step = models.PositiveBigIntegerField()
    tag = models.CharField(max_length=100)
    value = models.FloatField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("experiment", "tag", "step"), name="training_point"),)

    def __str__(self) -> str:
        return f"{self.tag}@{self.step}"
