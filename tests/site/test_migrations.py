"""The database goes to the newest version and back while it holds what the site remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

pytestmark = pytest.mark.django_db(transaction=True)

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


def test_what_labelers_are_asked_is_the_first_version_of_the_prompt(migrate: Migrate) -> None:
    models = migrate("0006_login_limits")
    owner = models.get_model("auth", "User").objects.create(username="ada")
    models.get_model("feedback", "Experiment").objects.create(
        name="hopper", owner=owner, run_id=uuid4(), prompt="Which?", fps=40, has_true_reward=False
    )

    models = migrate("0007_prompt_versions")
    [kept] = models.get_model("feedback", "PromptVersion").objects.all()
    assert (kept.experiment.name, kept.version, kept.text, kept.author) == ("hopper", 1, "Which?", None)


def test_experiments_that_are_finished_count_from_the_upgrade(migrate: Migrate) -> None:
    models = migrate("0001_initial")
    owner = models.get_model("auth", "User").objects.create(username="ada")
    for state in ("running", "paused", "finished"):
        models.get_model("feedback", "Experiment").objects.create(
            name=state, owner=owner, run_id=uuid4(), state=state, fps=40, has_true_reward=False
        )

    experiments = migrate("0002_signs_of_life").get_model("feedback", "Experiment").objects
    assert [row.name for row in experiments.exclude(finished_at=None)] == ["finished"]
    assert not experiments.exclude(trainer_seen_at=None, media_deleted_at=None).exists()
    # A process of the version before goes on writing.
    models.get_model("feedback", "Experiment").objects.create(
        name="late", owner_id=owner.pk, run_id=uuid4(), fps=40, has_true_reward=False
    )

    back = migrate("0001_initial").get_model("feedback", "Experiment").objects
    assert sorted(back.values_list("name", "state")) == [
        ("finished", "finished"),
        ("late", "running"),
        ("paused", "paused"),
        ("running", "running"),
    ]
