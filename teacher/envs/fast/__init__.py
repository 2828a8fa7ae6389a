"""Environments that are stepped many at once."""
