"""Consent texts, and the answers that labelers give to them before their first pair."""

import hashlib

from django.db import models
from django.db.models.functions import Now


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
