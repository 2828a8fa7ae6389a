"""Test what ``manage.py backup`` and ``restore`` refuse, and what is left where they are interrupted."""

import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deployment.backed_up import (
    KEYS,
    PATH,
    ROOT,
    SITE_KEY,
    done,
    files_below,
    manifest_of,
    put_clips,
    refused,
    rows_of_file,
)
from tests.forks import run_python

SETTINGS = "human_feedback_site.settings"


def test_second_backup_is_refused(tmp_path: Path, embedded: Callable[[Path], dict[str, str]]) -> None:
    site = embedded(tmp_path / "state")
    done("backup backup", site, tmp_path)
    before = files_below(tmp_path / "backup")
    line = refused("backup backup", site, tmp_path)
    assert "backup already exists; each backup needs a new folder" in line
    assert files_below(tmp_path / "backup") == before
    (tmp_path / "empty").mkdir()
    assert "empty already exists" in refused("backup empty", site, tmp_path)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("runs", "runs/backup is inside runs"),
        ("nothing", "Nothing to back up: there are no run directories in "),
        ("tables", "The database has unapplied migrations; run manage.py migrate first"),
        ("clips", "media lacks 2 of 2 clips that the site shows, such as hopper/first.mp4"),
        ("damage", "The database cannot be read or written: database disk image is malformed"),
        ("elsewhere", "/proc"),
    ],
)
def test_a_backup_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, how: str, expected: str, embedded: Callable[[Path], dict[str, str]]
) -> None:
    site = {"TEACHER_STATE_DIR": str(tmp_path / "state")}
    folder = "runs/backup" if how == "runs" else "/proc/backup" if how == "elsewhere" else "backup"
    database = tmp_path / "state/site.sqlite3"
    if how not in {"nothing", "tables"}:
        embedded(tmp_path / "state")
    if how == "tables":
        database.parent.mkdir()
        sqlite3.connect(database).close()
    if how == "clips":
        shutil.rmtree(tmp_path / "state/media/hopper")
    if how == "damage":
        content = database.read_bytes()
        database.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))
    assert expected in refused(f"backup {folder}", site, tmp_path)
    assert [path.name for path in tmp_path.rglob("*backup*")] == []
    if how == "clips":
        said = done(f"backup {folder} --without-lost-clips", site, tmp_path)
        assert "media, which lacks 2 of 2 clips that the site shows, such as hopper/first.mp4" in said


def test_full_disk_leaves_nothing(tmp_path: Path, embedded: Callable[[Path], dict[str, str]]) -> None:
    site = embedded(tmp_path / "state")
    limited = ["bash", "-c", 'ulimit -f "$0"; exec "$@"', "50", sys.executable, str(ROOT / "manage.py")]
    answer = subprocess.run(
        [*limited, "backup", "backup"],
        cwd=tmp_path,
        env={"PATH": PATH, **site},
        check=False,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("CommandError: No backup was made. ")
    assert [path.name for path in tmp_path.rglob("*backup*")] == []


def _cut_off(backup: Path) -> None:
    path = backup / "clips" / KEYS[0]
    path.write_bytes(path.read_bytes()[:-1])


def _change(backup: Path) -> None:
    path = backup / "database/site.sqlite3"
    content = path.read_bytes()
    path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])


def _newer_format(backup: Path) -> None:
    path = backup / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))


def _newer_tables(backup: Path) -> None:
    path = backup / "manifest.json"
    text, count = re.subn(r'"feedback": "\w+"', '"feedback": "9999_from_the_future"', path.read_text())
    assert count == 1
    path.write_text(text)


HARMS: list[tuple[Callable[[Path], object], str]] = [
    (_cut_off, "is damaged: clips/hopper/first.mp4 has changed"),
    (_change, "is damaged: database/site.sqlite3 has changed"),
    (lambda backup: (backup / "state/token").unlink(), "is incomplete: state/token is missing"),
    (lambda backup: (backup / "more").touch(), "has a file that is not listed in manifest.json: more"),
    (
        lambda backup: (backup / "manifest.json").unlink(),
        "is not a complete backup: manifest.json is missing",
    ),
    (lambda backup: (backup / "manifest.json").write_text("[]"), "is damaged: manifest.json"),
    (lambda backup: (backup / "manifest.json").write_text('{"format": 1}'), "is damaged: manifest.json"),
    (_newer_format, "was made by a newer version of RL-Teacher; restore it with that version"),
    (_newer_tables, "The backup was made by a newer version of RL-Teacher (migration 9999_from_the_future)"),
]
_RESTORE_EACH = """
import sys
import django
django.setup()
from django.core.management import CommandError, call_command

for folder in sys.argv[1:]:
    try:
        call_command("restore", folder)
    except CommandError as error:
        print(error)
"""


def test_incomplete_backup_restores_nothing(tmp_path: Path, backed_up: Callable[[Path], None]) -> None:
    """In one process: each is refused before anything is changed."""
    folders = [str(number) for number in range(len(HARMS))]
    for folder, (harm, _) in zip(folders, HARMS, strict=True):
        backed_up(tmp_path / folder)
        harm(tmp_path / folder)
    variables = {"PATH": PATH, "DJANGO_SETTINGS_MODULE": SETTINGS}
    answer = run_python("-c", _RESTORE_EACH, *folders, environment=variables, cwd=tmp_path)
    for line, (_, expected) in zip(answer.stdout.splitlines(), HARMS, strict=True):
        assert expected in line
    assert {name.split("/")[0] for name in files_below(tmp_path)} <= {*folders, "state"}
    assert set(files_below(tmp_path / "state")) <= {"secret_key"}  # made by manage.py, whatever it is asked


def test_only_an_empty_system_is_restored_into(
    run_dir: Path, tmp_path: Path, embedded: Callable[[Path], dict[str, str]]
) -> None:
    site = embedded(tmp_path / "state")
    done("backup backup", site, tmp_path)
    assert "The database must be empty, but the table auth_user has rows" in refused(
        "restore backup", site, tmp_path
    )
    elsewhere = {"TEACHER_STATE_DIR": str(tmp_path / "new")}
    (run_dir / "checkpoint").write_bytes(b"newer weights")
    line = refused("restore backup", elsewhere, tmp_path)
    assert line.endswith("but contains Hopper-v5/x/checkpoint; move its contents elsewhere first")
    (run_dir / "checkpoint").write_bytes(b"weights")  # as in the backup, as after a restoration cut off
    put_clips(tmp_path / "new/media")
    (tmp_path / "new/media" / KEYS[0]).write_bytes(b"another")
    assert "but contains hopper/first.mp4; empty it first" in refused("restore backup", elsewhere, tmp_path)
    put_clips(tmp_path / "new/media")
    done("restore backup", elsewhere, tmp_path)
    assert rows_of_file(tmp_path / "new/site.sqlite3") == rows_of_file(tmp_path / "state/site.sqlite3")
    postgresql = {**elsewhere, "SECRET_KEY": SITE_KEY, "DATABASE_URL": "postgresql://a:b@127.0.0.1:1/c"}
    line = refused("restore backup", postgresql, tmp_path)
    assert "contains a sqlite database, but this site uses postgresql; unset DATABASE_URL" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_backup_leaves_nothing_that_looks_whole(
    tmp_path: Path,
    free_port: Callable[[], int],
    number: signal.Signals,
    embedded: Callable[[Path], dict[str, str]],
) -> None:
    site = embedded(tmp_path / "state")
    with socket.create_server(("127.0.0.1", port := free_port())) as store:  # it never answers
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "PATH": PATH}
        there = {"TEACHER_STORAGE": "s3://clips", "S3_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        command = [sys.executable, str(ROOT / "manage.py"), "backup", "backup"]
        process = subprocess.Popen(command, cwd=tmp_path, env={**site, **keys, **there})
        store.settimeout(120)
        with store.accept()[0]:  # runs and database are copied
            process.send_signal(number)
            process.wait()
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert not (tmp_path / "backup").exists()
    part = tmp_path / ".backup.part"
    assert part.exists() == (number != signal.SIGINT)
    assert not (part / "manifest.json").exists()
    done("backup backup", site, tmp_path)
    assert not part.exists()
    assert manifest_of(tmp_path / "backup")["database"]["tables"]["feedback_label"]["rows"] == 1
