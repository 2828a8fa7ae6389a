"""A run whose labels scripted labelers give, and the check that none of them is lost."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from stack.audit import Evidence, audit
from tests.containers.composed import Stack, until

ENVIRONMENT = "InvertedPendulum-v1"
BOTS = 3


@dataclass
class Experiment:
    """A run in a container of trainers.

    Attributes:
        stack: its services.
        name: its name.
        labels: how many labels it collects.
    """

    stack: Stack
    name: str
    labels: int
    _processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def run(self) -> str:
        """The run's directory, as trainers see it."""
        return f"runs/{ENVIRONMENT}/{self.name}"

    @property
    def answers(self) -> Path:
        """The labels that the site has acknowledged, as JSON Lines."""
        return self.stack.folder / f"{self.name}.jsonl"

    @property
    def container(self) -> str:
        """The name of its trainer's container."""
        return f"{self.stack.folder.name}-{self.name}"

    def acknowledged(self) -> int:
        """Return the number of acknowledged labels."""
        return len(self.answers.read_text().splitlines()) if self.answers.exists() else 0

    def start(self, *options: str) -> "subprocess.Popen[str]":
        """Start a trainer of a new run, in a container with the run's name."""
        amount = f"-t 12000 -l {self.labels} -L 10 -V"
        return self._train(*f"-p human -e {ENVIRONMENT} -n {self.name} {amount}".split(), *options)

    def resume(self, *options: str) -> "subprocess.Popen[str]":
        """Start a trainer that resumes the run."""
        return self._train("--resume", self.run, *options)

    def start_bots(self, seconds: float = 0.0) -> "subprocess.Popen[str]":
        """Start the scripted labelers, which look at each pair for some seconds."""
        options = ["--site", self.stack.url, "--experiment", f"{ENVIRONMENT}-{self.name}", "--count", str(BOTS)]
        files = ["--token-file", str(self.stack.folder / "token"), "--log", str(self.answers)]
        return self._start([sys.executable, "-m", "teacher.bots", *options, *files, "--seconds", str(seconds)])

    def wait_for(self, answers: int) -> None:
        """Wait until the site has acknowledged a number of labels, and the trainer has not failed."""

        def there() -> bool:
            failed = [process.args for process in self._processes if process.poll()]
            assert not failed, self.said()
            return self.acknowledged() >= answers

        until(there, f"{answers} labels of {self.name}")

    def finish(self, *processes: "subprocess.Popen[str]") -> None:
        """Wait until trainer and labelers end well."""
        for process in processes:
            try:
                assert process.wait(900) == 0, self.said()
            except subprocess.TimeoutExpired:
                raise AssertionError(self.said()) from None

    def check(self) -> None:
        """Check that every acknowledged label is on the site and with the trainer, once and as it was given."""
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
        """Return the last words of trainers, labelers and services."""
        logs = sorted(self.stack.folder.glob(f"{self.name}-*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs) + self.stack.logs()

    def kill(self) -> None:
        """End what is left of it."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _train(self, *arguments: str) -> "subprocess.Popen[str]":
        words = f"run --rm --no-deps -T --name {self.container} trainer"
        return self._start(self.stack.engine.composed([*words.split(), *arguments]))

    def _start(self, command: list[str]) -> "subprocess.Popen[str]":
        log = self.stack.folder / f"{self.name}-{len(self._processes)}.log"
        with log.open("w") as file:
            process = subprocess.Popen(command, cwd=self.stack.folder, stdout=file, stderr=file, text=True)
        self._processes.append(process)
        return process
