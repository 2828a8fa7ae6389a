"""How often somebody tried to get in."""

from django.db import models


class Attempts(models.Model):
    """Attempts of one kind within a stretch of time; what kind, and whose, only the site can tell."""

    digest = models.CharField(max_length=64, unique=True)
    count = models.PositiveIntegerField()
    ends_at = models.DateTimeField(help_text="From then on it is counted anew.")

    class Meta:
        verbose_name_plural = "attempts"

    def __str__(self) -> str:
        return f"{self.count} until {self.ends_at:%H:%M}"
