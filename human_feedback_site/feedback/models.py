"""What the site remembers.

A comparison's clips are called ``first`` and ``second``; *left* and *right* exist only on a labeler's screen,
and a lease's ``swapped`` says which is which. Labels, undos and decisions are appended and never changed, so
a row is evidence.
"""

import hashlib
import uuid

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

NAME_PATTERN = r"[A-Za-z0-9_-]{1,100}"
validate_name = RegexValidator(
    rf"\A{NAME_PATTERN}\Z", "Use 1 to 100 letters, digits, underscores and hyphens.", code="invalid_name"
)

LABELER_NAME_PATTERN = r"\A[\w.-]{1,50}\Z"
validate_labeler_name = RegexValidator(
    LABELER_NAME_PATTERN,
    _("Use 1 to 50 letters, digits, underscores, hyphens and dots."),
    code="invalid_labeler_name",
)


class Outcome(models.TextChoices):
    """What the labels of a comparison say."""

    FIRST = "first"
    SECOND = "second"
    EQUAL = "equal"
    CANT_TELL = "cant_tell"


KNOWN_ANSWERS = [choice for choice in Outcome.choices if choice[0] != Outcome.CANT_TELL]
_share = (MinValueValidator(0.0), MaxValueValidator(1.0))
_one_or_more = (MinValueValidator(1),)


class Experiment(models.Model):
    """One training run that asks for labels."""

    class State(models.TextChoices):
        """Whether labelers are given work; the trainer obeys it too."""

        RUNNING = "running"
        PAUSED = "paused"
        FINISHED = "finished"

    class Aggregation(models.TextChoices):
        """How the labels of a comparison become one decision."""

        AUTOMATIC = "automatic", _("Dawid-Skene where several labelers judge a comparison")
        MAJORITY = "majority", _("majority")
        DAWID_SKENE = "dawid_skene", _("Dawid-Skene: labelers weigh what they are worth")

    name = models.CharField(max_length=100, unique=True, validators=[validate_name])
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="experiments")
    run_id = models.UUIDField(help_text="Chosen by the run; another run cannot take over the name.")
    env_id = models.CharField(max_length=200)
    prompt = models.TextField(help_text="The sentence labelers see.")
    n_labels = models.PositiveIntegerField(
        null=True, blank=True, help_text="Labels wanted in all, if limited."
    )
    fps = models.PositiveSmallIntegerField()
    has_true_reward = models.BooleanField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    overlap = models.PositiveSmallIntegerField(
        default=1, validators=_one_or_more, help_text="Labelers who judge each comparison."
    )
    overlap_more = models.PositiveSmallIntegerField(
        default=3, validators=_one_or_more, help_text="Labelers who judge a share of the comparisons."
    )
    overlap_share = models.FloatField(default=0.0, validators=_share, help_text="How large that share is.")
    repeat_rate = models.FloatField(
        default=0.0,
        validators=_share,
        help_text="Share of pairs that labelers are shown once more, to see whether they say the same.",
    )
    gold_rate = models.FloatField(
        default=0.0, validators=_share, help_text="Share of pairs whose answer is known already."
    )
    min_watch_ms = models.PositiveIntegerField(
        default=0, help_text="An answer that comes faster is as careless as a wrong one to a known answer."
    )
    warn_failures = models.PositiveSmallIntegerField(
        default=3,
        validators=_one_or_more,
        help_text="Of a labeler's last 10 checks: that many failures are a warning.",
    )
    stop_failures = models.PositiveSmallIntegerField(
        default=5,
        validators=_one_or_more,
        help_text="Of a labeler's last 10 checks: after that many failures nothing more is given.",
    )
    aggregation = models.CharField(max_length=11, choices=Aggregation.choices, default=Aggregation.AUTOMATIC)
    class_prior = models.JSONField(
        null=True,
        blank=True,
        editable=False,
        help_text="How often first, equal and second are true, as last estimated.",
    )
    aggregated_seq = models.PositiveBigIntegerField(
        default=0, editable=False, help_text="The newest decision when labelers were last weighed."
    )
    waiting_for = models.PositiveIntegerField(
        null=True, blank=True, help_text="Answers that training is waiting for; empty while it goes on."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False)
    trainer_seen_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When its trainer last asked for something, roughly."
    )
    media_deleted_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Clips of comparisons made before are deleted."
    )

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return self.name

    @property
    def weighs_labelers(self) -> bool:
        """Whether decisions are those of Dawid and Skene."""
        if self.aggregation == self.Aggregation.AUTOMATIC:
            return self.overlap > 1 or (self.overlap_share > 0 and self.overlap_more > 1)
        return self.aggregation == self.Aggregation.DAWID_SKENE


class SequenceCounter(models.Model):
    """The number of the newest decision of an experiment.

    It is raised under a row lock that is held until the answer's transaction commits, so numbers appear in
    commit order: a reader that has seen number n will never find a smaller one later.
    """

    experiment = models.OneToOneField(Experiment, models.CASCADE, primary_key=True, related_name="counter")
    last_seq = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.experiment_id}: {self.last_seq}"


class Labeler(models.Model):
    """A person who judges comparisons, invited by a researcher to some experiments."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="labeler")
    name = models.CharField(max_length=50)
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.PROTECT,
        related_name="invited_labelers",
        help_text="Whose name space it is.",
    )
    experiments = models.ManyToManyField(Experiment, related_name="labelers", blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("invited_by", "name"), name="labeler_name_per_researcher"),
        )

    def __str__(self) -> str:
        return self.name


class Participation(models.Model):
    """How a labeler does in an experiment; it outlasts the invitation."""

    CHECKS_KEPT = 10

    labeler = models.ForeignKey(Labeler, models.CASCADE, related_name="participations")
    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="participations")
    answers = models.PositiveIntegerField(default=0, help_text="Labels ever given.")
    undone = models.PositiveIntegerField(default=0, help_text="Those of them that were withdrawn.")
    gold_checks = models.CharField(
        max_length=CHECKS_KEPT,
        default="",
        blank=True,
        help_text="The last answers to pairs with a known answer: 1 right, 0 wrong.",
    )
    watch_checks = models.CharField(
        max_length=CHECKS_KEPT,
        default="",
        blank=True,
        help_text="The last answers where a time of watching is asked for: 1 watched, 0 too fast.",
    )
    stopped_at = models.DateTimeField(
        null=True, blank=True, help_text="Since then the labeler is given nothing."
    )
    confusion = models.JSONField(
        null=True,
        blank=True,
        help_text="How often each answer is given (first, equal, second) to each truth, as last estimated.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("labeler", "experiment"), name="participation_of_labeler"),
        )

    def __str__(self) -> str:
        return f"{self.labeler_id} in {self.experiment_id}"

    @property
    def answered(self) -> int:
        """Answers that stand."""
        return self.answers - self.undone

    @property
    def failures(self) -> int:
        """Failed checks among the last of each kind."""
        return max(self.gold_checks.count("0"), self.watch_checks.count("0"))


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
        )

    def __str__(self) -> str:
        return str(self.uuid)

    @property
    def clips_deleted(self) -> bool:
        """Whether its clips had their time; those of a run that went on afterwards are there again."""
        deleted_at = self.experiment.media_deleted_at
        return deleted_at is not None and self.created_at <= deleted_at


class Lease(models.Model):
    """A labeler's claim on a comparison, with the sides of the screen fixed.

    It is live while it is not answered and not expired. Expiry is judged by the database's clock. Only a
    lease to judge takes one of the comparison's places.
    """

    class Purpose(models.TextChoices):
        """What the answer is for; labelers cannot tell."""

        JUDGE = "judge"
        GOLD = "gold"  # to see whether the labeler knows what is known
        REPEAT = "repeat"  # to see whether the labeler says the same again

    uuid = models.UUIDField(unique=True, default=uuid.uuid4)
    comparison = models.ForeignKey(Comparison, models.CASCADE, related_name="leases")
    labeler = models.ForeignKey(Labeler, models.CASCADE, related_name="leases")
    purpose = models.CharField(max_length=6, choices=Purpose.choices, default=Purpose.JUDGE)
    swapped = models.BooleanField(help_text="The second clip is shown on the left.")
    shown = models.BooleanField(default=False, help_text="On screen, no longer merely prefetched.")
    expires_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (
            models.Index(fields=("comparison", "expires_at"), name="lease_of_comparison"),
            models.Index(fields=("labeler", "expires_at"), name="lease_by_labeler"),
        )

    def __str__(self) -> str:
        return str(self.uuid)


class Label(models.Model):
    """One labeler's answer, as given on the screen."""

    class Choice(models.TextChoices):
        """A side of the screen, or neither."""

        LEFT = "left"
        RIGHT = "right"
        EQUAL = "equal"
        CANT_TELL = "cant_tell"

    class Status(models.TextChoices):
        """Whether it had room among the labels wanted when it arrived, or what else it was for."""

        COUNTED = "counted"
        SURPLUS = "surplus"
        GOLD = "gold"
        REPEAT = "repeat"

    uuid = models.UUIDField(
        unique=True, help_text="Chosen by the browser, so that sending again changes nothing."
    )
    lease = models.ForeignKey(Lease, models.PROTECT, related_name="labels")
    comparison = models.ForeignKey(Comparison, models.PROTECT, related_name="labels")
    labeler = models.ForeignKey(Labeler, models.PROTECT, related_name="labels")
    choice = models.CharField(max_length=10, choices=Choice.choices)
    swapped = models.BooleanField(help_text="The second clip was on the left.")
    status = models.CharField(max_length=10, choices=Status.choices)
    response_ms = models.PositiveIntegerField(null=True, blank=True)
    shown_ms = models.PositiveIntegerField(
        null=True, blank=True, help_text="How long both clips had been in sight, as the browser says."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (
            models.Index(fields=("labeler", "created_at"), name="label_of_labeler"),
            models.Index(fields=("comparison", "labeler"), name="label_judge"),
        )

    def __str__(self) -> str:
        return str(self.uuid)

    @property
    def verdict(self) -> Outcome:
        """The answer with the screen taken out of it."""
        return verdict_of(self.choice, swapped=self.swapped)


def verdict_of(choice: str, *, swapped: bool) -> Outcome:
    """Take the screen out of an answer."""
    if choice == Label.Choice.EQUAL:
        return Outcome.EQUAL
    if choice == Label.Choice.CANT_TELL:
        return Outcome.CANT_TELL
    return Outcome.FIRST if (choice == Label.Choice.LEFT) != swapped else Outcome.SECOND


class Undo(models.Model):
    """The withdrawal of a label, appended beside it."""

    uuid = models.UUIDField(
        unique=True, help_text="Chosen by the browser, so that sending again changes nothing."
    )
    label = models.OneToOneField(Label, models.PROTECT, related_name="undo")
    lease = models.ForeignKey(
        Lease,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        help_text="The claim that gave the pair back.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return str(self.uuid)


class Decision(models.Model):
    """A new or revised outcome of a comparison: one item of the feed that trainers read."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="decisions")
    comparison = models.ForeignKey(Comparison, models.CASCADE, related_name="decisions")
    seq = models.PositiveBigIntegerField()
    decision = models.CharField(
        max_length=10,
        choices=Outcome.choices,
        null=True,
        blank=True,
        help_text="Empty where nothing stands any more.",
    )
    probability = models.FloatField(null=True, blank=True, help_text="That the first is preferred.")
    n_labels = models.PositiveSmallIntegerField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("experiment", "seq"), name="decision_seq"),)
        indexes = (models.Index("comparison", F("seq").desc(), name="decision_newest"),)

    def __str__(self) -> str:
        return f"{self.seq}: {self.decision or 'none'}"


class Example(models.Model):
    """A pair with a known answer, by which labelers learn what the instruction means."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="examples")
    comparison = models.ForeignKey(
        Comparison, models.CASCADE, related_name="+", help_text="Whose clips are shown."
    )
    better = models.CharField(max_length=10, choices=Outcome.choices, help_text="The answer.")
    explanation = models.TextField(max_length=500, blank=True, help_text="Why; labelers read it.")
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


class Episode(models.Model):
    """A film of a whole episode of the policy as it was at some step."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="episodes")
    step = models.PositiveBigIntegerField(help_text="Environment steps made when it ended.")
    key = models.CharField(max_length=300)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("experiment", "step"), name="episode_of_experiment"),)

    def __str__(self) -> str:
        return f"{self.experiment_id}@{self.step}"


class TrainingPoint(models.Model):
    """One value of a learning curve."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="points")
    step = models.PositiveBigIntegerField()
    tag = models.CharField(max_length=100)
    value = models.FloatField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("experiment", "tag", "step"), name="training_point"),)

    def __str__(self) -> str:
        return f"{self.tag}@{self.step}"


class ApiToken(models.Model):
    """A trainer's key to the API; only its hash is kept."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100, default="trainer", help_text="What it is used for.")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def digest_of(token: str) -> str:
        """Return what is stored of ``token``: it has 256 random bits, so one round of SHA-256 is enough."""
        return hashlib.sha256(token.encode()).hexdigest()
