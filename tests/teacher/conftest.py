"""Segments of no environment in particular, a folder in memory, and a finished run for its readers."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid4, uuid5

import numpy as np
import pytest
import torch
from rich.console import Console

from agents import defaults
from teacher.data.ledger import Ledger
from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segments import Segment
from teacher.envs.recipe import EpisodeRecipe
from teacher.settings.config import TeachConfig
from teacher.settings.config_files import save_config
from teacher.settings.options import RewardConfig
from teacher.training.builder import open_run
from teacher.training.loop import train
from tests.conftest import MakeOnce

torch.set_num_threads(1)  # as in a run: networks this small only lose by more

MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


def config_in(folder: Path, env_id: str, **changes: Any) -> TeachConfig:
    """The settings of a run in a folder, without videos: 40 labels of a synthetic teacher."""
    facts = {"env_id": env_id, "predictor": "synth", "name": "x", "n_labels": 40, "no_videos": True}
    return TeachConfig(**{**facts, "runs_dir": str(folder), **changes})


def save_new(config: TeachConfig) -> Path:
    """Save the configuration of a new run; return the file."""
    config.run_dir.mkdir(parents=True)
    save_config(config, uuid4())
    return config.run_dir / "config.json"


def make_segment(
    seed: int,
    *,
    length: int = 6,
    observation_size: int = 3,
    action_size: int = 2,
    true_return: float | None = None,
) -> Segment:
    """A segment whose true reward is the sum of the first observation's and the first action's entries."""
    random = np.random.default_rng(seed)
    # An offset of its own makes segments differ in more than noise.
    observations = random.normal(size=(length, observation_size)) + random.normal(size=observation_size)
    actions = random.uniform(-1, 1, (length + 2, action_size)).astype(np.float32)
    rewards = observations[:, 0] + actions[2:, 0]
    if true_return is not None:
        rewards = np.full(length, true_return / length)
    return Segment(
        EpisodeRecipe("Any-v0", {}, seed, actions),
        2,
        observations,
        actions[2:],
        rewards,
        final_observation=random.normal(size=observation_size),
        terminated=seed % 3 == 0,
    )


def truthful(count: int, make: Callable[[int], Segment] = make_segment) -> PreferenceDataset:
    """Preferences of so many pairs of segments, by their true returns."""
    dataset = PreferenceDataset()
    for number in range(count):
        first, second = make(2 * number), make(2 * number + 1)
        value = float(first.true_return > second.true_return)
        dataset.upsert([Preference(uuid5(NAMESPACE_URL, str(number)), first, second, value)])
    return dataset


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder in memory, where the system has one: nothing waits there for a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def ledger(memory_path: Path) -> Iterator[Ledger]:
    """An empty ledger."""
    with closing(Ledger(memory_path / "ledger.sqlite3")) as ledger:
        yield ledger


@pytest.fixture(scope="session")
def finished_run(make_once: MakeOnce) -> Path:
    """The directory of a run that is done, of 12 synthetic labels on Pendulum-v1; copy it to change it."""

    def finish(folder: Path) -> None:
        config = config_in(
            folder,
            "Pendulum-v1",
            name="done",
            n_labels=12,
            num_timesteps=256,
            pretrain_iters=30,
            reward=RewardConfig(hidden=8),
        )
        with open_run(config, Console(quiet=True)) as run:
            run.agent.config = replace(run.agent.config, num_steps=256)  # type: ignore[misc, call-arg]  # more than an episode has
            train(run)

    return make_once("runs", finish) / "Pendulum-v1" / "done"


@pytest.fixture
def short_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let agents learn from 64 steps of each environment at a time, not from as many as suit the task."""

    def shortened(row: defaults.TaskDefaults) -> defaults.TaskDefaults:
        return replace(row, ppo=replace(row.ppo, num_steps=64), trpo=replace(row.trpo, num_steps=64))

    for name in ("GENERAL", "ATARI"):
        monkeypatch.setattr(defaults, name, shortened(getattr(defaults, name)))
    monkeypatch.setattr(defaults, "BY_NAME", {name: shortened(row) for name, row in defaults.BY_NAME.items()})
