"""Containers that are killed by SIGKILL, as for want of memory."""

from collections.abc import Callable

from tests.containers.composed import SERVICES, Stack
from tests.containers.engine import SERVERS
from tests.containers.experiment import Experiment


def test_no_label_is_lost_when_containers_are_killed(
    stack: Stack, make_experiment: Callable[[Stack, str, int], Experiment]
) -> None:
    experiment = make_experiment(stack, "killed", 50)
    trainer = experiment.start()
    bots = experiment.start_bots(seconds=1.0)
    for answers, service in enumerate(("web", "render", "beat", "redis", "database"), 1):
        experiment.wait_for(6 * answers)
        stack.kill(service)
    experiment.wait_for(35)
    stack.engine("kill", "--signal", "KILL", experiment.container)
    assert trainer.wait(60) == 137
    stack.wait_until_healthy(*SERVERS, *SERVICES)
    trainer = experiment.resume()

    experiment.finish(trainer, bots)
    experiment.check()
