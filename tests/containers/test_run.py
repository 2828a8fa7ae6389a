"""A run with labels from scripted labelers, on the services of docker-compose.yml."""

import json

from tests.containers.composed import SERVICES, Stack
from tests.containers.experiment import Experiment


def test_all_services_get_healthy(stack: Stack) -> None:
    assert all(stack.is_healthy(service) for service in SERVICES)


def test_a_run_finishes_and_two_render_workers_share_its_clips(stack: Stack, taught: Experiment) -> None:
    taught.check()
    words = "CELERY_BROKER_URL=$REDIS_URL exec celery --quiet inspect --json stats"
    workers = json.loads(stack.engine("exec", stack.containers("render")[0], "sh", "-c", words))
    made = {name: stats["total"]["teacher.render_clip"] for name, stats in workers.items() if "render" in name}
    assert len(made) == 2
    assert min(made.values()) > 0
    assert sum(made.values()) >= 2 * taught.labels
