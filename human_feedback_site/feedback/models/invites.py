"""Invitation links, the platform participants who used them, and labelers' progress under each link."""

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator, URLValidator
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models.experiments import Experiment
from human_feedback_site.feedback.models.people import Labeler, Participation

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
