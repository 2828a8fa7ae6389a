"""``manage.py backup`` and ``restore`` on real servers and files: what comes back, and what is refused."""

import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from human_feedback_site.feedback.api.examples import COMPARISONS_CSV, LABELS_CSV
from teacher.data.ledger import Ledger
from teacher.settings.config_files import load_config
from tests.deployment.backed_up import (
    CLIP,
    KEYS,
    PATH,
    ROOT,
    SITE_KEY,
    done,
    files_below,
    label_one_pair,
    manifest_of,
    put_clips,
    refused,
    rows_of,
    rows_of_file,
    served_by_s3,
)
from tests.forks import run_python
from tests.waiting import completed, free_port


@pytest.mark.slow
def test_postgresql_and_s3_come_back_whole(
    migrated_postgresql: Callable[[str], str],
    new_database: Callable[[str], str],
    tmp_path: Path,
    run_dir: Path,
) -> None:
    """Into a database without tables; one with tables is in the test of an older version."""
    (tmp_path / ".env").write_text("SECRET_KEY=of-the-site\n")
    with served_by_s3(tmp_path / "old", free_port()) as (site, store):
        site["DATABASE_URL"] = migrated_postgresql("mine")
        store.create_bucket(Bucket="clips")
        for key in (*KEYS, ".setup/probe"):
            store.put_object(Bucket="clips", Key=key, Body=key.encode() + CLIP)
        label_one_pair(site, tmp_path)
        said = done("backup backup", site, tmp_path)
        before = rows_of(site["DATABASE_URL"])
    assert "database: 1 label, 1 comparison, row counts checked" in said
    assert "clips: 2 from s3://clips, including all 2 that the site shows" in said
    assert (tmp_path / "backup/env").read_text() == "SECRET_KEY=of-the-site\n"
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    runs = files_below(tmp_path / "runs")
    (tmp_path / "runs").rename(tmp_path / "lost")
    with served_by_s3(tmp_path / "new", free_port()) as (site, store):
        site["DATABASE_URL"] = new_database("restored")
        assert "database: 1 labels, row counts checked" in done("restore backup", site, tmp_path)
        for key in KEYS:
            found = store.get_object(Bucket="clips", Key=key)
            assert found["Body"].read() == key.encode() + CLIP
            assert found["ContentType"] == "video/mp4"
        assert [item["Key"] for item in store.list_objects_v2(Bucket="clips")["Contents"]] == list(KEYS)
        assert rows_of(site["DATABASE_URL"]) == before
        assert len(before["feedback_label"]) == len(before["feedback_decision"]) == 1
        assert files_below(tmp_path / "runs") == runs
        assert load_config(run_dir)[0].n_labels == 40
        assert "The database must be empty, but the table auth_user has rows" in refused(
            "restore backup", site, tmp_path
        )
        site["DATABASE_URL"] = new_database("third")
        store.put_object(Bucket="clips", Key="other/first.mp4", Body=CLIP)
        line = refused("restore backup", site, tmp_path)
        assert line.endswith(
            "s3://clips must not contain any clips, but contains other/first.mp4; empty it first"
        )
        assert rows_of(site["DATABASE_URL"]) == {"sequences": []}


_DUMP_AS_BEFORE = """
import sys
from pathlib import Path
import django
django.setup()
from django.core.management import call_command
from django.db.migrations.loader import MigrationLoader
from human_feedback_site.feedback.backup import postgresql
from human_feedback_site.feedback.backup.manifest import write_manifest

call_command("migrate", "feedback", "0001_0_1_0", verbosity=0)
last = {**dict(MigrationLoader(None).graph.leaf_nodes()), "feedback": "0018_clips_missing"}
folder = Path("backup")
folder.mkdir()
postgresql.NEEDED_CLIPS = "SELECT first_key, second_key FROM feedback_comparison"  # as its tables have them
write_manifest(folder, "2026-01-01", postgresql.dump(folder / "database", last)[0])
"""


@pytest.mark.slow
def test_older_backup_is_upgraded(migrated_postgresql: Callable[[str], str], tmp_path: Path) -> None:
    site = {
        "SECRET_KEY": SITE_KEY,
        "DATABASE_URL": migrated_postgresql("older"),
        "TEACHER_STORAGE": str(tmp_path / "c"),
    }
    environment = {
        "PATH": PATH,
        "DJANGO_SETTINGS_MODULE": "human_feedback_site.settings",
    }
    dumped = run_python("-c", _DUMP_AS_BEFORE, environment={**environment, **site}, cwd=tmp_path)
    assert dumped.returncode == 0, dumped.stderr
    line = refused("backup now", site, tmp_path)
    assert line.endswith("The database has unapplied migrations; run manage.py migrate first")
    site["DATABASE_URL"] = migrated_postgresql("newest")  # newer tables than those of the backup
    done("restore backup", site, tmp_path)
    with psycopg.connect(site["DATABASE_URL"]) as connection:
        found = connection.execute("SELECT name FROM django_migrations WHERE app = 'feedback'").fetchall()
    assert ("0002_0_2_0",) in found


def test_embedded_site_and_runs_are_restored_while_in_use(run_dir: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    site = {"TEACHER_STATE_DIR": str(state)}
    put_clips(state / "media")
    done("setup_embedded", site, tmp_path)
    secret = (state / "secret_key").read_text()
    ledger = Ledger(run_dir / "ledger.sqlite3")
    with closing(sqlite3.connect(state / "site.sqlite3")) as held:
        held.execute("SELECT * FROM auth_user").fetchall()  # while somebody reads, the log of writes stays
        label_one_pair({**site, "SECRET_KEY": ""}, tmp_path)
        ledger.record([], cursor=7)
        assert (state / "site.sqlite3-wal").stat().st_size > 0  # what a plain copy would miss
        done("backup backup", site, tmp_path)
        before = rows_of_file(state / "site.sqlite3")
    ledger.close()
    media = files_below(state / "media")
    for name in ("state", "runs"):
        (tmp_path / name).rename(tmp_path / f"{name}-lost")
    done("restore backup", site, tmp_path)
    assert rows_of_file(state / "site.sqlite3") == before
    assert len(before["feedback_label"]) == 1
    assert files_below(state / "media") == media
    assert (state / "secret_key").read_text() == secret
    for name in ("site.sqlite3", "secret_key", "token"):
        assert (state / name).stat().st_mode & 0o077 == 0
    with closing(Ledger(run_dir / "ledger.sqlite3", read_only=True)) as restored:
        assert restored.cursor == 7
    assert load_config(run_dir)[0].name == "x"
    assert (run_dir / "checkpoint").read_bytes() == b"weights"
    done("setup_embedded", site, tmp_path)
    after = rows_of_file(state / "site.sqlite3")  # the admin and the token are those of before
    assert after["auth_user"] == before["auth_user"]
    assert len(after["feedback_apitoken"]) == len(before["feedback_apitoken"])


def test_clips_come_from_the_sites_store(tmp_path: Path, embedded: Callable[[Path], dict[str, str]]) -> None:
    """The store is set as by ``teach --storage``; the command gets only the state folder."""
    site, clips = embedded(tmp_path / "state"), tmp_path / "clips"
    (tmp_path / "state/media").rename(clips)
    (tmp_path / "state/site").mkdir()
    (tmp_path / "state/site/lock").write_text(json.dumps({"url": None, "storage": str(clips)}))
    said = done("backup backup", site, tmp_path)
    assert f"clips: 2 from the folder {clips}, including all 2 that the site shows" in said
    new = {**site, "TEACHER_STATE_DIR": str(tmp_path / "new")}
    line = refused("restore backup", new, tmp_path)
    assert f"The backup's clips were in {clips}; set TEACHER_STORAGE to that, or to the store" in line
    assert not (tmp_path / "new/site.sqlite3").exists()
    with closing(sqlite3.connect(tmp_path / "state/site.sqlite3")) as database, database:
        database.execute("UPDATE feedback_experiment SET trainer_seen_at = '2020-01-01 00:00:00'")
    assert "2 clips in storage" in done("delete_experiment hopper --no-input", site, tmp_path)
    assert files_below(clips) == {}


@pytest.mark.parametrize("left_out", ["runs", "runs/Hopper-v5/x/ledger.sqlite3", "state"])
def test_absent_parts_are_left_out(
    run_dir: Path, tmp_path: Path, left_out: str, embedded: Callable[[Path], dict[str, str]]
) -> None:
    """No run, a run without labels, or runs that asked another site or nobody."""
    Ledger(run_dir / "ledger.sqlite3").close()
    embedded(tmp_path / "state")
    missing = tmp_path / left_out
    shutil.rmtree(missing) if missing.is_dir() else missing.unlink()
    names = {name for name in files_below(tmp_path) if not name.endswith(("-wal", "-shm"))}
    done("backup backup", {}, tmp_path)
    place = tmp_path / "elsewhere"
    place.mkdir()
    (tmp_path / "backup").rename(place / "backup")
    done("restore backup", {}, place)
    made = {"state/secret_key"} if left_out == "state" else set()  # by manage.py, whatever it is asked
    assert {name for name in files_below(place) if not name.startswith("backup/")} == names | made


@pytest.mark.parametrize("n_others", [0, 1], ids=["a new site", "a site with a labeled pair"])
def test_imported_labels_whose_clips_are_elsewhere_are_backed_up_and_deleted(
    embedded: Callable[[Path], dict[str, str]], tmp_path: Path, n_others: int
) -> None:
    site = {"TEACHER_STATE_DIR": str(tmp_path / "state")}
    if n_others:
        embedded(tmp_path / "state")
    else:  # where nobody has made a folder for clips yet
        done("setup_embedded", site, tmp_path)
    (tmp_path / "pairs.csv").write_text(COMPARISONS_CSV, newline="")
    (tmp_path / "labels.csv").write_text(LABELS_CSV, newline="")
    name = COMPARISONS_CSV.splitlines()[1].split(",")[11].split("/")[0]
    said = done(f"import_labels {name} pairs.csv labels.csv --owner admin", site, tmp_path)
    assert said == "1 comparison; 1 label; 0 undone.\n"
    said = done("backup backup", site, tmp_path)
    assert f"clips: {2 * n_others} from " in said
    assert f"including all {2 * n_others} that the site shows" in said

    shutil.rmtree(tmp_path / "state")
    done("restore backup", site, tmp_path)
    assert len(rows_of_file(tmp_path / "state/site.sqlite3")["feedback_label"]) == 1 + n_others
    done(f"delete_experiment {name} --no-input", site, tmp_path)
    assert len(rows_of_file(tmp_path / "state/site.sqlite3")["feedback_label"]) == n_others


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
    answer = completed([*limited, "backup", "backup"], cwd=tmp_path, env={"PATH": PATH, **site})
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

*options, folders = sys.argv[1:]
for folder in folders.split():
    try:
        call_command("restore", folder, *options)
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
    backed_up(tmp_path / "good")
    words = ("--check", " ".join([*folders[:-1], "good"]))  # the last is refused only by a site
    for given, expected in (
        ((" ".join(folders),), HARMS),
        (words, [*HARMS[:-1], (None, "checked: good, made at")]),
    ):
        answer = run_python("-c", _RESTORE_EACH, *given, environment=variables, cwd=tmp_path)
        for line, (_, reason) in zip(answer.stdout.splitlines(), expected, strict=True):
            assert reason in line
    assert {name.split("/")[0] for name in files_below(tmp_path)} <= {*folders, "good", "state"}
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
    tmp_path: Path, number: signal.Signals, embedded: Callable[[Path], dict[str, str]]
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
