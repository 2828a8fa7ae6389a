"""Sites to back up, the commands that do it, and what is in them."""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import psycopg

from stack.servers import S3
from tests.forks import run_python

ROOT = Path(__file__).parents[2]
SITE_KEY = "only-for-tests-" + "x" * 40
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"
CLIP = bytes(range(256)) * 300
KEYS = ("hopper/first.mp4", "hopper/second.mp4")

_LABEL_ONE_PAIR = """
import json, os, sys, uuid
import django
django.setup()
from django.core.management import call_command
from django.contrib.auth.models import User
from django.test import Client
from human_feedback_site.feedback.services.accounts import create_token

call_command("migrate", verbosity=0)
owner, _ = User.objects.get_or_create(username="ada", defaults={"is_staff": True})
trainer = Client(headers={"Authorization": f"Bearer {create_token(owner)}"})

def send(client, method, path, body):
    answer = client.generic(method, f"/api/v1{path}", json.dumps(body), content_type="application/json")
    assert answer.status_code in (200, 201), answer.content
    return answer.json()

experiment = {"run_id": str(uuid.uuid4()), "env_id": "x", "prompt": "\u54ea\u4e2a\u66f4\u597d?", "fps": 20}
experiment |= {"has_true_reward": False, "invite": "you"}
invite = send(trainer, "PUT", "/experiments/hopper", experiment)
pair = {side: {"key": f"hopper/{side}.mp4"} for side in ("first", "second")}
asked = {"uuid": str(uuid.uuid4()), "phase": "training", "step": 1, "priority": 1, **pair}
send(trainer, "POST", "/experiments/hopper/comparisons", {"comparisons": [asked]})
browser = Client()
assert browser.get(invite["invite_url"]).status_code == 302
lease = send(browser, "POST", "/experiments/hopper/leases", {"count": 1})["leases"][0]
answer = {"uuid": str(uuid.uuid4()), "lease": lease["uuid"], "choice": "left", "response_ms": 900}
send(browser, "POST", "/labels", answer)
"""


def manage(command: str, variables: Mapping[str, str], cwd: Path) -> "subprocess.CompletedProcess[str]":
    words = [str(ROOT / "manage.py"), *command.split()]
    return run_python(*words, environment={"PATH": PATH, **variables}, cwd=cwd)


def done(command: str, variables: Mapping[str, str], cwd: Path) -> str:
    """Return what a command says that has to succeed."""
    answer = manage(command, variables, cwd)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def refused(command: str, variables: Mapping[str, str], cwd: Path) -> str:
    """The one line of a command that has to fail."""
    answer = manage(command, variables, cwd)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    (line,) = answer.stderr.splitlines()
    return line


def label_one_pair(variables: Mapping[str, str], cwd: Path) -> None:
    """Let a trainer ask and a labeler answer, so that no table of theirs is empty."""
    environment = {
        "PATH": PATH,
        "SECRET_KEY": SITE_KEY,
        "DJANGO_SETTINGS_MODULE": "human_feedback_site.settings",
        "ALLOWED_HOSTS": "testserver",
        "TEACHER_PUBLIC_URL": "http://testserver",
        **variables,
    }
    done = run_python("-c", _LABEL_ONE_PAIR, environment=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr


def rows_of(url: str) -> dict[str, list[str]]:
    """Every row of every table of a PostgreSQL database, and where its sequences stand."""
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = {
            name: sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"').fetchall()))  # noqa: S608
            for (name,) in names
        }
        sequences = connection.execute("SELECT sequencename, last_value FROM pg_sequences").fetchall()
        return {**rows, "sequences": sorted(map(repr, sequences))}


def rows_of_file(path: Path) -> dict[str, list[str]]:
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"').fetchall()))  # noqa: S608
            for (name,) in names
        }


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def s3(folder: Path, port: int) -> Iterator[S3]:
    """A real S3 server without a bucket."""
    server = S3(folder, port, "backup-access-key", "backup-secret-key")
    service = server.service()
    process = subprocess.Popen(service.command(), env=service.environment, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not service.is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()


def put_clips(folder: Path) -> None:
    for key in KEYS:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(key.encode() + CLIP)


def back_up_embedded(folder: Path) -> None:
    """Make the state folder of an embedded site with a labeled pair, and a backup of it."""
    state = folder / "state"
    site = {"TEACHER_STATE_DIR": str(state)}
    put_clips(state / "media")
    done("setup_embedded", site, folder)
    label_one_pair({**site, "SECRET_KEY": ""}, folder)
    done("backup backup", site, folder)


def manifest_of(backup: Path) -> Any:
    return json.loads((backup / "manifest.json").read_text())


@contextmanager
def served_by_s3(folder: Path, port: int) -> Iterator[tuple[dict[str, str], Any]]:
    """The variables of a site whose clips are in an S3 without a bucket, and a client of it."""
    with s3(folder, port) as server:
        variables = server.environment()
        store = boto3.client(
            "s3",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        )
        yield {**variables, "TEACHER_STORAGE": "s3://clips", "SECRET_KEY": SITE_KEY}, store
