#!/usr/bin/env python
"""Django's command line for the labeling site."""

import os
import sys


def main() -> None:
    """Run the management command named on the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")
    from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415  (needs the setting above)
    from django.core.management import execute_from_command_line  # noqa: PLC0415
    from django.db import DatabaseError, OperationalError, ProgrammingError  # noqa: PLC0415

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"Error: {error}")
    except DatabaseError as error:
        away = {DatabaseError, OperationalError, ProgrammingError}  # the first means a damaged file
        if "--traceback" in sys.argv or type(error) not in away:
            raise
        reason = str(error).strip().partition("\n")[0]
        is_new = isinstance(error, ProgrammingError) or reason.startswith("no such ")
        advice = ". If the database is new, run manage.py migrate first" if is_new else ""
        sys.exit(f"Error: can't use the database: {reason}{advice}")


if __name__ == "__main__":
    main()
