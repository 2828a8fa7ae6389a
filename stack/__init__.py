"""The full stack as processes on one machine, for development and tests: ``python -m stack``."""
