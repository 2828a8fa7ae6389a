"""Processes that set up one new site in the same moment, as two replicas of it do when they start."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

PROGRAM = """
import multiprocessing
import django
django.setup()
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.core.management import call_command
from human_feedback_site.feedback.models import ApiToken
from human_feedback_site.feedback.services.accounts import token_of

processes = multiprocessing.get_context("fork")
begin = processes.Barrier(3)

def set_up():
    begin.wait()
    call_command("setup_embedded")

started = [processes.Process(target=set_up) for _ in range(3)]
[process.start() for process in started]
[process.join() for process in started]
assert [process.exitcode for process in started] == [0, 0, 0]
password, token = ((settings.STATE_DIR / name).read_text().strip() for name in ("admin_password", "token"))
admin = authenticate(username="admin", password=password)
assert admin is not None
assert token_of(token).user == admin
assert (User.objects.count(), ApiToken.objects.count()) == (1, 1)
"""


@pytest.fixture
def new_database(db: None, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a site whose database is new: SQLite's file, or one on the server in use."""
    variables = {"PATH": os.environ["PATH"], "TEACHER_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "state").mkdir()
    if connection.vendor != "postgresql":
        yield variables
        return
    name = f"set_up_at_once_{os.getpid()}"
    server = os.environ["DATABASE_URL"].rpartition("/")[0]
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield variables | {"DATABASE_URL": f"{server}/{name}", "SECRET_KEY": os.environ["SECRET_KEY"]}
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_concurrent_setup_makes_one_admin(new_database: dict[str, str]) -> None:
    environment = new_database | {"DJANGO_SETTINGS_MODULE": "human_feedback_site.settings"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
