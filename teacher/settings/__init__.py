"""Settings of a run, their validation, and their files."""
