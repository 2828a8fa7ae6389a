"""Labelers, their participation in experiments, and the API tokens of trainers."""

import hashlib

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from human_feedback_site.feedback.models.experiments import Experiment, validate_name
from human_feedback_site.feedback.models.names import MAX_LABELER_NAME, NameField


class Labeler(models.Model):
    """A person who judges comparisons, invited by a researcher to certain experiments."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="labeler")
    name = NameField(max_length=MAX_LABELER_NAME)
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.PROTECT,
        related_name="invited_labelers",
        help_text="Researcher who invited the labeler. Names are unique per researcher.",
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
    """A labeler's record in one experiment: number of answers, check results and status.

    Kept when the invitation is deleted.
    """

    CHECKS_KEPT = 10

    class Notice(models.TextChoices):
        """Notice shown to a labeler: warned or stopped after failed checks, or task done."""

        WARNED = "warned"
        STOPPED = "stopped"
        DONE = "done"

    labeler = models.ForeignKey(Labeler, models.CASCADE, related_name="participations")
    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="participations")
    answers = models.PositiveIntegerField(
        default=0, help_text="Number of labels given that are not void, including withdrawn ones."
    )
    undone = models.PositiveIntegerField(default=0, help_text="Number of these labels that were withdrawn.")
    gold_checks = models.CharField(
        max_length=CHECKS_KEPT,
        default="",
        blank=True,
        help_text="Results of the latest attention checks, oldest first: 1 is passed, 0 is failed.",
    )
    watch_checks = models.CharField(
        max_length=CHECKS_KEPT,
        default="",
        blank=True,
        help_text="Results of the latest watch-time checks, oldest first: 1 is passed, 0 is too fast.",
    )
    stopped_at = models.DateTimeField(
        null=True, blank=True, help_text="From this time on, the labeler gets no more pairs."
    )
    invite = models.ForeignKey(
        "feedback.Invite",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="participations",
        help_text="The labeler's current invitation, if known.",
    )
    consented_to = models.ForeignKey(
        "feedback.ConsentText",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="Consent text that the labeler accepted most recently.",
    )
    empty_since = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Since this time, there has been nothing for the labeler to judge.",
    )
    elsewhere = models.IntegerField(
        null=True,
        blank=True,
        editable=False,
        help_text="Number of valid answers under other invitations. Empty: the labeler has used no other.",
    )
    completed_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When the labeler was told that the task is complete.",
    )
    completed_answers = models.PositiveIntegerField(
        null=True,
        blank=True,
        editable=False,
        help_text="Number of valid answers at completion. With fewer, the task is no longer complete.",
    )
    confusion = models.JSONField(
        null=True,
        blank=True,
        help_text="Estimated confusion matrix: true answers as rows, given answers as columns.",
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
        """Return the number of valid answers: those that are neither void nor withdrawn."""
        return self.answers - self.undone

    @property
    def part_answered(self) -> int:
        """Return the number of valid answers given under the current invitation."""
        return self.answered - (self.elsewhere or 0)

    @property
    def failures(self) -> int:
        """Return the larger of two counts: failed attention checks and failed watch-time checks.

        Only the last ``CHECKS_KEPT`` checks of each type are considered.
        """
        return max(self.gold_checks.count("0"), self.watch_checks.count("0"))

    @property
    def notice(self) -> str | None:
        """Return the notice about the labeler's checks: ``stopped``, ``warned`` or None."""
        is_stopped = self.stopped_at is not None
        return self.notice_after(self.failures, self.experiment.warn_failures, is_stopped=is_stopped)

    @classmethod
    def notice_after(cls, failures: int, warn_failures: int, *, is_stopped: bool) -> str | None:
        """Return ``stopped`` if ``is_stopped``, ``warned`` if ``failures >= warn_failures``, else None."""
        if is_stopped:
            return cls.Notice.STOPPED.value
        return cls.Notice.WARNED.value if failures >= warn_failures else None


class ApiToken(models.Model):
    """A trainer's API token; only its hash is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    name = NameField(max_length=100, default="trainer", help_text="What the token is used for.")
    experiment = models.CharField(
        max_length=100,
        default="",
        db_default="",
        blank=True,
        validators=[validate_name],
        help_text="Name of the only experiment that the token can access, which need not exist yet. "
        "Empty: all experiments of the user.",
    )
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text="The token stops working at this time. Empty: it never expires."
    )
    digest = models.CharField(max_length=64, unique=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def digest_of(token: str) -> str:
        """Return the SHA-256 hex digest under which ``token`` is stored.

        A token has 256 random bits, so one round of SHA-256 without salt is safe.
        """
        return hashlib.sha256(token.encode()).hexdigest()
