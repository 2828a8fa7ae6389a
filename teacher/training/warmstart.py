"""Warm start of a run from a saved policy, from demonstrations (behavior cloning), or from both."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from agents.base import Agent
from agents.cloning import check_demonstrations, clone
from agents.errors import AgentError
from teacher.data.checkpoint import CHECKPOINT_NAME, State, load_state
from teacher.data.demonstrations import Demonstrations, Split, draw_returns, load_demonstrations
from teacher.datasets.network_files import load_tensors
from teacher.errors import ConfigError, DataError, TeacherError, collecting, join_errors
from teacher.reporting.console import progress
from teacher.settings.config import TeachConfig
from teacher.training.sb3 import SB3_SUFFIX, read_sb3, require_same_network

CLONING_EPOCHS = 300
CLONING_PATIENCE = 10
TRAIN_FRACTION = 0.8
POLICY_PREFIX, NORMALIZER_PREFIX = "policy.", "normalizer."
"""Beginnings of the names of a policy's tensors in a safetensors file."""
PLOT_NAME = "demonstrations.png"


@dataclass(frozen=True)
class WarmStart:
    """A policy, demonstrations, or both to start a run from.

    Attributes:
        policy: state dict of a saved agent; None if only demonstrations are given.
        demonstrations: data for behavior cloning, which runs after the policy is loaded; None if only a
            policy is given.
    """

    config: TeachConfig
    policy: State | None
    demonstrations: Demonstrations | None

    def check(self, agent: Agent) -> None:
        """Load the policy into an agent, and check the demonstrations against the agent's environment.

        Raises:
            DataError: the policy or the demonstrations are from a different environment.
        """
        problems: list[TeacherError] = []
        if self.policy is not None:
            with collecting(problems), _named(f"--policy {self.config.policy}"):
                if Path(self.config.policy or "").suffix == SB3_SUFFIX:
                    require_same_network(self.policy, agent)
                agent.load_policy(self.policy)
        if self.demonstrations is not None:
            pairs = self.demonstrations.obs, self.demonstrations.actions
            with collecting(problems), _named(f"--demonstrations {self.config.demonstrations}"):
                check_demonstrations(pairs, agent.normalizer.shape, agent.policy.head.space)
        if problems:
            raise join_errors(problems)

    def give(self, agent: Agent, console: Console) -> None:
        """Load the policy into an agent, train it on the demonstrations, and print and plot the results."""
        self.check(agent)  # also loads the policy
        if self.policy is not None:
            console.print(f"Starting from the policy in {self.config.policy}")
        if self.demonstrations is not None:
            with _named(f"--demonstrations {self.config.demonstrations}"):
                _clone(agent, self.demonstrations, self.config.seed, console)
            with contextlib.suppress(ConfigError):  # no plot without matplotlib
                draw_returns(self.demonstrations, self.config.run_dir / PLOT_NAME)


def read_warm_start(config: TeachConfig) -> WarmStart | None:
    """Read the policy and demonstrations to start from; None if the run is resumed or specifies neither.

    Raises:
        DataError: one or more files are missing or damaged. The message names all of them.
    """
    if not config.warm or (config.run_dir / CHECKPOINT_NAME).exists():
        return None
    policy = demonstrations = None
    problems: list[TeacherError] = []
    with collecting(problems):
        policy = None if config.policy is None else read_policy(Path(config.policy))
    with collecting(problems):
        if config.demonstrations is not None:
            demonstrations = load_demonstrations(Path(config.demonstrations))
    if problems:
        raise join_errors(problems)
    return WarmStart(config, policy, demonstrations)


def read_policy(path: Path) -> State:
    """Read the policy of an agent's state dict from a file.

    Args:
        path: a run directory, a checkpoint file, a ``.safetensors`` file from ``teach export --huggingface``,
            or a ``.zip`` file of Stable-Baselines3.
    """
    if path.is_dir():
        path /= CHECKPOINT_NAME
    if not path.is_file():
        raise DataError(
            f"{path} does not exist; expected a run directory with a checkpoint, or a file: checkpoint.npz, "
            "*.safetensors, or *.zip of Stable-Baselines3"
        )
    if path.suffix == SB3_SUFFIX:
        return read_sb3(path)
    if path.suffix == ".safetensors":
        return _of_tensors(load_tensors(path))
    try:
        agent: State = load_state(path)["agent"]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is not a run's checkpoint: it contains no agent") from error
    return agent


def _of_tensors(tensors: Mapping[str, NDArray[Any]]) -> State:
    """Return the state dict with the tensors of a safetensors file; checked when an agent loads it."""
    return {
        part: {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}
        for part, prefix in (("policy", POLICY_PREFIX), ("normalizer", NORMALIZER_PREFIX))
    }


def _clone(agent: Agent, demonstrations: Demonstrations, seed: int, console: Console) -> None:
    """Train the agent on the demonstrations until the validation loss stops improving.

    If there is only one episode, none is held out for validation and all epochs are run.
    """
    single = len(demonstrations.episode_returns) == 1
    split = demonstrations.split(1 if single else TRAIN_FRACTION, seed=seed)
    with progress(console, "epochs of cloning", CLONING_EPOCHS) as show:
        counted = _Counted(split, show)
        losses = clone(agent, counted, CLONING_EPOCHS, patience=None if single else CLONING_PATIENCE)
    kept = losses[-1] if single else min(losses, key=lambda loss: loss.validation)
    held_out = "" if single else f", validation {kept.validation:.3g}"
    console.print(
        f"Cloned {demonstrations.summary()}; loss: train {kept.train:.3g}{held_out}, epoch {kept.epoch}",
        highlight=False,
    )


class _Counted:
    """Wraps a train/validation split; calls ``show`` with the epoch number (from 1) as each epoch starts."""

    def __init__(self, split: Split, show: Any) -> None:
        self.train, self.validation = split.train, split.validation
        self._split, self._show = split, show
        self._begun = 0

    def epoch(self) -> Iterator[NDArray[np.intp]]:
        self._begun += 1
        self._show(self._begun)
        return self._split.epoch()


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """Convert an AgentError in the ``with`` block to a DataError whose message starts with ``what``."""
    try:
        yield
    except AgentError as error:
        raise DataError(f"{what}: {error}") from error
