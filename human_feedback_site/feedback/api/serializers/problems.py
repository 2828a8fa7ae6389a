"""What every endpoint answers where something is wrong."""

from typing import Any

from rest_framework import serializers


class ProblemErrorSerializer(serializers.Serializer[Any]):
    """One thing that is wrong."""

    pointer = serializers.CharField(help_text="JSON pointer into the request.")
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """An error (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = serializers.ListField(child=ProblemErrorSerializer(), required=False)  # type: ignore[assignment]
