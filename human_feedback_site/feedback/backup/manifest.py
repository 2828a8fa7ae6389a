"""``manifest.json``: what a backup holds, by which it is checked before anything is restored."""

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
    """A table of the database: its columns, in the order of the copy, and how many rows were copied."""

    columns: Sequence[str]
    rows: int


@dataclass(frozen=True)
class Database:
    """What was copied of a database.

    Attributes:
        vendor: ``sqlite`` or ``postgresql``, as Django names them.
        tables: by name.
        migrations: the last of each app, such as ``{"feedback": "0015_invitation_parts"}``.
        sequences: of PostgreSQL, the last number that each gave; None where it gave none.
    """

    vendor: str
    tables: Mapping[str, Table]
    migrations: Mapping[str, str]
    sequences: Mapping[str, int | None] = field(default_factory=dict)

    def rows(self, table: str) -> int:
        """How many rows a table has; none where there is no such table."""
        return self.tables[table].rows if table in self.tables else 0


@dataclass(frozen=True)
class Manifest:
    """What a backup holds.

    Attributes:
        made_at: the time at which it was begun.
        database: None where there is no site, only runs.
        secret_key: a digest of the site's ``SECRET_KEY``, which tells whether another site has the same.
        files: size and SHA-256 by path.
    """

    made_at: str
    database: Database | None
    secret_key: str
    files: Mapping[str, tuple[int, str]]


def write_manifest(folder: Path, made_at: str, database: Database | None) -> Manifest:
    """Read back every file of a backup and write down what it holds."""
    files = {name: (path.stat().st_size, digest_of(path)) for name, path in files_in(folder)}
    manifest = Manifest(made_at, database, secret_key_digest(), files)
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1)
    (folder / NAME).write_text(text + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Return what a backup holds, once all of it was found to be there as it was written.

    Raises:
        BackupError: it is no backup, one of a newer version, or not whole any more.
    """
    try:
        kept = json.loads((folder / NAME).read_bytes())
    except FileNotFoundError:
        raise BackupError(f"{folder} is no whole backup: it has no {NAME}") from None
    except (ValueError, RecursionError):
        raise _damaged(folder, NAME) from None
    if isinstance(kept, dict) and isinstance(kept.get("format"), int) and kept["format"] > FORMAT:
        raise BackupError(f"{folder} was made by a newer RL-Teacher; restore it with that version")
    try:
        manifest = _manifest(kept)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged(folder, NAME) from None
    found = dict(files_in(folder))
    for name, (size, digest) in manifest.files.items():
        if name not in found:
            raise BackupError(f"{folder} is not whole: {name} is missing; restore another backup")
        if found[name].stat().st_size != size or digest_of(found[name]) != digest:
            raise _damaged(folder, name)
    more = sorted(found.keys() - manifest.files.keys())
    if more:
        raise BackupError(f"{folder} holds what its {NAME} does not name: {more[0]}; take it out first")
    return manifest


def _manifest(kept: Any) -> Manifest:
    database = kept["database"]
    if database is not None:
        tables = {name: Table(**table) for name, table in database["tables"].items()}
        database = Database(**{**database, "tables": tables})
    files = {str(name): (int(size), str(digest)) for name, (size, digest) in kept["files"].items()}
    return Manifest(str(kept["made_at"]), database, str(kept["secret_key"]), files)


def _damaged(folder: Path, name: str) -> BackupError:
    return BackupError(f"{folder} is damaged: {name} is not as it was written; restore another backup")


def files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file of a backup but its manifest, by its path in it."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path != folder / NAME:
                yield path.relative_to(folder).as_posix(), path


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def secret_key_digest() -> str:
    """A digest of this site's key, from which nobody finds the key."""
    return hashlib.sha256(f"backup:{settings.SECRET_KEY}".encode()).hexdigest()
