"""The services of docker-compose.yml, and a run that uses all of them."""

import json

from tests.containers.composed import SERVICES, Stack
from tests.containers.engine import SERVERS
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
