"""Invitation links, the platform participants who used them, and a labeler's progress per link."""

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator, URLValidator
from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from human_feedback_site.feedback.models.experiments import Experiment
from human_feedback_site.feedback.models.people import Labeler, Participation

PLATFORM_ID_PATTERN = r"\A[0-9a-f]{24}\Z"
_one_or_more = (MinValueValidator(1),)
_platform_id = RegexValidator(PLATFORM_ID_PATTERN, _("Use the 24 digits and letters a to f of the platform."))
_code = RegexValidator(r"\A[A-Za-z0-9_-]{1,40}\Z", _("Use 1 to 40 letters, digits, underscores and hyphens."))
_https = URLValidator(schemes=["https"])


class Invite(models.Model):
    """An invitation link to label an experiment; the link is signed, so no secret is stored."""

    class Kind(models.TextChoices):
        """Type of invitation: for one named labeler, or for a new anonymous labeler at each use."""

        NAMED = "named", _("one labeler, by name")
        ANONYMOUS = "anonymous", _("each time a new labeler, under a pseudonym")

    class Platform(models.TextChoices):
        """Recruiting platform that sends the participants."""

        NONE = "", _("no platform")
        PROLIFIC = "prolific", "Prolific"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="invites")
    kind = models.CharField(max_length=9, choices=Kind.choices)
    labeler = models.ForeignKey(
        Labeler, models.CASCADE, null=True, blank=True, related_name="invites", help_text="Of a named one."
    )
    note = models.CharField(max_length=100, blank=True, help_text="What it is for; labelers never see it.")
    limit = models.PositiveIntegerField(
        null=True, blank=True, validators=_one_or_more, help_text="How often it signs in; empty: any number."
    )
    uses = models.PositiveIntegerField(default=0, help_text="How often it did.")
    answers_wanted = models.PositiveIntegerField(
        null=True, blank=True, validators=_one_or_more, help_text="Of each who comes by it; empty: no end."
    )
    platform = models.CharField(max_length=8, choices=Platform.choices, blank=True, default=Platform.NONE)
    study = models.CharField(
        max_length=24, blank=True, validators=(_platform_id,), help_text="Others are refused, if it is given."
    )
    completion_code = models.CharField(
        max_length=40, blank=True, validators=(_code,), help_text="Shown to those who did their part."
    )
    screen_out_code = models.CharField(
        max_length=40, blank=True, validators=(_code,), help_text="Shown to those who were stopped by checks."
    )
    return_url = models.CharField(
        max_length=200,
        blank=True,
        validators=(_https,),
        help_text="Where they go back to, with the code as its parameter cc.",
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

        The platform could not tell which participants to pay.
        """
        if self.completion_code and self.completion_code.casefold() == self.screen_out_code.casefold():
            message = _(
                "Labelers who are stopped need a different code: the platform pays for the completion code."
            )
            raise ValidationError({"screen_out_code": message})


class InvitePart(models.Model):
    """A labeler's progress under an invitation that is not the labeler's current one.

    ``services/parts.py`` explains how answers are assigned to invitations.
    """

    participation = models.ForeignKey(Participation, models.CASCADE, related_name="parts")
    invite = models.ForeignKey(Invite, models.CASCADE, related_name="parts")
    answered = models.IntegerField(default=0, help_text="Answers that stand.")
    completed_at = models.DateTimeField(
        null=True, blank=True, help_text="When the labeler was told that this part is done."
    )
    completed_answers = models.PositiveIntegerField(
        null=True, blank=True, help_text="Answers that stood then; with fewer the part is not done any more."
    )

    class Meta:
        constraints = (models.UniqueConstraint(fields=("participation", "invite"), name="part_of_invite"),)

    def __str__(self) -> str:
        return f"{self.participation_id} by {self.invite_id}"


class Arrival(models.Model):
    """A participant sent by a platform. The platform's IDs are stored only here."""

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
