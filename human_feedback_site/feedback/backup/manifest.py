"""``manifest.json``: the list of a backup's files and tables, checked before a restore."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings

from human_feedback_site.feedback.errors import BackupError

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Table:
    """A table in a backup."""

    # column names in the order used in the copy; empty for SQLite, which is copied as one file
    columns: Sequence[str]
    rows: int  # number of rows


@dataclass(frozen=True)
class Database:
    """The database in a backup."""

    vendor: str  # Django's ``connection.vendor``: ``sqlite`` or ``postgresql``
    tables: Mapping[str, Table]  # the tables, keyed by name
    migrations: Mapping[str, str]  # latest migration of each app, such as ``{"feedback": "0002_0_2_0"}``
    # last value of each PostgreSQL sequence, or None if it was never used
    sequences: Mapping[str, int | None] = field(default_factory=dict)

    def rows(self, table: str) -> int:
        """Return the recorded number of rows in a table, or 0 if the backup has no such table."""
        return self.tables[table].rows if table in self.tables else 0


@dataclass(frozen=True)
class Manifest:
    """A backup's contents."""

    made_at: str  # start time of the backup, in ISO 8601 format
    database: Database | None  # the copied database; None if the backup has only run directories
    # hash of the backed-up site's ``SECRET_KEY``; a restore compares it with the hash of the destination
    # site's key
    secret_key: str
    # size in bytes and SHA-256 of each file, keyed by path relative to the backup folder
    files: Mapping[str, tuple[int, str]]
    # the clip store, ``s3://bucket/prefix`` or a folder; empty for the folder in the state folder, and in
    # backups of earlier versions
    storage: str = ""


def write_manifest(folder: Path, made_at: str, database: Database | None) -> Manifest:
    """Reread every file in a backup, and write the manifest with the files' sizes and hashes."""
    files = {name: (path.stat().st_size, digest_of(path)) for name, path in files_in(folder)}
    is_default = Path(settings.TEACHER_STORAGE) == Path(settings.STATE_DIR) / "media"
    storage = "" if is_default else settings.TEACHER_STORAGE
    manifest = Manifest(made_at, database, secret_key_digest(), files, storage)
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read a backup's manifest and check every file against it."""
    try:
        kept = json.loads((folder / NAME).read_bytes())
    except FileNotFoundError:
        raise BackupError(f"{folder} is not a complete backup: {NAME} is missing") from None
    except (ValueError, RecursionError):
        raise _damaged(folder, NAME) from None
    if isinstance(kept, dict) and isinstance(kept.get("format"), int) and kept["format"] > FORMAT:
        raise BackupError(f"{folder} was made by a newer version of RL-Teacher; restore it with that version")
    try:
        manifest = _manifest(kept)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged(folder, NAME) from None
    found = dict(files_in(folder))
    for name, (size, digest) in manifest.files.items():
        if name not in found:
            raise BackupError(f"{folder} is incomplete: {name} is missing; restore a different backup")
        if found[name].stat().st_size != size or digest_of(found[name]) != digest:
            raise _damaged(folder, name)
    more = sorted(found.keys() - manifest.files.keys())
    if more:
        raise BackupError(f"{folder} has a file that is not listed in {NAME}: {more[0]}; remove it first")
    return manifest


def _manifest(kept: Any) -> Manifest:
    database = kept["database"]
    if database is not None:
        tables = {name: Table(**table) for name, table in database["tables"].items()}
        database = Database(**{**database, "tables": tables})
    files = {str(name): (int(size), str(digest)) for name, (size, digest) in kept["files"].items()}
    storage = str(kept.get("storage", ""))
    return Manifest(str(kept["made_at"]), database, str(kept["secret_key"]), files, storage)


def _damaged(folder: Path, name: str) -> BackupError:
    return BackupError(
        f"{folder} is damaged: {name} has changed since the backup was made; restore a different backup"
    )


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative path and the full path of every file in a backup except its manifest."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path != folder / NAME:
                yield path.relative_to(folder).as_posix(), path


def digest_of(path: Path) -> str:
    """Return a file's SHA-256 hex digest."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def secret_key_digest() -> str:
    """Return a one-way hash of ``SECRET_KEY``."""
    return hashlib.sha256(f"backup:{settings.SECRET_KEY}".encode()).hexdigest()
