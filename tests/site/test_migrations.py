"""The database goes from version to version while it holds what the site remembers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import psycopg
import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from human_feedback_site.feedback.models import Episode, Experiment
from tests.databases import Using, database_of

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
    assert not MigrationExecutor(connection).migration_plan([("feedback", "0003_label_answer")])


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("models_of_0_1_0")
def test_a_database_of_before_0_1_0_is_refused_in_one_line() -> None:
    recorder = MigrationRecorder(connection)
    recorder.record_unapplied(*RECORDED[-1])
    with pytest.raises(CommandError, match=r"before 0\.1\.0 \(migration 0017_.*with 0\.1\.0 first"):
        call_command("migrate", verbosity=0)
    recorder.record_applied(*RECORDED[-1])


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
