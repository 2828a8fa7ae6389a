"""Runs the site in production with gunicorn: ``python -m human_feedback_site.serve --bind HOST:PORT``.

All arguments are passed to gunicorn. WEB_CONCURRENCY is checked here because gunicorn fails with a traceback
if it isn't a number.
"""

import os
import sys

from django.core.exceptions import ImproperlyConfigured

from human_feedback_site.environment import WEB_PROCESSES, read_count

_CONFIGURATION = "python:human_feedback_site.gunicorn_conf"


def main() -> None:
    """Check WEB_CONCURRENCY, and replace this process with gunicorn."""
    try:
        processes = read_count("WEB_CONCURRENCY", WEB_PROCESSES, least=1)
    except ImproperlyConfigured as error:
        sys.exit(f"Error: {error}")
    os.environ["WEB_CONCURRENCY"] = str(processes)  # the variable may have been empty
    command = [sys.executable, "-m", "gunicorn", "--config", _CONFIGURATION, "human_feedback_site.wsgi"]
    os.execv(sys.executable, [*command, *sys.argv[1:]])  # noqa: S606 (no shell needed)


if __name__ == "__main__":
    main()
