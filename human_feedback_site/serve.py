"""The site in production: ``python -m human_feedback_site.serve --bind HOST:PORT``, with gunicorn's options.

Gunicorn reads WEB_CONCURRENCY before it asks for any configuration, and ends in a traceback where that is
not a number.
"""

import os
import sys

from django.core.exceptions import ImproperlyConfigured

from human_feedback_site.environment import WEB_PROCESSES, read_count

_CONFIGURATION = "python:human_feedback_site.gunicorn_conf"


def main() -> None:
    """Become gunicorn."""
    try:
        processes = read_count("WEB_CONCURRENCY", WEB_PROCESSES, least=1)
    except ImproperlyConfigured as error:
        sys.exit(f"Error: {error}")
    os.environ["WEB_CONCURRENCY"] = str(processes)  # it may have been empty
    command = [sys.executable, "-m", "gunicorn", "--config", _CONFIGURATION, "human_feedback_site.wsgi"]
    os.execv(sys.executable, [*command, *sys.argv[1:]])  # noqa: S606 (no shell is wanted)


if __name__ == "__main__":
    main()
