"""A rolling restart with a migration: what one more version of the site is in ``benchmarks.chaos``."""

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg

from stack.process import ROOT, Process, State

_SITE = ("human_feedback_site", "manage.py")
_PACKAGE = Path("human_feedback_site") / "feedback"
# All that an answer writes to: locks that wait for requests, and hold others up.
_MIGRATION = '''"""Of a chaos run alone; processes of the version before need none of it."""

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
    """The site's code in one version after the other, each with a migration that those before do not know.

    The first is the code as it is. Labels tell whether a new version has written them: the column that it
    adds has 1 in those, and 0 in others.

    Args:
        folder: of the versions, made anew.

    Attributes:
        current: a link to the folder of the one that programs are started in.
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        self.current = folder / "current"
        self._folder = folder
        self._names: list[str] = []
        # The database may know the migrations of earlier batches.
        self._new_names = (f"chaos_{time.time_ns() // 10**9}_{number}" for number in itertools.count(1))
        self.switch(self._copied())

    def make(self) -> Path:
        """Make the next version and return its folder; programs are still started in the current one."""
        self._names.append(next(self._new_names))
        return self._copied()

    def switch(self, version: Path) -> None:
        """From now on start programs in this version."""
        link = self._folder / "next"
        link.symlink_to(version.name)
        link.replace(self.current)

    def new_labels(self, url: str) -> int:
        """How many labels the newest version has written into the database at an address."""
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
    """Bring the next version, a step at a time: migrate, then restart one program after the other.

    As ``docs/deployment.md`` tells it. Whatever dies meanwhile is waited for, or goes on in the new version.

    Args:
        processes: of the supervisor, who looks at them between the steps and starts again what has ended.
        set_up: makes the program that migrates, in the folder of a version.
        names: of what is restarted, in this order.
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
