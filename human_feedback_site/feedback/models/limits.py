"""Counters of sign-in attempts and wrong API tokens, for rate limits."""

from django.db import models


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
