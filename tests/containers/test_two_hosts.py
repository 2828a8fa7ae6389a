"""One run on two hosts, as far as torchrun can tell: two containers on one network."""

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.containers.composed import PAGE, Stack, until

PROGRESS = re.compile(r"^ +[\d,]+ +-?\d", re.MULTILINE)
RENDEZVOUS = "--rdzv-backend c10d --rdzv-endpoint"


class Host:
    """A container of trainers, started by torchrun."""

    def __init__(self, stack: Stack, name: str, meeting: str, arguments: str) -> None:
        self.name = name
        self._engine = stack.engine
        self._log = stack.folder / f"{name}.log"
        torchrun = f"--nnodes 2 --nproc-per-node 1 {RENDEZVOUS} {meeting}:29400 --rdzv-id two -m teacher.teach"
        words = f"run --rm --no-deps -T --name {name} --entrypoint torchrun trainer {torchrun} {arguments}"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                stack.engine.composed(words.split()), cwd=stack.folder, stdout=log, stderr=log
            )

    @property
    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text()

    def kill(self) -> None:
        """Kill the container by SIGKILL."""
        self._engine("kill", "--signal", "KILL", self.name)


@pytest.fixture
def start(stack: Stack) -> Iterator[Callable[[str], list[Host]]]:
    """Start both hosts of a run with a command line of teach."""
    started: list[Host] = []

    def start(arguments: str) -> list[Host]:
        names = [f"{stack.folder.name}-host-{number}-{len(started)}" for number in range(2)]
        hosts = [Host(stack, name, names[0], arguments) for name in names]
        started.extend(hosts)
        return hosts

    yield start
    for host in started:
        host.process.kill()
        host.process.wait()


def test_a_run_on_two_hosts_finishes_after_one_of_them_was_killed(
    stack: Stack, start: Callable[[str], list[Host]]
) -> None:
    assert RENDEZVOUS in PAGE
    hosts = start("-p synth -e ShortHopper-v1 -n two -l 40 -L 20 -i 20 -t 40000 -V")
    until(lambda: any(has_ended_or_trained(host) for host in hosts), "the first round")
    assert all(host.process.poll() is None for host in hosts), said_by(hosts)
    leader, other = sorted(hosts, key=lambda host: "Training ShortHopper-v1" not in host.said)
    other.kill()
    assert other.process.wait(600) == 137
    assert leader.process.wait(600) != 0
    assert leader.said.count("To resume") == 1, said_by(hosts)

    hosts = start("--resume runs/ShortHopper-v1/two")

    assert [host.process.wait(600) for host in hosts] == [0, 0], said_by(hosts)
    assert sum(host.said.count("Done after") for host in hosts) == 1, said_by(hosts)


def has_ended_or_trained(host: Host) -> bool:
    """Return True if a host has printed a row of progress, or has ended too early."""
    return host.process.poll() is not None or bool(PROGRESS.search(host.said))


def said_by(hosts: list[Host]) -> str:
    """Return the last words of hosts, for the message of a failed test."""
    return "\n".join(f"{host.name}: {host.said[-3000:]}" for host in hosts)
