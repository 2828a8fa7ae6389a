"""The database goes to the newest version and back while it holds what the site remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import psycopg
import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from tests.databases import Using, database_of

Migrate = Callable[[str], Any]


@pytest.fixture
def migrate() -> Iterator[Migrate]:
    """Bring the app's tables to a version and return its models."""

    def migrate(version: str) -> Any:
        target = [("feedback", version)]
        MigrationExecutor(connection).migrate(target)
        return MigrationExecutor(connection).loader.project_state(target).apps

    yield migrate
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_data_go_back_and_forth_with_the_tables(migrate: Migrate) -> None:
    """From the newest version to the first and back, with what each version has to keep."""
    models = migrate("0006_login_limits")
    owner = models.get_model("auth", "User").objects.create(username="ada")
    models.get_model("feedback", "Experiment").objects.create(
        name="hopper", owner=owner, run_id=uuid4(), prompt="Which?", fps=40, has_true_reward=False
    )
    # What labelers are asked is the first version of the prompt.
    models = migrate("0007_prompt_versions")
    [kept] = models.get_model("feedback", "PromptVersion").objects.all()
    assert (kept.experiment.name, kept.version, kept.text, kept.author) == ("hopper", 1, "Which?", None)

    models = migrate("0001_initial")
    experiments = models.get_model("feedback", "Experiment").objects
    assert list(experiments.values_list("name", "prompt")) == [("hopper", "Which?")]
    experiments.all().delete()
    for state in ("running", "paused", "finished"):
        experiments.create(
            name=state, owner_id=owner.pk, run_id=uuid4(), state=state, fps=40, has_true_reward=False
        )
    # Experiments that are finished count from the upgrade.
    upgraded = migrate("0002_signs_of_life").get_model("feedback", "Experiment").objects
    assert [row.name for row in upgraded.exclude(finished_at=None)] == ["finished"]
    assert not upgraded.exclude(trainer_seen_at=None, media_deleted_at=None).exists()
    # A process of the version before goes on writing.
    experiments.create(name="late", owner_id=owner.pk, run_id=uuid4(), fps=40, has_true_reward=False)

    remembered = [("finished", "finished"), ("late", "running"), ("paused", "paused"), ("running", "running")]
    back = migrate("0001_initial").get_model("feedback", "Experiment").objects
    assert sorted(back.values_list("name", "state")) == remembered
    newest = migrate(MigrationExecutor(connection).loader.graph.leaf_nodes("feedback")[0][1])
    now = newest.get_model("feedback", "Experiment").objects
    assert sorted(now.values_list("name", "state")) == remembered


@pytest.fixture
def new_addresses(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Those of two empty databases of a kind."""
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
    """What the database says of its tables; columns and unnamed constraints in no order."""
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


def test_tables_are_made_whole_or_not_at_all(
    tmp_path: Path, using: Using, monkeypatch: pytest.MonkeyPatch
) -> None:
    with using(f"sqlite:///{tmp_path / 'new'}"):
        with monkeypatch.context() as patch:
            patch.setattr(MigrationRecorder, "record_applied", Mock(side_effect=[None, KeyboardInterrupt]))
            with pytest.raises(KeyboardInterrupt):
                call_command("migrate", verbosity=0)
        assert tables() == {}
        call_command("migrate", verbosity=0)
        assert "feedback_label" in tables()
