"""Django's command line for the labeling site: ``teach site COMMAND``, or ``python manage.py COMMAND``."""

import os
import sys
from collections.abc import Sequence

NAMES = {"invite": "create_invite", "token": "create_token"}  # short names of commands


def main(words: Sequence[str] | None = None) -> None:
    """Run the management command named in ``words``, which begin with the program; default: ``sys.argv``."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "human_feedback_site.settings")
    import django  # noqa: PLC0415  (needs the setting above)
    from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415
    from django.core.management import ManagementUtility  # noqa: PLC0415
    from django.db import DatabaseError, OperationalError, ProgrammingError  # noqa: PLC0415

    words = list(sys.argv if words is None else words)
    utility = ManagementUtility(words)
    try:
        if len(words) > 1 and words[1] in NAMES:
            django.setup()
            utility.fetch_command(NAMES[words[1]]).run_from_argv(words)
        else:
            utility.execute()
    except ImproperlyConfigured as error:
        sys.exit(f"Error: {error}")
    except DatabaseError as error:
        away = {DatabaseError, OperationalError, ProgrammingError}  # the first means a damaged file
        if "--traceback" in words or type(error) not in away:
            raise
        reason = str(error).strip().partition("\n")[0]
        is_new = isinstance(error, ProgrammingError) or reason.startswith("no such ")
        advice = f". If the database is new, run {utility.prog_name} migrate first" if is_new else ""
        sys.exit(f"Error: can't use the database: {reason}{advice}")


if __name__ == "__main__":
    main(["teach site", *sys.argv[1:]])
