"""``manage.py`` makes tokens, invitations, an embedded site, and migrates a database that holds something."""

import gc
import io
import json
import re
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from uuid import uuid4

import psycopg
import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

import manage
from human_feedback_site.feedback.models import ApiToken, Episode, Experiment
from human_feedback_site.feedback.pages.views import account_key
from human_feedback_site.feedback.services.accounts import token_of
from tests.databases import Using, database_of
from tests.site.conftest import Trainer, owner_of
from tests.waiting import completed, free_port


def output(command: str, *args: str, **options: object) -> str:
    out = io.StringIO()
    call_command(command, *args, stdout=out, **options)
    return out.getvalue().strip()


@pytest.fixture
def state(settings: Settings, tmp_path: Path) -> Path:
    settings.STATE_DIR = tmp_path / "state"
    settings.STATE_DIR.mkdir(mode=0o755)
    return tmp_path / "state"


def test_a_token_is_printed_once_and_only_its_hash_is_kept(researcher: User) -> None:
    token = output("create_token", "ada", name="cluster")
    assert token.startswith("tt_")
    assert owner_of(token) == researcher
    kept = ApiToken.objects.get()
    assert kept.name == "cluster"
    assert token not in json.dumps(list(ApiToken.objects.values()), default=str)


@pytest.mark.parametrize(
    ("user", "message"),
    [("nobody", "no user"), ("labeler", "must be an active staff user"), ("gone", "must be an active")],
)
def test_tokens_are_for_researchers(db: None, user: str, message: str) -> None:
    User.objects.create(username="labeler")
    User.objects.create(username="gone", is_staff=True, is_active=False)
    with pytest.raises(CommandError, match=message):
        output("create_token", user)


def test_a_token_lasts_a_year_unless_another_time_is_asked_for(researcher: User) -> None:
    for days, expected in ((None, 365), ("7", 7), ("0", None)):
        output("create_token", "ada", *(() if days is None else ("--days", days)))
        kept = ApiToken.objects.latest("pk")
        left = kept.expires_at and kept.expires_at - timezone.now()
        assert left == (expected and pytest.approx(timedelta(days=expected), abs=timedelta(hours=1)))
    for days in ("-1", "4000"):
        with pytest.raises(CommandError, match="from 0 to 3650"):
            output("create_token", "ada", "--days", days)


def test_a_token_may_be_good_for_one_experiment(researcher: User) -> None:
    output("create_token", "ada", experiment="hopper")
    assert ApiToken.objects.get().experiment == "hopper"
    with pytest.raises(CommandError, match="--experiment: Use 1 to 100 ASCII letters"):
        output("create_token", "ada", experiment="a/b")


def test_tokens_are_revoked_by_their_name_or_all(researcher: User) -> None:
    tokens = {name: output("create_token", "ada", name=name) for name in ("cluster", "laptop", "old")}
    assert output("revoke_tokens", "ada", name="cluster") == "1 revoked"
    assert [name for name, token in tokens.items() if token_of(token)] == ["laptop", "old"]
    assert output("revoke_tokens", "ada") == "2 revoked"
    assert not ApiToken.objects.exists()
    with pytest.raises(CommandError, match="no user 'eve'"):
        output("revoke_tokens", "eve")


def test_an_invitation_leads_to_the_labeling_page(trainer: Trainer, client: Client) -> None:
    link = output("create_invite", "hopper", "grace", site_url="http://testserver/")
    assert re.fullmatch(r"http://testserver/j/[0-9a-z]+-[0-9a-z]{10}", link)
    assert client.get(link, follow=True).redirect_chain[-1] == ("/experiments/hopper/label", 302)
    assert client.get("/session").json()["account"] == account_key(User.objects.get(labeler__name="grace"))


def test_an_invitation_needs_a_name_that_the_api_takes_too(trainer: Trainer) -> None:
    for name in ("ada (owner)", "", "x" * 51):
        with pytest.raises(CommandError, match="is not a valid labeler name"):
            output("create_invite", "hopper", name, site_url="http://testserver")


def test_an_invitation_needs_an_experiment_and_an_address(trainer: Trainer) -> None:
    with pytest.raises(CommandError, match="no experiment 'walker'"):
        output("create_invite", "walker", "grace", site_url="http://testserver")
    with pytest.raises(CommandError, match="--site-url"):
        output("create_invite", "hopper", "grace")


def test_an_embedded_site_is_set_up_once(db: None, state: Path) -> None:
    assert output("setup_embedded") == ""
    token = (state / "token").read_text()
    assert [path.name for path in state.iterdir()] == ["token"]
    assert stat.S_IMODE((state / "token").stat().st_mode) == 0o600
    assert (
        stat.S_IMODE(state.stat().st_mode) == 0o755
    )  # it was there before, so it is not the site's to close
    admin = User.objects.get(is_superuser=True)
    assert not admin.has_usable_password()
    assert owner_of(token.strip()) == admin
    assert token.strip() in output("setup_embedded", "--show")
    assert (state / "token").read_text() == token
    assert ApiToken.objects.count() == 1


def test_a_token_that_the_database_does_not_know_is_replaced(db: None, state: Path) -> None:
    (state / "token").write_text("tt_of_another_database\n")
    output("setup_embedded")
    assert owner_of((state / "token").read_text().strip()) == User.objects.get(username="admin")


def test_a_token_of_an_embedded_site_lasts_a_year_and_is_renewed_in_time(db: None, state: Path) -> None:
    output("setup_embedded")
    first, token = (state / "token").read_text(), ApiToken.objects.get()
    assert token.expires_at is not None
    assert timedelta(days=364) < token.expires_at - timezone.now() < timedelta(days=366)
    ApiToken.objects.update(expires_at=timezone.now() + timedelta(days=180))
    output("setup_embedded")
    assert (state / "token").read_text() != first
    assert token_of(first.strip()) is not None, "a run may still use it"


def test_a_changed_password_is_left_alone(db: None, state: Path) -> None:
    output("setup_embedded")
    admin = User.objects.get(username="admin")
    admin.set_password("correct horse")
    admin.save()
    output("setup_embedded")
    assert User.objects.get(username="admin").check_password("correct horse")


def test_a_setting_that_cannot_work_ends_a_command_with_one_line(tmp_path: Path) -> None:
    done = completed(
        [sys.executable, str(Path(__file__).parents[2] / "manage.py"), "migrate"],
        env={"TEACHER_STATE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "MEDIA_KEEP_DAYS": "abc"},
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: MEDIA_KEEP_DAYS must be a whole number from 0 to 9999, not 'abc'; ")


def last_words(*command: str) -> str:
    """Run ``manage.py`` in this process and return what it ends with, which is all that it says of errors."""
    said = io.StringIO()
    with (
        redirect_stderr(said),
        patch.object(sys, "argv", ["manage.py", *command]),
        pytest.raises(SystemExit) as ended,
    ):
        manage.main()
    assert said.getvalue() == ""
    return str(ended.value.code)


@pytest.mark.parametrize(
    "command",
    [("migrate", "--no-input"), ("createsuperuser",), ("create_token", "ada")],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(
    "where", ["postgresql://ada:hidden@127.0.0.1:{port}/site", "sqlite:///{folder}/none/site"]
)
def test_a_database_that_is_away_ends_any_command_with_one_line(
    command: tuple[str, ...], where: str, tmp_path: Path, using: Using
) -> None:
    with using(where.format(port=free_port(), folder=tmp_path)):
        line = last_words(*command)
    assert line.startswith("Error: can't use the database: ")
    assert "\n" not in line
    assert "hidden" not in line
    assert "migrate" not in line


@pytest.mark.parametrize(
    "command", [("create_token", "ada"), ("create_invite", "hopper", "mia")], ids=" ".join
)
def test_a_new_database_has_to_be_migrated_first(
    tmp_path: Path, using: Using, settings: Settings, command: tuple[str, ...]
) -> None:
    settings.PUBLIC_URL = "http://x.example"
    with using(f"sqlite:///{tmp_path}/new.sqlite3"):
        line = last_words(*command)
    assert line.startswith("Error: can't use the database: no such table")
    assert line.endswith("run manage.py migrate first")


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # Django, if its first query fails
@pytest.mark.parametrize("page", [0, 1], ids=["header", "schema"])
def test_a_damaged_database_ends_a_command_with_one_line(tmp_path: Path, using: Using, page: int) -> None:
    path = tmp_path / "site.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE django_migrations (id)")
    content = path.read_bytes()
    path.write_bytes(bytes([255]) * 200 + content[200:] if page == 0 else content[:100] + b"\xff" * 20)
    with using(f"sqlite:///{path}"):
        line = last_words("migrate")
    gc.collect()
    assert line.startswith("Error: can't use the database: ")
    assert "\n" not in line


def test_manage_py_works_in_a_fresh_state_folder(tmp_path: Path) -> None:
    done = completed(
        [sys.executable, "-W", "error", str(Path(__file__).parents[2] / "manage.py"), "setup_embedded"],
        env={"TEACHER_STATE_DIR": str(tmp_path / "new"), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "token").exists()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_nothing_is_wrong_with_the_models_and_each_change_has_its_migration(db: None) -> None:
    call_command("check", fail_level="WARNING", stderr=io.StringIO())
    call_command("makemigrations", check_changes=True, stdout=io.StringIO())


OF_0_1_0 = [("feedback", "0001_0_1_0")]
RECORDED = MigrationLoader(None).disk_migrations[OF_0_1_0[0]].replaces


@pytest.fixture
def models_of_0_1_0() -> Iterator[Callable[[str], Any]]:
    """Bring the tables back to 0.1.0, as that version recorded them, and return its models."""
    executor = MigrationExecutor(connection)
    executor.migrate(OF_0_1_0)
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied(*OF_0_1_0[0])
    for name in RECORDED:
        recorder.record_applied(*name)
    apps = executor.loader.project_state(OF_0_1_0).apps
    yield lambda name: apps.get_model("auth" if name == "User" else "feedback", name)
    call_command("migrate", verbosity=0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_database_of_0_1_0_is_upgraded_while_in_use(models_of_0_1_0: Callable[[str], Any]) -> None:
    owner = models_of_0_1_0("User").objects.create(username="ada")
    described = {"owner": owner, "prompt": "Which?", "fps": 40, "has_true_reward": False}
    made = models_of_0_1_0("Experiment").objects.create(name="hopper", run_id=uuid4(), **described)
    call_command("migrate", verbosity=0)
    models_of_0_1_0("Experiment").objects.create(name="late", run_id=uuid4(), **described)
    models_of_0_1_0("Episode").objects.create(experiment=made, step=1, key="hopper/episodes/1.mp4")
    names = Experiment.objects.filter(show_episodes=True, trainer_left_at=None).values_list("name", "prompt")
    assert sorted(names) == [("hopper", "Which?"), ("late", "Which?")]
    assert Episode.objects.get().answered is None
    applied = MigrationRecorder(connection).applied_migrations()
    assert {*OF_0_1_0, *RECORDED, ("feedback", "0002_0_2_0")} <= applied.keys()
    executor = MigrationExecutor(connection)
    assert not executor.migration_plan(executor.loader.graph.leaf_nodes("feedback"))


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("models_of_0_1_0")
def test_a_database_of_before_0_1_0_is_refused_in_one_line() -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied(*RECORDED[-1])
    with pytest.raises(CommandError, match=r"before 0\.1\.0 \(migration 0017_.*with 0\.1\.0 first"):
        call_command("migrate", verbosity=0)
    recorder.record_applied(*RECORDED[-1])


@pytest.mark.django_db
@pytest.mark.parametrize("app", ["feedback", "auth"])
def test_a_database_of_a_later_version_is_refused_in_one_line(app: str) -> None:
    MigrationRecorder(connection).record_applied(app, "9999_from_the_future")
    said = r"^The database .* newer version .* \(migration 9999_from_the_future\); use that version\.$"
    with pytest.raises(CommandError, match=said):
        call_command("migrate", verbosity=0)


@pytest.fixture
def new_addresses(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return two empty databases of a kind."""
    names = ["made_at_once", "made_one_by_one"]
    if request.param == "sqlite":
        return [f"sqlite:///{tmp_path / name}" for name in names]
    url = request.getfixturevalue("postgres_url")
    with psycopg.connect(url, autocommit=True) as server:
        for name in names:
            server.execute(f"CREATE DATABASE {name}")
    return [database_of(url, name) for name in names]


DEFINITIONS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index'",
    "postgresql": """
        SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace
        UNION SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'""",
}


def tables() -> dict[str, Any]:
    """Return what the database says of its tables; columns and unnamed constraints in no order."""
    introspection, found = connections["default"].introspection, dict[str, Any]()
    with connections["default"].cursor() as cursor:
        cursor.execute(DEFINITIONS[connections["default"].vendor])
        if definitions := cursor.fetchall():
            found["definitions"] = sorted(definitions)  # names need not be unique
        for table in introspection.table_names(cursor):
            columns = {column.name: column for column in introspection.get_table_description(cursor, table)}
            constraints = introspection.get_constraints(cursor, table).items()
            named = {
                name: said for name, said in constraints if not name.startswith(("__", "sqlite_autoindex"))
            }
            unnamed = sorted(repr(said) for name, said in constraints if name not in named)
            found[table] = columns, named, unnamed
    return found


@pytest.mark.parametrize("new_addresses", ["sqlite", "postgresql"], indirect=True)
def test_an_empty_database_gets_at_once_what_migrations_come_to(
    new_addresses: list[str], using: Using, capsys: pytest.CaptureFixture[str]
) -> None:
    at_once, one_by_one = new_addresses
    with using(one_by_one):
        executor = MigrationExecutor(connections["default"])
        executor.migrate(executor.loader.graph.leaf_nodes())
        expected = tables(), MigrationRecorder(connections["default"]).applied_migrations().keys()
        call_command("migrate")
        assert "No migrations to apply" in (said := capsys.readouterr().out)
        assert "all tables were created" not in said
        permissions = sorted(Permission.objects.values_list("codename", flat=True))
    with using(at_once):
        call_command("migrate", plan=True)
        assert tables() == {}
        call_command("migrate", verbosity=1)
        assert "The database was empty; all tables were created." in capsys.readouterr().out
        assert (tables(), MigrationRecorder(connections["default"]).applied_migrations().keys()) == expected
        assert sorted(Permission.objects.values_list("codename", flat=True)) == permissions
        assert not User.objects.exists()
    assert "feedback_label" in expected[0]


def test_tables_are_made_atomically(tmp_path: Path, using: Using, monkeypatch: pytest.MonkeyPatch) -> None:
    with using(f"sqlite:///{tmp_path / 'new'}"):
        with monkeypatch.context() as patch:
            patch.setattr(MigrationRecorder, "record_applied", Mock(side_effect=[None, KeyboardInterrupt]))
            with pytest.raises(KeyboardInterrupt):
                call_command("migrate", verbosity=0)
        assert tables() == {}
        call_command("migrate", verbosity=0)
        assert "feedback_label" in tables()
