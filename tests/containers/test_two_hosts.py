"""A run of torchrun on two hosts: two containers on one network."""

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.containers.composed import PAGE, Stack, until

PROGRESS = re.compile(r"^ +[\d,]+ +-?\d", re.MULTILINE)
RENDEZVOUS = "--rdzv-backend c10d --rdzv-endpoint"


class Host:
    """A trainer's container in which torchrun starts one process.

    Args:
        stack: the services.
        name: the container's name.
        first: name of the container where the processes meet.
        arguments: command line of teach.
    """

    def __init__(self, stack: Stack, name: str, first: str, arguments: str) -> None:
        self.name = name
        self._engine = stack.engine
        self._log = stack.folder / f"{name}.log"
        options = f"--nnodes 2 --nproc-per-node 1 {RENDEZVOUS} {first}:29400 --rdzv-id two"
        run = f"run --rm --no-deps -T --name {name} --entrypoint torchrun trainer"
        words = f"{run} {options} -m teacher.teach {arguments}".split()
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                self._engine.compose_command(words), cwd=stack.folder, stdout=log, stderr=log
            )

    @property
    def said(self) -> str:
        """Output so far."""
        return self._log.read_text()

    def has_started(self) -> bool:
        """Return True if the first row of progress was printed, or the container has ended."""
        return bool(PROGRESS.search(self.said)) or self.process.poll() is not None

    def kill(self) -> None:
        """Kill the container with SIGKILL."""
        self._engine("kill", "--signal", "KILL", self.name)


@pytest.fixture
def start(stack: Stack) -> Iterator[Callable[[str], list[Host]]]:
    """Start a command line of teach on two hosts."""
    started: list[Host] = []

    def start(arguments: str) -> list[Host]:
        names = [f"{stack.name}-host-{len(started) + number}" for number in (1, 2)]
        started.extend(Host(stack, name, names[0], arguments) for name in names)
        return started[-2:]

    yield start
    for host in started:
        host.process.kill()
        host.process.wait()


def test_run_on_two_hosts_resumes_after_a_kill(start: Callable[[str], list[Host]]) -> None:
    assert RENDEZVOUS in PAGE
    hosts = start("-p synth -e ShortHopper-v1 -n two -l 40 -L 20 -i 20 -t 40000 -V")
    until(lambda: any(host.has_started() for host in hosts), "progress")
    assert [host.process.poll() for host in hosts] == [None, None], output(hosts)
    leader, other = sorted(hosts, key=lambda host: "Training ShortHopper-v1" not in host.said)
    other.kill()
    assert all(host.process.wait(600) != 0 for host in hosts)
    assert leader.said.count("To resume") == 1, output(hosts)

    hosts = start("--resume runs/ShortHopper-v1/two")
    assert [host.process.wait(600) for host in hosts] == [0, 0], output(hosts)
    assert output(hosts).count("Done after") == 1


def output(hosts: list[Host]) -> str:
    """Return the last output of all hosts."""
    return "\n".join(f"{host.name}: {host.said[-3000:]}" for host in hosts)
