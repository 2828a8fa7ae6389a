"""The database goes to the newest version and back while it holds what the site remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.both_databases]

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
