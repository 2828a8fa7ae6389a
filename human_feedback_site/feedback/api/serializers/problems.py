"""Serializers for error responses."""

from typing import Any

from rest_framework import serializers


class ProblemErrorSerializer(serializers.Serializer[Any]):
    """An error in one field of the request."""

    pointer = serializers.CharField(help_text="JSON pointer to the field in the request.")
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """An error response (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = serializers.ListField(child=ProblemErrorSerializer(), required=False)  # type: ignore[assignment]
