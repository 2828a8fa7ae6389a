"""``manage.py backup`` and ``restore`` on real servers and files: what comes back."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from teacher.data.ledger import Ledger
from teacher.settings.saved_config import load_config
from tests.deployment.backed_up import (
    CLIP,
    KEYS,
    PATH,
    SITE_KEY,
    done,
    files_below,
    label_one_pair,
    put_clips,
    refused,
    rows_of,
    rows_of_file,
    served_by_s3,
)
from tests.forks import run_python


def test_postgresql_and_s3_come_back_whole(
    migrated_postgresql: Callable[[str], str],
    new_database: Callable[[str], str],
    tmp_path: Path,
    free_port: Callable[[], int],
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
    for name in ("site.sqlite3", "secret_key", "token", "admin_password"):
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
