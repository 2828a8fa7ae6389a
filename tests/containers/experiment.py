"""A run in a trainer's container, labeled by bots."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from stack.audit import Evidence, audit
from tests.containers.composed import Stack, until

ENVIRONMENT = "InvertedPendulum-v1"
BOTS = 3
Process = subprocess.Popen[bytes]


@dataclass
class Experiment:
    """A run and its labelers.

    Attributes:
        stack: the services.
        name: the run's name.
        labels: number of labels that the run collects.
    """

    stack: Stack
    name: str
    labels: int
    _processes: list[Process] = field(default_factory=list)

    @property
    def run_dir(self) -> str:
        """The run's directory in trainers' containers."""
        return f"runs/{ENVIRONMENT}/{self.name}"

    @property
    def container(self) -> str:
        """Name of the trainer's container."""
        return f"{self.stack.name}-{self.name}"

    @property
    def answers(self) -> Path:
        """Log of the labels that the site acknowledged, as JSON Lines."""
        return self.stack.folder / f"{self.name}.jsonl"

    def start(self) -> Process:
        """Start a trainer with a new run."""
        settings = f"-p human -e {ENVIRONMENT} -n {self.name} -t 12000 -l {self.labels} -L 10 -V"
        return self._train(*settings.split())

    def resume(self, *options: str) -> Process:
        """Start a trainer that resumes the run."""
        return self._train("--resume", self.run_dir, *options)

    def start_bots(self, seconds: float = 0.0) -> Process:
        """Start the bots, which look at each pair for some seconds."""
        site = ["--site", self.stack.url, "--experiment", f"{ENVIRONMENT}-{self.name}"]
        files = ["--token-file", str(self.stack.folder / "token"), "--log", str(self.answers)]
        options = ["--count", str(BOTS), "--seconds", str(seconds)]
        return self._start([sys.executable, "-m", "teacher.bots", *site, *files, *options])

    def wait_for_labels(self, count: int) -> None:
        """Wait until the site has acknowledged this many labels."""

        def are_there() -> bool:
            assert not any(process.poll() for process in self._processes), self.said()
            return self.answers.exists() and len(self.answers.read_text().splitlines()) >= count

        until(are_there, f"{count} labels of {self.name}")

    def wait(self, *processes: Process) -> None:
        """Wait until processes end with exit status 0."""
        for process in processes:
            try:
                assert process.wait(900) == 0, self.said()
            except subprocess.TimeoutExpired:
                raise AssertionError(self.said()) from None

    def check_labels(self) -> None:
        """Check that all labels are on the site and in the run, exactly once and not inverted."""
        found = audit(
            Evidence(
                experiment=f"{ENVIRONMENT}-{self.name}",
                wanted=self.labels,
                bots=BOTS,
                answers=self.answers,
                ledger=self.stack.copy_runs() / ENVIRONMENT / self.name / "ledger.sqlite3",
                query=self.stack.query,
            )
        )
        assert found.holds, found

    def said(self) -> str:
        """Return the last output of trainers, bots and services."""
        logs = sorted(self.stack.folder.glob(f"{self.name}-*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs) + self.stack.logs()

    def kill(self) -> None:
        """Kill the processes that are still running."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _train(self, *arguments: str) -> Process:
        words = f"run --rm --no-deps -T --name {self.container} trainer"
        return self._start(self.stack.engine.compose_command([*words.split(), *arguments]))

    def _start(self, command: list[str]) -> Process:
        log = self.stack.folder / f"{self.name}-{len(self._processes)}.log"
        with log.open("w") as file:
            self._processes.append(subprocess.Popen(command, cwd=self.stack.folder, stdout=file, stderr=file))
        return self._processes[-1]
