"""Labelers, their participation, invitations and consent; API tokens, identities and rate limits."""

import hashlib

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator, URLValidator
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models.experiments import Experiment, validate_name
from human_feedback_site.feedback.models.names import MAX_LABELER_NAME, NameField


class Labeler(models.Model):
    """Somebody who judges comparisons, invited by a researcher to certain experiments."""

    class Kind(models.TextChoices):
        """A person, a vision-language model, or a script that plays a person."""

        HUMAN = "human", _("human")
        MODEL = "model", _("model")
        BOT = "bot", _("bot")

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="labeler")
    name = NameField(max_length=MAX_LABELER_NAME)
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.PROTECT,
        related_name="invited_labelers",
        help_text="Researcher who invited the labeler. Names are unique per researcher.",
    )
    kind = models.CharField(max_length=5, choices=Kind.choices, default=Kind.HUMAN, db_default="human")
    experiments = models.ManyToManyField(Experiment, related_name="labelers", blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("invited_by", "name"), name="labeler_name_per_researcher"),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def mark(self) -> str:
        """Return what to show beside the name: the kind of labeler, unless it is a person."""
        return "" if self.kind == Labeler.Kind.HUMAN else str(self.get_kind_display())


class Participation(models.Model):
    """A labeler's record in one experiment, kept when the invitation is deleted."""

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
        null=True, blank=True, help_text="From this time on, the labeler gets no more questions."
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
        help_text="Estimated confusion matrix: true answers as rows, given answers as columns. If there are "
        "questions other than pairs, an object with the matrix of each kind.",
    )
    share = models.FloatField(
        default=0.0,
        db_default=0.0,
        help_text="Share of the questions that a model may decide without people.",
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


PLATFORM_ID_PATTERN = r"\A[0-9a-f]{24}\Z"
_one_or_more = (MinValueValidator(1),)
_platform_id = RegexValidator(
    PLATFORM_ID_PATTERN, _("Enter the 24-character study ID (digits and letters a to f).")
)
_code = RegexValidator(r"\A[A-Za-z0-9_-]{1,40}\Z", _("Use 1 to 40 letters, digits, underscores and hyphens."))
_https = URLValidator(schemes=["https"])


class Invite(models.Model):
    """An invitation to label an experiment; its link is signed, so no secret is stored."""

    class Kind(models.TextChoices):
        """Type of invitation: for one named labeler, or a shared link that creates anonymous labelers."""

        NAMED = "named", _("one named labeler")
        ANONYMOUS = "anonymous", _("a new labeler with a pseudonym for each sign-in")

    class Platform(models.TextChoices):
        """Participant recruitment platform that the labelers come from."""

        NONE = "", _("no platform")
        PROLIFIC = "prolific", "Prolific"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="invites")
    kind = models.CharField(max_length=9, choices=Kind.choices)
    labeler = models.ForeignKey(
        Labeler,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="invites",
        help_text="Labeler who signs in with a named invitation.",
    )
    note = models.CharField(
        max_length=100, blank=True, help_text="Purpose of the invitation. Labelers never see it."
    )
    limit = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=_one_or_more,
        help_text="Maximum number of sign-ins. Empty: no limit.",
    )
    uses = models.PositiveIntegerField(default=0, help_text="Number of sign-ins so far.")
    answers_wanted = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=_one_or_more,
        help_text="Number of answers requested from each labeler. Empty: no limit.",
    )
    platform = models.CharField(max_length=8, choices=Platform.choices, blank=True, default=Platform.NONE)
    study = models.CharField(
        max_length=24,
        blank=True,
        validators=(_platform_id,),
        help_text="Study ID on the platform. Participants of other studies are refused. Empty: any study.",
    )
    completion_code = models.CharField(
        max_length=40, blank=True, validators=(_code,), help_text="Shown to labelers who complete the task."
    )
    screen_out_code = models.CharField(
        max_length=40,
        blank=True,
        validators=(_code,),
        help_text="Shown to labelers who are stopped after failing attention checks.",
    )
    return_url = models.CharField(
        max_length=200,
        blank=True,
        validators=(_https,),
        help_text="URL that labelers return to. The code is added as the query parameter cc.",
    )
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"

    def clean(self) -> None:
        """Raise ValidationError if the completion code and the screen-out code are the same.

        If they were, the platform couldn't tell which participants to pay.
        """
        if self.completion_code and self.completion_code.casefold() == self.screen_out_code.casefold():
            message = _(
                "Use a different code for stopped labelers: the platform pays everyone who submits the "
                "completion code."
            )
            raise ValidationError({"screen_out_code": message})


class InvitePart(models.Model):
    """A labeler's progress under an invitation other than the current one.

    ``services/parts.py`` explains how answers are assigned to invitations.
    """

    participation = models.ForeignKey(Participation, models.CASCADE, related_name="parts")
    invite = models.ForeignKey(Invite, models.CASCADE, related_name="parts")
    answered = models.IntegerField(default=0, help_text="Number of valid answers under this invitation.")
    completed_at = models.DateTimeField(
        null=True, blank=True, help_text="When the labeler was told that the task is complete."
    )
    completed_answers = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Number of valid answers at completion. With fewer, the task is no longer complete.",
    )

    class Meta:
        constraints = (models.UniqueConstraint(fields=("participation", "invite"), name="part_of_invite"),)

    def __str__(self) -> str:
        return f"{self.participation_id} by {self.invite_id}"


class Arrival(models.Model):
    """A participant's arrival from a platform; the only model that stores platform participant IDs."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="arrivals")
    invite = models.ForeignKey(Invite, models.CASCADE, related_name="arrivals")
    labeler = models.ForeignKey(Labeler, models.CASCADE, related_name="arrivals")
    participant = models.CharField(max_length=24)
    study = models.CharField(max_length=24)
    session = models.CharField(max_length=24)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-id",)
        constraints = (models.UniqueConstraint(fields=("invite", "participant"), name="arrival_by_invite"),)

    def __str__(self) -> str:
        return f"arrival {self.pk}"


class ConsentText(models.Model):
    """One version of an experiment's consent text; never edited, only replaced by a new version."""

    experiment = models.ForeignKey("feedback.Experiment", models.CASCADE, related_name="consent_texts")
    text = models.TextField()
    digest = models.CharField(max_length=64, help_text="SHA-256 hash of the text, in hexadecimal.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-id",)
        constraints = (models.UniqueConstraint(fields=("experiment", "digest"), name="consent_text_once"),)

    def __str__(self) -> str:
        return self.digest[:8]

    @staticmethod
    def digest_of(text: str) -> str:
        """Return the text's SHA-256 hex digest, which identifies the version."""
        return hashlib.sha256(text.encode()).hexdigest()


class ConsentAnswer(models.Model):
    """A labeler's answer to one version of the consent text; changing the answer adds a row."""

    text = models.ForeignKey(ConsentText, models.CASCADE, related_name="answers")
    labeler = models.ForeignKey("feedback.Labeler", models.CASCADE, related_name="consent_answers")
    agreed = models.BooleanField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.labeler_id}: {'agreed' if self.agreed else 'did not agree'}"


MAX_SUBJECT = 255  # characters, as in OpenID Connect


class Identity(models.Model):
    """A user's account at an identity provider, named by the provider's issuer URL and the subject."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="identity")
    issuer = models.CharField(max_length=1000)
    subject = models.CharField(
        max_length=MAX_SUBJECT, help_text="Identifier that the provider never reassigns."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "identities"
        constraints = (models.UniqueConstraint(fields=("issuer", "subject"), name="identity_at_provider"),)

    def __str__(self) -> str:
        return f"{self.subject} at {self.issuer}"


class Attempts(models.Model):
    """Number of attempts of one kind within a time window.

    ``digest`` is a keyed hash of the kind, the IP address and, for some kinds, the username, so the row
    itself reveals none of them.
    """

    digest = models.CharField(max_length=64, unique=True)
    count = models.PositiveIntegerField()
    ends_at = models.DateTimeField(help_text="End of the time window. The next attempt restarts the count.")

    class Meta:
        verbose_name_plural = "attempts"

    def __str__(self) -> str:
        return f"{self.count} until {self.ends_at:%H:%M}"
