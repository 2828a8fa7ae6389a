"""Read access to the settings, policy, predictor and labels of a saved run."""

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
from teacher.queries.kinds import preferences_in
from teacher.reward.predictor import RewardPredictor
from teacher.settings.config import RunSettings, TeachConfig
from teacher.settings.config_files import load_config
from teacher.training.parts import RunPlan, make_agent, make_predictor, task_of
from teacher.training.warmstart import read_policy


@dataclass(frozen=True)
class SavedRun:
    """Reads a saved run from its folder without changing it; networks are loaded on the CPU.

    Raises:
        ConfigError: the folder does not contain a run; raised by the first property or method used.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # callers may pass a string

    @cached_property
    def config(self) -> TeachConfig:
        """The run's settings, with the device changed to the CPU."""
        return self._settings.config

    @cached_property
    def _settings(self) -> RunSettings:
        config, run_id = load_config(self.folder)
        return RunSettings(dataclasses.replace(config, device="cpu"), run_id, resumed=True)

    @cached_property
    def task(self) -> TaskInfo:
        """Properties of the run's environment.

        Raises:
            EnvironmentUnsuitableError: the environment is not registered in this process.
        """
        return task_of(self.config)

    def load_agent(self) -> Agent:
        """Load the agent from the checkpoint."""
        config = self.config  # read first, to raise if the folder does not contain a run
        state = read_policy(self.folder)
        with contextlib.closing(make_vector_env(self.task, 1, config.seed)) as envs:
            agent = make_agent(config, envs)
        agent.load_policy(state)
        return agent

    def load_predictor(self) -> RewardPredictor:
        """Load the predictor from the checkpoint."""
        path = self.folder / CHECKPOINT_NAME
        if self.config.predictor == "rl" or not path.exists():
            raise DataError(
                f"{self.folder} has no predictor; expected a run that has a checkpoint and was started with "
                "-p synth or -p human"
            )
        predictor = make_predictor(RunPlan(self._settings, self.task))
        with restoring(path):
            predictor.load_state_dict(load_state(path)["teaching"]["predictor"])
        predictor.env_id = self.task.env_id
        return predictor

    def open_ledger(self) -> Ledger:
        """Open the run's ledger read-only; the caller must close it."""
        hard_labels, path = self.config.hard_labels, self.folder / LEDGER_NAME
        if not path.exists():
            raise DataError(f"{self.folder} has no labels; expected a run started with -p synth or -p human")
        return Ledger(path, hard_labels=hard_labels, read_only=True)

    def load_preferences(self) -> PreferenceDataset:
        """Build a preference dataset from all of the run's labels.

        Raises:
            DataError: the run has no labels, or its ledger is damaged.
        """
        dataset = PreferenceDataset()
        with contextlib.closing(self.open_ledger()) as ledger:
            dataset.upsert(preferences_in(ledger))
        return dataset
