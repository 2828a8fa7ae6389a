"""Leases, labels, undos and decisions."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from human_feedback_site.feedback.models.comparisons import Comparison, Outcome
from human_feedback_site.feedback.models.experiments import Experiment
from human_feedback_site.feedback.models.people import Labeler


class Lease(models.Model):
    """A labeler's temporary right to answer a comparison, with the left and right clip fixed.

    A lease is live until it is answered or expires, by the database's clock. A comparison has ``wanted``
    label slots; only a lease with the purpose ``JUDGE`` reserves one.
    """

    class Purpose(models.TextChoices):
        """Purpose of a lease: a regular label, an attention check or a repeat. Labelers can't tell."""

        JUDGE = "judge"
        GOLD = "gold"  # an attention check: the answer is compared with the known one
        REPEAT = "repeat"  # a pair shown again: the answer is compared with the labeler's first one

    uuid = models.UUIDField(unique=True, default=uuid.uuid4)
    comparison = models.ForeignKey(Comparison, models.CASCADE, related_name="leases")
    labeler = models.ForeignKey(Labeler, models.CASCADE, related_name="leases")
    purpose = models.CharField(max_length=6, choices=Purpose.choices, default=Purpose.JUDGE)
    swapped = models.BooleanField(help_text="The second clip is shown on the left.")
    shown = models.BooleanField(default=False, help_text="On screen, no longer merely prefetched.")
    prompt_version = models.PositiveIntegerField(
        default=1, db_default=1, help_text="Of the prompt that came with it, or with its last renewal."
    )
    invite = models.ForeignKey(
        "feedback.Invite",
        models.SET_NULL,
        null=True,
        blank=True,
        db_index=False,
        related_name="+",
        help_text="Of the request that brought it, or renewed it last: its answer belongs to that part.",
    )
    expires_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (
            models.Index(fields=("comparison", "expires_at"), name="lease_of_comparison"),
            models.Index(fields=("labeler", "expires_at"), name="lease_by_labeler"),
            models.Index(fields=("invite",), name="lease_of_invite", condition=Q(invite__isnull=False)),
        )

    def __str__(self) -> str:
        return str(self.uuid)


class Label(models.Model):
    """One labeler's answer to a comparison, as given on the screen."""

    class Choice(models.TextChoices):
        """Answer in terms of the screen: the left clip, the right clip, equal or can't tell."""

        LEFT = "left"
        RIGHT = "right"
        EQUAL = "equal"
        CANT_TELL = "cant_tell"

    class Status(models.TextChoices):
        """Role of a label: counted in the decision, waiting for a free slot, a check, or ignored."""

        COUNTED = "counted"
        SURPLUS = "surplus"  # counts as soon as one of the comparison's slots is free
        GOLD = "gold"
        REPEAT = "repeat"
        VOID = "void"  # ignored: a second answer, or an answer from a labeler who was stopped

    uuid = models.UUIDField(
        unique=True, help_text="Chosen by the browser, so that sending again changes nothing."
    )
    lease = models.ForeignKey(Lease, models.PROTECT, related_name="labels")
    comparison = models.ForeignKey(Comparison, models.PROTECT, related_name="labels")
    labeler = models.ForeignKey(Labeler, models.PROTECT, related_name="labels")
    choice = models.CharField(max_length=10, choices=Choice.choices)
    swapped = models.BooleanField(help_text="The second clip was on the left.")
    status = models.CharField(max_length=10, choices=Status.choices)
    prompt_version = models.PositiveIntegerField(
        default=1, db_default=1, help_text="Of the prompt that it was given under."
    )
    response_ms = models.PositiveIntegerField(null=True, blank=True)
    shown_ms = models.PositiveIntegerField(
        null=True, blank=True, help_text="How long both clips had been in sight, as the browser says."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        indexes = (
            models.Index(fields=("labeler", "created_at"), name="label_of_labeler"),
            models.Index(fields=("comparison", "labeler"), name="label_judge"),
            models.Index(fields=("comparison",), name="label_waiting", condition=Q(status="surplus")),
        )

    def __str__(self) -> str:
        return str(self.uuid)

    @property
    def verdict(self) -> Outcome:
        """Return the answer as ``first``, ``second``, ``equal`` or ``cant_tell``."""
        return verdict_of(self.choice, swapped=self.swapped)


def verdict_of(choice: str, *, swapped: bool) -> Outcome:
    """Convert ``left`` or ``right`` to ``first`` or ``second``; other choices stay the same."""
    if choice == Label.Choice.EQUAL:
        return Outcome.EQUAL
    if choice == Label.Choice.CANT_TELL:
        return Outcome.CANT_TELL
    return Outcome.FIRST if (choice == Label.Choice.LEFT) != swapped else Outcome.SECOND


class Undo(models.Model):
    """The withdrawal of a label, stored in its own row; the label stays unchanged."""

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
    retracted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        help_text="Who withdrew it in the labeler's place.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return str(self.uuid)


class Decision(models.Model):
    """A new or revised outcome of a comparison; one item of the feed that trainers read."""

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
        indexes = (
            models.Index("comparison", F("seq").desc(), name="decision_newest"),
            # Finds rare decisions among very many, newest first; common ones need no index.
            models.Index(
                fields=("experiment", "decision", "comparison"),
                name="decision_seldom",
                condition=Q(decision__in=(Outcome.EQUAL, Outcome.CANT_TELL)),
            ),
        )

    def __str__(self) -> str:
        return f"{self.seq}: {self.decision or 'none'}"
