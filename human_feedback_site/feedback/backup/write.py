"""Makes a backup in a folder that gets its final name only after all files have been checked."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from human_feedback_site.feedback.backup import postgresql, sqlite
from human_feedback_site.feedback.backup.clips import copy_clips
from human_feedback_site.feedback.backup.folders import copy_folder
from human_feedback_site.feedback.backup.manifest import Database, Manifest, write_manifest
from human_feedback_site.feedback.errors import BackupError
from human_feedback_site.feedback.media.store import media_store, name_of

# Files in the state folder; admin_password is that of a site made by 0.1.0.
KEPT = ("secret_key", "token", "admin_password", "secrets.json")
ENV = Path(".env")  # Docker Compose's settings, in the working directory


def back_up(folder: Path, runs: Path, *, without_lost_clips: bool = False) -> Iterator[str]:
    """Copy runs, database, clips and secrets into a new folder, yielding a progress line for each part.

    Clips that the site shows but the media store lacks raise BackupError unless ``without_lost_clips``.
    """
    _refuse_inside(folder, runs)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    with _new_folder(folder) as part:
        n_files = copy_folder(runs, part / "runs") if runs.is_dir() else 0
        yield f"runs: {_counted(n_files, 'file')} from {runs}"
        database = None
        if _has_database():
            database, needed = _dump(part / "database")
            yield f"database: {_labels(database)}"
            yield f"clips: {_clips(part / 'clips', needed, without_lost_clips)}"
        elif n_files:
            yield f"database: none, because {sqlite.path_of_database()} does not exist"
        else:
            raise BackupError(
                f"Nothing to back up: there are no run directories in {runs.resolve()} and no database "
                f"{sqlite.path_of_database()}; run the command in the folder that has them"
            )
        _copy_secrets(part)
        manifest = write_manifest(part, made_at, database)
        os.sync()
    yield f"backup: {folder}, {_size(manifest)}, all files checked"


def _refuse_inside(folder: Path, runs: Path) -> None:
    for source in (runs, Path(settings.TEACHER_STORAGE)):  # no folder is inside an s3:// URL
        if folder.resolve().is_relative_to(source.resolve()):
            raise BackupError(
                f"{folder} is inside {source}, which is part of the backup; choose a folder elsewhere"
            )


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a locked temporary folder, and rename it to ``folder`` if the ``with`` block succeeds.

    If the block fails, the temporary folder is deleted. Its name is derived from ``folder``, so it may
    contain files from a backup that was killed; they are deleted first.
    """
    if folder.exists() or folder.is_symlink():
        raise BackupError(f"{folder} already exists; each backup needs a new folder, so choose another name")
    part = folder.absolute().with_name(f".{folder.absolute().name}.part")
    part.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(part, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"Another backup to {folder} is running; wait until it ends") from None
        try:
            for left in part.iterdir():  # left by a killed process
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield part
            _take_name(part, folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _take_name(part: Path, folder: Path) -> None:
    try:
        part.rename(folder)
    except OSError:
        if folder.exists():
            raise BackupError(
                f"{folder} was created while the backup was running; choose another name"
            ) from None
        raise


def replaced_migrations(loader: MigrationLoader) -> Mapping[tuple[str, str], tuple[str, str]]:
    """Return the migrations that were squashed, which may no longer exist, and what replaced each."""
    migrations = loader.disk_migrations.items()
    return {old: new for new, migration in migrations for old in migration.replaces}


def newer_migration(connection: BaseDatabaseWrapper) -> str | None:
    """Return the name of an applied migration that this version of the site or of Django lacks, if any."""
    loader = MigrationLoader(None)
    applied = MigrationRecorder(connection).applied_migrations().keys()
    unknown = applied - loader.disk_migrations.keys() - replaced_migrations(loader).keys()
    return min((name for app, name in unknown if app in loader.migrated_apps), default=None)


def _has_database() -> bool:
    """Return True if there is a database to back up."""
    return connections["default"].vendor != "sqlite" or sqlite.path_of_database().exists()


def _dump(folder: Path) -> tuple[Database, set[str]]:
    executor = MigrationExecutor(connections["default"])
    leaves = executor.loader.graph.leaf_nodes()
    if executor.migration_plan(leaves):
        raise BackupError("The database has unapplied migrations; run manage.py migrate first")
    if newer := newer_migration(connections["default"]):
        raise BackupError(
            f"The database was migrated by a newer version of RL-Teacher (migration {newer}); "
            "back up with that version"
        )
    dump = sqlite.dump if connections["default"].vendor == "sqlite" else postgresql.dump
    return dump(folder, dict(leaves))


def _clips(folder: Path, needed: set[str], without_lost: bool) -> str:
    store = media_store()
    copied = copy_clips(store, folder)
    missing = needed - copied
    if missing:
        lacks = f"lacks {len(missing)} of {_counted(len(needed), 'clip')} that the site shows"
        if without_lost:
            return f"{len(copied)} from {name_of(store)}, which {lacks}, such as {min(missing)}"
        raise BackupError(
            f"{name_of(store)} {lacks}, such as {min(missing)}; set TEACHER_STORAGE to the site's own store, "
            "put the clips back, or, if they are lost for good, add --without-lost-clips"
        )
    return f"{len(copied)} from {name_of(store)}, including all {len(needed)} that the site shows"


def _copy_secrets(part: Path) -> None:
    found = {f"state/{name}": settings.STATE_DIR / name for name in KEPT} | {"env": ENV}
    for name, path in found.items():
        if path.is_file():
            (part / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, part / name)


def _labels(database: Database) -> str:
    labels, comparisons = (database.rows(f"feedback_{name}") for name in ("label", "comparison"))
    return f"{_counted(labels, 'label')}, {_counted(comparisons, 'comparison')}, row counts checked"


def _size(manifest: Manifest) -> str:
    megabytes = sum(size for size, _ in manifest.files.values()) / 1e6
    return f"{_counted(len(manifest.files), 'file')}, {megabytes:.1f} MB"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
