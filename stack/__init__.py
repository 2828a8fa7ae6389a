"""Runs the full stack as local processes, for development and tests: ``python -m stack``."""
