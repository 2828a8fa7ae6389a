"""Error handling shared by ``manage.py backup`` and ``manage.py restore``."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import DatabaseError

from human_feedback_site.feedback.errors import BackupError, MediaStoreError


@contextmanager
def one_line_errors(outcome: str) -> Iterator[None]:
    """Convert an error in the ``with`` block to a ``CommandError`` with a one-line message.

    The message starts with ``outcome``. After a keyboard interrupt, the command exits with status 130.
    """
    try:
        yield
    except (BackupError, MediaStoreError) as error:
        raise CommandError(f"{outcome}. {error}") from None
    except OSError as error:
        reason = str(error.strerror or error)
        where = f". {error.filename}" if error.filename else ""
        raise CommandError(f"{outcome}{where}: {reason}") from None
    except (DatabaseError, sqlite3.Error) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CommandError(f"{outcome}. The database cannot be read or written: {reason}") from None
    except KeyboardInterrupt:
        raise CommandError(f"{outcome}: interrupted", returncode=130) from None
