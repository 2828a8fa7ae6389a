"""Runs a whole experiment on a stack: a trainer, scripted labelers, and an audit of the labels."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from stack.audit import Audit, Evidence, audit
from stack.process import Process, Service, StackError, State
from stack.site import STORAGE, Site
from stack.supervisor import Display, Supervisor
from teacher.errors import ConfigError
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import CONFIG_NAME
from teacher.settings.options import KindName

_PROGRESS_SECONDS = 1.0
_LAST_ANSWERS_SECONDS = 30.0  # maximum time to wait for the labelers to end after training
_LEDGER_NAME = "ledger.sqlite3"
_OPTIONS = {  # options of teach, and the options of ``python -m stack`` that set them
    "--env_id": "--env",
    "--name": "--env",
    "--n_labels": "--labels",
    "--pretrain_labels": "--pretrain-labels",
    "--num_timesteps": "--steps",
}
_PROGRESS = """
    SELECT (SELECT count(*) FROM feedback_comparison WHERE experiment_id = experiment.id),
           (SELECT count(*) FROM feedback_comparison WHERE experiment_id = experiment.id AND n_labels > 0),
           (SELECT coalesce(max(step), 0) FROM feedback_trainingpoint WHERE experiment_id = experiment.id)
    FROM feedback_experiment experiment WHERE name = %s
"""


@dataclass(frozen=True)
class ExperimentOptions:
    """Settings of an experiment with scripted labelers."""

    env_id: str  # environment ID
    labels: int  # total number of labels to collect
    # number of labels to collect before RL training starts; None for a quarter of ``labels``
    pretrain_labels: int | None
    steps: int  # number of environment steps to train for
    bots: int  # number of scripted labelers
    feedback: KindName = "pair"  # kind of question
    seconds: float = 0.0  # minimum time that a scripted labeler spends on each comparison, in seconds


def _config(options: ExperimentOptions, site_url: str) -> TeachConfig:
    try:
        return TeachConfig(
            env_id=options.env_id,
            predictor="human",
            name=time.strftime("stack-%Y%m%d-%H%M%S"),
            pretrain_labels=options.pretrain_labels,
            n_labels=options.labels,
            num_timesteps=options.steps,
            site_url=site_url,
            storage=STORAGE,
            feedback=options.feedback,
        )
    except ConfigError as error:
        message = re.sub("|".join(_OPTIONS), lambda option: _OPTIONS[option[0]], str(error))
        raise StackError(message) from error


class Experiment:
    """A run of ``teach`` with scripted labelers; its run directory is in ``./runs``."""

    def __init__(self, site: Site, options: ExperimentOptions) -> None:
        self._site = site
        self._bots, self._seconds = options.bots, options.seconds
        self._config = _config(options, site.url)
        self._run_dir = Path.cwd() / self._config.run_dir
        self._answers = site.folder.path / "answers" / f"{self._config.experiment}.jsonl"
        self._progress_at = 0.0

    def run(self, supervisor: Supervisor, display: Display) -> Audit:
        """Run the experiment to the end, restarting what dies, and return the audit of its labels."""
        self._answers.parent.mkdir(mode=0o700, exist_ok=True)
        display.say(f"Run    {self._config.run_dir}", style="")
        trainer, bots = supervisor.start(self._trainer(), self._labelers())
        while trainer.state is not State.DONE:
            display.progress = self._progress(display.progress)
            supervisor.look()
        deadline = time.monotonic() + _LAST_ANSWERS_SECONDS
        while bots.state is not State.DONE and time.monotonic() < deadline:
            supervisor.look()
        return self._audit(bots)

    def _trainer(self) -> Service:
        config = self._config
        new = [
            *("-p", config.predictor, "-e", config.env_id, "-n", config.name, "-V"),
            *("-L", str(config.num_pretrain_labels), "-l", str(config.n_labels)),
            *("-t", str(config.num_timesteps), "--feedback", config.feedback),
            *("--site_url", self._site.url, "--storage", STORAGE),
        ]
        resumed = ["--resume", str(self._run_dir)]

        def command() -> Sequence[str]:
            has_begun = (self._run_dir / CONFIG_NAME).exists()
            return [sys.executable, "-m", "teacher.teach", *(resumed if has_begun else new)]

        return self._service("trainer", command)

    def _labelers(self) -> Service:
        command = [
            *(sys.executable, "-m", "teacher.bots", "--site", self._site.url),
            *("--experiment", self._config.experiment, "--token-file", str(self._site.folder.token)),
            *("--count", str(self._bots), "--seconds", str(self._seconds), "--log", str(self._answers)),
        ]
        return self._service("bots", lambda: command)

    def _service(self, name: str, command: Any) -> Service:
        return Service(
            name=name,
            command=command,
            environment=self._site.trainer_environment(),
            folder=Path.cwd(),
            ends=True,
        )

    def _progress(self, last: str) -> str:
        """Return a progress line with counts from the database, which is queried at most once a second."""
        if time.monotonic() - self._progress_at < _PROGRESS_SECONDS:
            return last
        self._progress_at = time.monotonic()
        try:
            rows = self._query(_PROGRESS, (self._config.experiment,))
        except psycopg.Error:
            return last
        asked, answered, step = rows[0] if rows else (0, 0, 0)
        wanted, steps = self._config.n_labels, self._config.num_timesteps
        return f"comparisons {asked} of {wanted}  labeled {answered}   step {step:,} of {steps:,}"

    def _audit(self, bots: Process) -> Audit:
        return audit(
            Evidence(
                experiment=self._config.experiment,
                wanted=self._config.n_labels or 0,
                bots=self._bots,
                answers=self._answers,
                ledger=self._run_dir / _LEDGER_NAME,
                query=self._query,
                bots_killed=self._bots * bots.restarts,
            )
        )

    def _query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._site.postgres.url, connect_timeout=2) as connection:
            return connection.execute(statement, values or None).fetchall()
