"""The site as it runs in production: settings from the environment, gunicorn, behind a proxy with TLS."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from django.contrib.auth.models import User
from django.core.management import call_command

from human_feedback_site.feedback.services.accounts import create_token
from tests.databases import Using
from tests.waiting import completed, wait_until

ROOT = Path(__file__).parents[3]


class Production:
    """A site on the database at an address, reached by people at https://teach.example.org."""

    def __init__(self, database_url: str, folder: Path, using: Using) -> None:
        self.environment = {
            "PATH": os.environ["PATH"],
            "DATABASE_URL": database_url,
            "SECRET_KEY": "only-for-tests-" + "".join(map(str, range(30))),
            "TEACHER_STATE_DIR": str(folder),
            "TEACHER_PUBLIC_URL": "https://teach.example.org",
        }
        self._using = using
        self._log = folder / "log"
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python with ``words``, such as ``manage.py check``."""
        return completed([sys.executable, *words], cwd=ROOT, env=self.environment | environment, timeout=240)

    def migrate(self) -> str:
        """Make the tables, and a researcher whose token is returned."""
        with self._using(self.environment["DATABASE_URL"]):
            call_command("migrate", verbosity=0)
            return create_token(User.objects.create(username="ada", is_staff=True))

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start the server on a port that is free."""
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "human_feedback_site.serve", "--bind", "127.0.0.1:0"],
                cwd=ROOT, env=self.environment | environment, stdout=log, stderr=log,
            )  # fmt: skip
        self._started.append(process)
        return process

    @property
    def url(self) -> str:
        """Return where the server answers, once it does."""
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and self._started[-1].poll() is None:
            address = re.search(r"Listening at: (http://[\d.:]+)", self.text())
            if address is not None:
                requests.get(f"{address[1]}/livez", timeout=60)  # it listens before a worker is there
                return address[1]
            time.sleep(0.05)
        raise AssertionError(self.text())

    def until(self, text: str) -> None:
        """Wait until the server's log holds something."""
        wait_until(lambda: text in self.text(), self.text)

    def log(self) -> list[dict[str, Any]]:
        """Return the lines of the server's log, all of which are JSON."""
        return [json.loads(line) for line in self.text().splitlines()]

    def text(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        """End what was started."""
        for process in self._started:
            process.terminate()
            process.wait(120)


@pytest.fixture(scope="session")
def production(using: Using) -> Callable[[str, Path], Production]:
    """Make a site on the database of an address; its files are in the folder."""
    return lambda database_url, folder: Production(database_url, folder, using)


@pytest.fixture
def new_site(production: Callable[[str, Path], Production], tmp_path: Path) -> Iterator[Production]:
    """A site on SQLite, whose database is empty."""
    site = production(f"sqlite:///{tmp_path / 'site.sqlite3'}", tmp_path)
    yield site
    site.stop()


@pytest.fixture
def site(new_site: Production, migrated_database: Path, tmp_path: Path) -> Production:
    """A site on SQLite, whose database has its tables already."""
    shutil.copy(migrated_database, tmp_path / "site.sqlite3")
    return new_site
