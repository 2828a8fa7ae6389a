"""``manage.py backup`` and ``restore`` on real servers and files: what comes back, what is refused."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest

from stack.servers import S3
from teacher.config import TeachConfig, load_config, save_config
from teacher.ledger import Ledger

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
    words = [sys.executable, str(ROOT / "manage.py"), *command.split()]
    environment = {"PATH": PATH, **variables}
    return subprocess.run(words, cwd=cwd, env=environment, check=False, capture_output=True, text=True)


def done(command: str, variables: Mapping[str, str], cwd: Path) -> str:
    """What a command says that has to succeed."""
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
        "PYTHONPATH": str(ROOT),
        "SECRET_KEY": SITE_KEY,
        "DJANGO_SETTINGS_MODULE": "human_feedback_site.settings",
        "ALLOWED_HOSTS": "testserver",
        "TEACHER_PUBLIC_URL": "http://testserver",
        **variables,
    }
    command = [sys.executable, "-c", _LABEL_ONE_PAIR]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
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


@pytest.fixture
def database(postgres_url: str) -> Callable[[str], str]:
    """Make an empty database in place of what has the name, and return its address."""

    def database(name: str) -> str:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name}")
            connection.execute(f"CREATE DATABASE {name}")
        return postgres_url.rsplit("/", 1)[0] + f"/{name}"

    return database


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


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's directory as a trainer leaves it, without its ledger."""
    config = TeachConfig(
        env_id="Hopper-v5", predictor="synth", name="x", n_labels=40, runs_dir=str(tmp_path / "runs")
    )
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid.uuid4())
    (config.run_dir / "checkpoint").write_bytes(b"weights")
    return config.run_dir


def put_clips(folder: Path) -> None:
    for key in KEYS:
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(key.encode() + CLIP)


def embedded(state: Path) -> dict[str, str]:
    """An embedded site with a labeled pair; returns its variables."""
    site = {"TEACHER_STATE_DIR": str(state)}
    put_clips(state / "media")
    done("setup_embedded", site, state.parent)
    label_one_pair({**site, "SECRET_KEY": ""}, state.parent)
    return site


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


@pytest.mark.parametrize("tables", ["none", "migrated"])
def test_postgresql_and_s3_come_back_whole(
    database: Callable[[str], str], tmp_path: Path, free_port: Callable[[], int], run_dir: Path, tables: str
) -> None:
    """Into a database without tables, or into one that the new site has made in its first start."""
    (tmp_path / ".env").write_text("SECRET_KEY=of-the-site\n")
    with served_by_s3(tmp_path / "old", free_port()) as (site, store):
        site["DATABASE_URL"] = database("mine")
        store.create_bucket(Bucket="clips")
        for key in (*KEYS, ".setup/probe"):
            store.put_object(Bucket="clips", Key=key, Body=key.encode() + CLIP)
        label_one_pair(site, tmp_path)
        said = done("backup backup", site, tmp_path)
        before = rows_of(site["DATABASE_URL"])
    assert "database: 1 label, 1 comparison, as many as the site has" in said
    assert "clips: 2 from s3://clips, all 0 of open comparisons among them" in said
    assert (tmp_path / "backup/env").read_text() == "SECRET_KEY=of-the-site\n"
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    runs = files_below(tmp_path / "runs")
    (tmp_path / "runs").rename(tmp_path / "lost")
    with served_by_s3(tmp_path / "new", free_port()) as (site, store):
        site["DATABASE_URL"] = database("restored")
        if tables == "migrated":
            done("migrate", site, tmp_path)
        assert "database: 1 labels, all rows counted" in done("restore backup", site, tmp_path)
        for key in KEYS:
            found = store.get_object(Bucket="clips", Key=key)
            assert found["Body"].read() == key.encode() + CLIP
            assert found["ContentType"] == "video/mp4"
        assert [item["Key"] for item in store.list_objects_v2(Bucket="clips")["Contents"]] == list(KEYS)
        assert rows_of(site["DATABASE_URL"]) == before
        assert len(before["feedback_label"]) == len(before["feedback_decision"]) == 1
        assert files_below(tmp_path / "runs") == runs
        assert load_config(run_dir)[0].n_labels == 40
        assert "Expected an empty database, found rows in auth_user" in refused(
            "restore backup", site, tmp_path
        )
        site["DATABASE_URL"] = database("third")
        store.put_object(Bucket="clips", Key="other/first.mp4", Body=CLIP)
        line = refused("restore backup", site, tmp_path)
        assert line.endswith("Expected no clips in s3://clips, found other/first.mp4; empty it first")
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

call_command("migrate", verbosity=0)
call_command("migrate", "feedback", "0014_waiting_labels", verbosity=0)
last = {**dict(MigrationLoader(None).graph.leaf_nodes()), "feedback": "0014_waiting_labels"}
folder = Path("backup")
folder.mkdir()
write_manifest(folder, "2026-01-01", postgresql.dump(folder / "database", last)[0])
"""


def test_a_backup_of_an_older_version_is_brought_up_to_date(
    database: Callable[[str], str], tmp_path: Path
) -> None:
    site = {"SECRET_KEY": SITE_KEY, "DATABASE_URL": database("older"), "TEACHER_STORAGE": str(tmp_path / "c")}
    environment = {
        "PATH": PATH,
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": "human_feedback_site.settings",
    }
    command = [sys.executable, "-c", _DUMP_AS_BEFORE]
    subprocess.run(command, cwd=tmp_path, env={**environment, **site}, check=True)
    line = refused("backup now", site, tmp_path)
    assert line.endswith("The database is not of this version; run manage.py migrate first")
    site["DATABASE_URL"] = database("newest")
    done("migrate", site, tmp_path)  # newer tables than those of the backup
    done("restore backup", site, tmp_path)
    with psycopg.connect(site["DATABASE_URL"]) as connection:
        found = connection.execute("SELECT name FROM django_migrations WHERE app = 'feedback'").fetchall()
    assert ("0015_invitation_parts",) in found


def test_an_embedded_site_comes_back_with_its_runs_while_both_are_in_use(
    run_dir: Path, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("left_out", ["runs", "runs/Hopper-v5/x/ledger.sqlite3", "state/media", "state"])
def test_what_an_embedded_site_never_had_is_left_out(run_dir: Path, tmp_path: Path, left_out: str) -> None:
    """No run, a run without labels, clips elsewhere, or runs that asked another site or nobody."""
    Ledger(run_dir / "ledger.sqlite3").close()
    done("setup_embedded", {}, tmp_path)
    put_clips(tmp_path / "state/media")
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


def test_a_second_backup_into_one_folder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    site = embedded(tmp_path / "state")
    done("backup backup", site, tmp_path)
    before = files_below(tmp_path / "backup")
    line = refused("backup backup", site, tmp_path)
    assert "backup is there already; each backup takes a new folder" in line
    assert files_below(tmp_path / "backup") == before
    (tmp_path / "empty").mkdir()
    assert "empty is there already" in refused("backup empty", site, tmp_path)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("runs", "runs/backup is inside of runs"),
        ("nothing", "Nothing to back up: expected run directories in "),
        ("tables", "The database is not of this version; run manage.py migrate first"),
        ("clips", "media lacks 2 of 2 clips that open comparisons show, such as hopper/first.mp4"),
        ("damage", "The database cannot be read or written: database disk image is malformed"),
        ("elsewhere", "/proc"),
    ],
)
def test_a_backup_that_cannot_be_made_leaves_nothing(tmp_path: Path, how: str, expected: str) -> None:
    site = {"TEACHER_STATE_DIR": str(tmp_path / "state")}
    folder = "runs/backup" if how == "runs" else "/proc/backup" if how == "elsewhere" else "backup"
    database = tmp_path / "state/site.sqlite3"
    if how not in {"nothing", "tables"}:
        embedded(tmp_path / "state")
    if how == "tables":
        database.parent.mkdir()
        sqlite3.connect(database).close()
    if how == "clips":
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE feedback_comparison SET status = 'open'")
        shutil.rmtree(tmp_path / "state/media/hopper")
    if how == "damage":
        content = database.read_bytes()
        database.write_bytes(content[:8192] + b"\xff" * (len(content) - 8192))
    assert expected in refused(f"backup {folder}", site, tmp_path)
    assert [path.name for path in tmp_path.rglob("*backup*")] == []


def test_a_disk_that_gets_full_leaves_nothing(tmp_path: Path) -> None:
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
    path.write_text(path.read_text().replace("0015_invitation_parts", "9999_from_the_future"))


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (_cut_off, "is damaged: clips/hopper/first.mp4 is not as it was written"),
        (_change, "is damaged: database/site.sqlite3 is not as it was written"),
        (lambda backup: (backup / "state/token").unlink(), "is not whole: state/token is missing"),
        (lambda backup: (backup / "more").touch(), "holds what its manifest.json does not name: more"),
        (lambda backup: (backup / "manifest.json").unlink(), "is no whole backup: it has no manifest.json"),
        (lambda backup: (backup / "manifest.json").write_text("[]"), "is damaged: manifest.json"),
        (lambda backup: (backup / "manifest.json").write_text('{"format": 1}'), "is damaged: manifest.json"),
        (_newer_format, "was made by a newer RL-Teacher; restore it with that version"),
        (_newer_tables, "The backup was made by a newer version (9999_from_the_future)"),
    ],
)
def test_a_backup_that_is_not_whole_restores_nothing(
    tmp_path: Path, harm: Callable[[Path], object], expected: str
) -> None:
    done("backup backup", embedded(tmp_path / "state"), tmp_path)
    harm(tmp_path / "backup")
    place = tmp_path / "elsewhere"
    place.mkdir()
    (tmp_path / "backup").rename(place / "backup")
    assert expected in refused("restore backup", {}, place)
    assert {name.split("/")[0] for name in files_below(place)} <= {"backup", "state"}
    assert set(files_below(place / "state")) <= {"secret_key"}  # made by manage.py, whatever it is asked


def test_only_an_empty_system_is_restored_into(run_dir: Path, tmp_path: Path) -> None:
    site = embedded(tmp_path / "state")
    done("backup backup", site, tmp_path)
    assert "Expected an empty database, found rows in auth_user" in refused("restore backup", site, tmp_path)
    elsewhere = {"TEACHER_STATE_DIR": str(tmp_path / "new")}
    (run_dir / "checkpoint").write_bytes(b"newer weights")
    line = refused("restore backup", elsewhere, tmp_path)
    assert line.endswith("found Hopper-v5/x/checkpoint there; move it away first")
    (run_dir / "checkpoint").write_bytes(b"weights")  # as in the backup, as after a restoration cut off
    put_clips(tmp_path / "new/media")
    (tmp_path / "new/media" / KEYS[0]).write_bytes(b"another")
    assert "found hopper/first.mp4; empty it first" in refused("restore backup", elsewhere, tmp_path)
    put_clips(tmp_path / "new/media")
    done("restore backup", elsewhere, tmp_path)
    assert rows_of_file(tmp_path / "new/site.sqlite3") == rows_of_file(tmp_path / "state/site.sqlite3")
    postgresql = {**elsewhere, "SECRET_KEY": SITE_KEY, "DATABASE_URL": "postgresql://a:b@127.0.0.1:1/c"}
    line = refused("restore backup", postgresql, tmp_path)
    assert "is of a sqlite database, DATABASE_URL names a postgresql one; unset it" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_backup_leaves_nothing_that_looks_whole(
    tmp_path: Path, free_port: Callable[[], int], number: signal.Signals
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


@pytest.mark.slow
@pytest.mark.usefixtures("stacks_in_turn")
def test_a_stack_comes_back_in_another_folder(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"

    def stack(*options: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "stack", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )

    try:
        lacking = stack("--dir", str(old), "--backup", "first")
        assert (lacking.returncode, lacking.stderr.count("\n")) == (1, 1)
        assert "expected the folder of a stack" in lacking.stderr
        assert not old.exists()
        started_once(old, tmp_path)
        put_clips(old / "s3/clips")
        made = stack("--dir", str(old), "--backup", "first")
        assert made.returncode == 0, made.stdout + made.stderr
        again = stack("--dir", str(old), "--backup", "first")
        assert again.returncode == 1
        assert "first is there already" in again.stderr
        twice = stack("--dir", str(old), "--restore", "first")
        assert twice.returncode == 1
        assert "found rows in auth_user" in twice.stderr
        restored = stack("--dir", str(new), "--restore", "first")
        assert restored.returncode == 0, restored.stdout + restored.stderr
        assert files_below(new / "s3/clips") == files_below(old / "s3/clips")
        for name in ("secrets.json", "token", "admin_password"):
            assert (new / name).read_text() == (old / name).read_text()
        assert stack("--dir", str(new), "--backup", "second").returncode == 0
        first, second = (manifest_of(tmp_path / name)["database"] for name in ("first", "second"))
        assert first == second
        assert first["tables"]["auth_user"]["rows"] == 1
    finally:
        for folder in (old, new):
            shutil.rmtree((folder / "postgres").resolve(), ignore_errors=True)


def started_once(folder: Path, cwd: Path) -> None:
    """Let a stack make all that it has, and stop it."""
    command = [sys.executable, "-m", "stack", "--dir", str(folder), "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while not (folder / "env").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
