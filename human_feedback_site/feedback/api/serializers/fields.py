"""Serializer fields shared by several requests and responses."""

import math
from typing import Any

from rest_framework import serializers

from human_feedback_site.feedback.models import validate_labeler_name

BIGGEST = 2**63 - 1  # maximum of a database's BIGINT
_BIGGEST_SMALL = 2**31 - 1


class FiniteFloatField(serializers.FloatField):
    """Float field that rejects infinity and NaN, which JSON can't represent.

    Requests can still produce either one: Python parses the JSON number ``1e999`` as infinity, and DRF
    accepts the string ``"NaN"`` as a number.
    """

    def to_internal_value(self, data: Any) -> float:
        """Return the number; raises DRF's ``ValidationError`` for infinity and NaN."""
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            self.fail("invalid")
        return value


def count(**options: Any) -> serializers.IntegerField:
    """Return a field for a count or a duration in milliseconds: an integer from 0 to 2**31 - 1."""
    return serializers.IntegerField(min_value=0, max_value=_BIGGEST_SMALL, **options)


def labeler_name(**options: Any) -> serializers.CharField:
    """Return a field for a labeler's name."""
    return serializers.CharField(
        validators=[validate_labeler_name],
        help_text="Name of the labeler whom `invite_url` signs in: 1 to 50 letters, digits, and _ - .",
        **options,
    )


def steps() -> serializers.IntegerField:
    """Return a field for a number of environment steps."""
    return serializers.IntegerField(
        min_value=0, max_value=BIGGEST, help_text="Number of environment steps the run had taken by then."
    )
