"""Vector environments that step many environments at once."""
