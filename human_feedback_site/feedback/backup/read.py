"""Restore of a backup to an empty site. An interrupted restore can be run again."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from human_feedback_site.feedback.backup import postgresql, sqlite
from human_feedback_site.feedback.backup.clips import check_room_for_clips, restore_clips
from human_feedback_site.feedback.backup.folders import check_room, restore_folder
from human_feedback_site.feedback.backup.manifest import Database, Manifest, read_manifest, secret_key_digest
from human_feedback_site.feedback.backup.write import KEPT, replaced_migrations
from human_feedback_site.feedback.errors import BackupError
from human_feedback_site.feedback.media.store import media_store, name_of
from human_feedback_site.private import make_private_folder


def restore(folder: Path, runs: Path) -> Iterator[str]:
    """Check a backup and its destination, then restore it, yielding a line for each part.

    The database is restored last, so if it has the labels, the restore is complete. Raises BackupError; if
    the backup is damaged or the destination isn't empty, nothing has been changed.
    """
    manifest = read_manifest(folder)
    check_room(folder / "runs", runs)
    if manifest.database is not None:
        _check_database(manifest.database)
        _check_store(manifest)
        check_room_for_clips(media_store(), folder / "clips")
    yield f"checked: {folder}, made at {manifest.made_at}"
    if (folder / "runs").is_dir():
        yield f"runs: {restore_folder(folder / 'runs', runs)} files to {runs}"
    _restore_secrets(folder / "state")
    if manifest.database is not None:
        yield f"clips: {restore_clips(media_store(), folder / 'clips')} to {name_of(media_store())}"
        _restore_database(folder / "database", manifest.database)
        yield f"database: {manifest.database.rows('feedback_label')} labels, row counts checked"
        if manifest.secret_key != secret_key_digest() and not (folder / "state/secret_key").exists():
            yield "NOTICE: SECRET_KEY differs from the backup's: old invitations and sessions are invalid"


def _check_database(database: Database) -> None:
    vendor = connections["default"].vendor
    if database.vendor != vendor:
        raise BackupError(
            f"The backup contains a {database.vendor} database, but this site uses {vendor}; "
            f"{'unset' if database.vendor == 'sqlite' else 'set a PostgreSQL URL in'} DATABASE_URL"
        )
    loader = MigrationLoader(None)
    known, replaced = loader.graph.nodes, replaced_migrations(loader)
    for at in database.migrations.items():
        if at not in known and at not in replaced:
            raise BackupError(
                f"The backup was made by a newer version of RL-Teacher (migration {at[1]}); "
                "restore it with that version"
            )
        if at not in known and known[replaced[at]].replaces[-1] != at:
            raise BackupError(
                f"The backup was made before version 0.1.0 (migration {at[1]}); restore it with 0.1.0, and "
                "back up again"
            )
    if vendor == "sqlite" and _is_served():
        raise BackupError(f"The site in {settings.STATE_DIR} is running; stop the runs that use it first")
    found = (sqlite if vendor == "sqlite" else postgresql).first_row()
    if found is not None:
        raise BackupError(
            f"The database must be empty, but the table {found} has rows; restore into a new database"
        )


def _check_store(manifest: Manifest) -> None:
    """Raise BackupError if nothing says where the clips of an embedded site's runs belong.

    Such a site gets its store from the runs (``teach --storage``), and the state folder is new.
    """
    is_default = Path(settings.TEACHER_STORAGE) == Path(settings.STATE_DIR) / "media"
    if manifest.storage and is_default and not os.environ.get("TEACHER_STORAGE", "").strip():
        raise BackupError(
            f"The backup's clips were in {manifest.storage}; set TEACHER_STORAGE to that, or to the store "
            "that the runs will use from now on"
        )


def _is_served() -> bool:
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
    for name in KEPT:
        if (folder / name).is_file():
            make_private_folder(settings.STATE_DIR)
            part = settings.STATE_DIR / f".{name}.part"
            shutil.copyfile(folder / name, part)
            part.chmod(0o600)
            part.replace(settings.STATE_DIR / name)


def _restore_database(folder: Path, database: Database) -> None:
    """Restore the database with the backup's schema, then migrate it to the current schema."""
    if database.vendor == "sqlite":
        sqlite.load(folder, database)
    else:
        postgresql.drop_empty_tables()
        replaced = replaced_migrations(MigrationLoader(None))
        for at in database.migrations.items():
            call_command("migrate", *replaced.get(at, at), interactive=False, verbosity=0)
        postgresql.load(folder, database)
    call_command("migrate", interactive=False, verbosity=0)
