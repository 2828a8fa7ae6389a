"""Rollout of a new site version (migration, then rolling restart) for ``benchmarks.chaos``."""

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg

from stack.process import ROOT, Process, State

_SITE = ("human_feedback_site", "manage.py")
_PACKAGE = Path("human_feedback_site") / "feedback"
# Alters every table that saving an answer writes to, so its locks contend with requests.
_MIGRATION = '''"""Migration of a chaos run; processes of the previous version work with or without it."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [("feedback", "{before}")]

    operations = [
        migrations.AddField("label", "{name}", models.IntegerField(default=1, db_default=0)),
        migrations.AddField("comparison", "{name}", models.TextField(null=True)),
        migrations.RunSQL("UPDATE feedback_comparison SET {name} = 'was here'", "SELECT 1"),
        migrations.AddIndex("lease", models.Index(fields=["expires_at", "swapped"], name="{name}")),
    ]
'''
_MODELS = """
from django.db import models as _models

Label.add_to_class("{name}", _models.IntegerField(default=1, db_default=0))
Comparison.add_to_class("{name}", _models.TextField(null=True))
Lease._meta.indexes.append(_models.Index(fields=["expires_at", "swapped"], name="{name}"))
"""


class Versions:
    """Copies of the site's code, each with one more migration than the previous one.

    The first version is the unchanged code. Each new version adds a column to labels, which is 1 in labels
    written by that version and 0 in all others.

    Args:
        folder: where to put the versions; anything in it is deleted.

    Attributes:
        current: symlink to the version that programs are started from.
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        self.current = folder / "current"
        self._folder = folder
        self._names: list[str] = []
        # Names are unique because the database may contain migrations of earlier batches.
        self._new_names = (f"chaos_{time.time_ns() // 10**9}_{number}" for number in itertools.count(1))
        self.switch(self._copied())

    def make(self) -> Path:
        """Create the next version and return its folder, without making it the current one."""
        self._names.append(next(self._new_names))
        return self._copied()

    def switch(self, version: Path) -> None:
        """Make a version the current one, which programs start from."""
        link = self._folder / "next"
        link.symlink_to(version.name)
        link.replace(self.current)

    def new_labels(self, url: str) -> int:
        """Return the number of labels in the database at ``url`` that the newest version wrote."""
        if not self._names:
            return 0
        with psycopg.connect(url, connect_timeout=5) as connection:
            statement = f"SELECT count(*) FROM feedback_label WHERE {self._names[-1]} = 1"  # noqa: S608
            row = connection.execute(statement.encode()).fetchone()
        return int(row[0]) if row else 0

    def _copied(self) -> Path:
        version = self._folder / str(len(self._names))
        version.mkdir()
        for name in _SITE:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, version / name)
        migrations, models = version / _PACKAGE / "migrations", version / _PACKAGE / "models" / "__init__.py"
        with models.open("a") as file:
            for name in self._names:
                before = max(path.stem for path in migrations.glob("0*.py"))
                number = int(before[:4]) + 1
                text = _MIGRATION.format(before=before, name=name)
                (migrations / f"{number:04d}_{name}.py").write_text(text)
                file.write(_MODELS.format(name=name))
        return version


def roll(
    versions: Versions, processes: list[Process], set_up: Callable[[Path], Process], names: Sequence[str]
) -> Iterator[None]:
    """Roll out the next version as ``docs/deployment.md`` describes: migrate, then restart the programs.

    A generator that yields while it waits. If a program dies meanwhile, the rollout waits for its restart.

    Args:
        processes: the supervisor's processes; between yields, the supervisor restarts those that ended.
        set_up: returns the migration process, given the folder of a version.
        names: programs to restart, in this order.
    """
    version = versions.make()
    migrating = set_up(version)
    migrating.start()
    processes.append(migrating)
    while migrating.state is not State.DONE:
        yield
    processes.remove(migrating)
    versions.switch(version)
    for process in [process for name in names for process in processes if process.service.name == name]:
        while process.state not in (State.READY, State.DONE):
            yield
        restarts = process.restarts
        process.ask_to_stop()
        while process.state is not State.DONE and not (
            process.state is State.READY and process.restarts > restarts
        ):
            yield
