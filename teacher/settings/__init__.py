"""The settings of a run and its parts, and their validation."""
