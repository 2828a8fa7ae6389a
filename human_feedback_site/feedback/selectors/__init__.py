"""Reads: what the API and the pages show."""
