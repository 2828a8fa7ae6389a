"""Containers that are killed with SIGKILL, as if the machine had run out of memory."""

from tests.containers.composed import SERVICES, Stack
from tests.containers.conftest import MakeExperiment
from tests.containers.engine import SERVERS


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
