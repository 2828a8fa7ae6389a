"""Accounts at the identity provider, which single sign-on uses."""

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

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
