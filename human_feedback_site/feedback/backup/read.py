"""Restoring a backup into an empty system; one that is cut off can be repeated."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from human_feedback_site.environment import make_private_folder
from human_feedback_site.feedback.backup import postgresql, sqlite
from human_feedback_site.feedback.backup.clips import check_room_for_clips, restore_clips
from human_feedback_site.feedback.backup.folders import check_room, restore_folder
from human_feedback_site.feedback.backup.manifest import Database, read_manifest, secret_key_digest
from human_feedback_site.feedback.backup.write import KEPT
from human_feedback_site.feedback.errors import BackupError
from human_feedback_site.feedback.media.store import media_store, name_of


def restore(folder: Path, runs: Path) -> Iterator[str]:
    """Check all of a backup and that there is room for it, then bring it back; yields a line about each part.

    The database comes last: a site that has labels has everything else of the backup as well.

    Raises:
        BackupError: the backup is not whole, or something is there already. Nothing was changed.
        MediaStoreError: the media store cannot be used.
    """
    manifest = read_manifest(folder)
    check_room(folder / "runs", runs)
    if manifest.database is not None:
        _check_database(manifest.database)
        check_room_for_clips(media_store(), folder / "clips")
    yield f"checked: {folder}, made at {manifest.made_at}"
    if (folder / "runs").is_dir():
        yield f"runs: {restore_folder(folder / 'runs', runs)} files to {runs}"
    _restore_secrets(folder / "state")
    if manifest.database is not None:
        yield f"clips: {restore_clips(media_store(), folder / 'clips')} to {name_of(media_store())}"
        _restore_database(folder / "database", manifest.database)
        yield f"database: {manifest.database.rows('feedback_label')} labels, all rows counted"
        if manifest.secret_key != secret_key_digest() and not (folder / "state/secret_key").exists():
            yield "NOTICE: SECRET_KEY is another than it was: invitations that were sent and sessions end"


def _check_database(database: Database) -> None:
    vendor = connections["default"].vendor
    if database.vendor != vendor:
        raise BackupError(
            f"The backup is of a {database.vendor} database, DATABASE_URL names a {vendor} one; "
            f"{'unset it' if database.vendor == 'sqlite' else 'name a PostgreSQL database'}"
        )
    known = MigrationLoader(None).graph.nodes
    newer = [name for app, name in database.migrations.items() if (app, name) not in known]
    if newer:
        raise BackupError(f"The backup was made by a newer version ({newer[0]}); restore it with that one")
    if vendor == "sqlite" and _is_served():
        raise BackupError(f"The site of {settings.STATE_DIR} is running; end the runs that use it first")
    found = (sqlite if vendor == "sqlite" else postgresql).first_row()
    if found is not None:
        raise BackupError(f"Expected an empty database, found rows in {found}; restore into a new one")


def _is_served() -> bool:
    """Whether an embedded site holds the state folder."""
    try:
        descriptor = os.open(settings.STATE_DIR / "site" / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _restore_secrets(folder: Path) -> None:
    """Bring back the files of the state folder, for their owner alone."""
    for name in KEPT:
        if (folder / name).is_file():
            make_private_folder(settings.STATE_DIR)
            part = settings.STATE_DIR / f".{name}.part"
            shutil.copyfile(folder / name, part)
            part.chmod(0o600)
            part.replace(settings.STATE_DIR / name)


def _restore_database(folder: Path, database: Database) -> None:
    """Fill tables as old as the backup, and bring them up to date."""
    if database.vendor == "sqlite":
        sqlite.load(folder, database)
    else:
        postgresql.drop_empty_tables()
        for app, name in database.migrations.items():
            call_command("migrate", app, name, interactive=False, verbosity=0)
        postgresql.load(folder, database)
    call_command("migrate", interactive=False, verbosity=0)
