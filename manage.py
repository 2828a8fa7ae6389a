#!/usr/bin/env python
"""Django's command line for the labeling site."""

import os
import sys


def main() -> None:
    """Run the management command named on the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")
    from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415  (needs the line above)
    from django.core.management import execute_from_command_line  # noqa: PLC0415

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
