"""Fields that several bodies have."""

import math
from typing import Any

from rest_framework import serializers

from human_feedback_site.feedback.models import LABELER_NAME_PATTERN

BIGGEST = 2**63 - 1  # of a database's integers
_BIGGEST_SMALL = 2**31 - 1


class FiniteFloatField(serializers.FloatField):
    """A float that JSON can hold: ``1e999`` is read as infinity and would not come back."""

    def to_internal_value(self, data: Any) -> float:
        """Return the number; refuses infinity and NaN."""
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            self.fail("invalid")
        return value


def count(**options: Any) -> serializers.IntegerField:
    """Return a field of a number of things or milliseconds."""
    return serializers.IntegerField(min_value=0, max_value=_BIGGEST_SMALL, **options)


def labeler_name(**options: Any) -> serializers.RegexField:
    """Return a field of a labeler's name."""
    return serializers.RegexField(
        LABELER_NAME_PATTERN, help_text="The name of the labeler that `invite_url` signs in.", **options
    )


def steps() -> serializers.IntegerField:
    """Return a field of environment steps."""
    return serializers.IntegerField(
        min_value=0, max_value=BIGGEST, help_text="Environment steps made so far."
    )
