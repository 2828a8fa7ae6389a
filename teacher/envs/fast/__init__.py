"""Fast vector environments, which step many environments in one batch or in several threads."""
