"""Custom template tags and filters."""
