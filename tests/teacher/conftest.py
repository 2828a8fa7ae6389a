"""Segments for tests that do not care which environment they come from, and a folder in memory."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from teacher.envs.recipe import EpisodeRecipe
from teacher.segments import Segment

torch.set_num_threads(1)  # as in a run: networks this small only lose by more

MakeSegment = Callable[..., Segment]
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


@pytest.fixture
def make_segment() -> MakeSegment:
    """Makes segments of random numbers; the same arguments make the same segment."""
    return _random_segment


def _random_segment(
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
        last_observation=random.normal(size=observation_size),
        terminated=seed % 3 == 0,
    )


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder in memory, where the system has one: nothing waits there for a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)
