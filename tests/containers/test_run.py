"""The images, the services of docker-compose.yml, a run that uses them, kills and backups."""

import json
import re
import shutil

import pytest

from tests.containers.composed import PAGE, SERVICES, Stack
from tests.containers.conftest import ROLES, MakeExperiment
from tests.containers.engine import SERVERS, Engine
from tests.containers.experiment import Experiment


def test_all_services_are_healthy(stack: Stack) -> None:
    assert all(stack.is_healthy(service) for service in (*SERVERS, *SERVICES))


def test_a_run_finishes_with_every_label(finished: Experiment) -> None:
    finished.check_labels()


def test_two_render_workers_share_the_clips(stack: Stack, finished: Experiment) -> None:
    inspect = "CELERY_BROKER_URL=$REDIS_URL exec celery --quiet inspect --json stats"
    workers = json.loads(stack.engine("exec", stack.containers("render")[0], "sh", "-c", inspect))
    clips = {
        name: stats["total"]["teacher.render_clip"] for name, stats in workers.items() if "render" in name
    }
    assert len(clips) == 2
    assert min(clips.values()) > 0
    assert sum(clips.values()) >= 2 * finished.labels


def test_the_trainers_service_runs_other_commands(stack: Stack, finished: Experiment) -> None:
    run = "run --rm --no-deps -T trainer"
    assert finished.run_dir in stack.compose(f"{run} ls")
    assert "Nothing is missing." in stack.compose(f"{run} doctor")
    exported = stack.compose(f"{run} export {finished.run_dir} runs/labels.npz")
    assert f"{finished.labels} preferences" in exported


SIZES = {role: int(size) for role, size in re.findall(r"^\| (\w+) \| (\d+) MB\b", PAGE, re.MULTILINE)}
PARQUET = """
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"x": [7]}), "/tmp/x")
print(pyarrow.parquet.read_table("/tmp/x"))
"""


def run(engine: Engine, image: str, *command: str) -> str:
    """Run a command in a container without a network, and return its output."""
    program, *arguments = command
    return engine("run", "--rm", "--network", "none", "--entrypoint", program, image, *arguments)


@pytest.mark.parametrize("role", ROLES)
def test_images_have_the_documented_sizes(engine: Engine, images: str, role: str) -> None:
    measure = "du --summarize --one-file-system --block-size 1M /opt/rl-teacher"
    found = run(engine, f"{images}-{role}", *measure.split())
    assert int(found.split()[0]) == pytest.approx(SIZES[role], rel=0.1)


def test_the_site_image_reads_and_writes_parquet(engine: Engine, images: str) -> None:
    """The parts of PyArrow that the image keeps are enough."""
    assert "7" in run(engine, f"{images}-site", "python", "-c", PARQUET)


def test_no_label_is_lost_when_containers_are_killed(stack: Stack, make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(stack, "killed", 50)
    trainer = experiment.start()
    bots = experiment.start_bots(seconds=1.0)
    for number, service in enumerate((*SERVICES, "redis", "database"), 1):
        experiment.wait_for_labels(6 * number)
        stack.kill(service)
    experiment.wait_for_labels(35)
    stack.engine("kill", "--signal", "KILL", experiment.container)
    assert trainer.wait(600) != 0

    stack.wait_until_healthy(*SERVERS, *SERVICES)
    experiment.wait(experiment.resume(), bots)
    experiment.check_labels()


LABELS = "SELECT uuid, choice, swapped FROM feedback_label ORDER BY id"


def test_backup_restores_labels_after_volumes_are_removed(stack: Stack, finished: Experiment) -> None:
    stack.documented("run --rm manage backup backups/monday")
    labels = stack.query(LABELS)
    assert len(labels) >= finished.labels
    stack.down()
    (stack.folder / ".env").unlink()

    assert "cp backups/monday/env .env" in PAGE
    shutil.copy(stack.folder / "backups/monday/env", stack.folder / ".env")
    if not stack.engine.resolves_dependencies:
        stack.start_servers()
    stack.documented("run --rm manage restore backups/monday")
    stack.up()

    assert stack.query(LABELS) == labels
    finished.check_labels()
    finished.wait(finished.resume("-t", "16000"))
