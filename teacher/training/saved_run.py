"""What a run has left in its folder, for use without going on with it: its policy and its predictor."""

import contextlib
import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agents.base import Agent
from teacher.data.checkpoint import CHECKPOINT_NAME, load_state, restoring
from teacher.data.ledger import LEDGER_NAME, Ledger
from teacher.data.preferences import PreferenceDataset
from teacher.envs.tasks import TaskInfo, make_vector_env
from teacher.errors import DataError
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import RunSettings, TeachConfig, load_config
from teacher.training.parts import make_agent, make_predictor
from teacher.training.plan import RunPlan, task_of
from teacher.training.warmstart import read_policy


@dataclass(frozen=True)
class SavedRun:
    """A folder of a run, read only. What is loaded is on the CPU, since there may be nothing else here.

    Raises:
        ConfigError: the folder is no run's.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # a string does, too

    @cached_property
    def config(self) -> TeachConfig:
        """The run's settings, but for the device."""
        return self._settings.config

    @cached_property
    def _settings(self) -> RunSettings:
        config, run_id = load_config(self.folder)
        return RunSettings(dataclasses.replace(config, device="cpu"), run_id, resumed=True)

    @cached_property
    def task(self) -> TaskInfo:
        """Its environment. Raises :class:`EnvironmentUnsuitableError` where it is not registered here."""
        return task_of(self.config)

    def load_agent(self) -> Agent:
        """The agent with the policy that was saved last.

        Raises:
            DataError: there is no checkpoint yet.
            AgentError: it is of another environment.
        """
        config = self.config  # first: it says whether this is a run at all
        state = read_policy(self.folder)
        with contextlib.closing(make_vector_env(self.task, 1, config.seed)) as envs:
            agent = make_agent(config, envs)
        agent.load_policy(state)
        return agent

    def load_predictor(self) -> RewardPredictor:
        """The predictor as it was saved last.

        Raises:
            DataError: there is no checkpoint yet, or the run learns from the true reward.
        """
        path = self.folder / CHECKPOINT_NAME
        if self.config.predictor == "rl" or not path.exists():
            raise DataError(
                f"{self.folder} has no predictor yet; expected a run with -p synth or -p human that was saved"
            )
        predictor = make_predictor(RunPlan(self._settings, self.task))
        with restoring(path):
            predictor.load_state_dict(load_state(path)["teaching"]["predictor"])
        predictor.env_id = self.task.env_id
        return predictor

    def open_ledger(self) -> Ledger:
        """Its labels, to be closed again. Raises :class:`DataError` where there are none."""
        hard_labels, path = self.config.hard_labels, self.folder / LEDGER_NAME
        if not path.exists():
            raise DataError(f"{self.folder} has no labels; expected a run with -p synth or -p human")
        return Ledger(path, hard_labels=hard_labels, read_only=True)

    def load_preferences(self) -> PreferenceDataset:
        """All labels that give a target. Raises :class:`DataError` where they are damaged."""
        dataset = PreferenceDataset()
        with contextlib.closing(self.open_ledger()) as ledger:
            dataset.upsert(ledger.targets())
        return dataset
