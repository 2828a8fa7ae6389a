"""Helpers shared by the readers of other programs' trajectory folders."""

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.steps import Steps
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, StorageError
from teacher.files import atomic_folder, refusing_damage


class StepRewards(Protocol):
    """Source of rewards for steps, such as a reward predictor."""

    @property
    def inputs(self) -> frozenset[str]:
        """Return which of ``INPUTS`` are read."""

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Return the observation space of the steps."""

    @property
    def action_space(self) -> spaces.Space[Any]:
        """Return the action space of the steps."""

    def step_rewards(self, steps: Steps) -> NDArray[np.float64]:
        """Return the reward of each step. Raise :class:`DataError` for steps with other spaces."""


@contextlib.contextmanager
def copied(source: Path, target: Path) -> Iterator[Path]:
    """Yield a copy of a folder to modify; it is renamed to ``target`` at the end, or deleted on an error.

    Raises:
        ConfigError: the name ``target`` was taken in the meantime.
        StorageError: the copy cannot be written.
    """
    try:
        with atomic_folder(target) as part:
            shutil.copytree(source, part, dirs_exist_ok=True)
            yield part
    except (OSError, shutil.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"cannot write the trajectories {target}: {reason}") from error


@contextlib.contextmanager
def about_episode(number: int, source: Path | str) -> Iterator[None]:
    """Add the episode, counted from 0, to a :class:`DataError` of the block."""
    try:
        yield
    except DataError as error:
        raise DataError(f"episode {number} of {source}: {error}") from error


def predicted(
    model: StepRewards, episodes: Iterable[Trajectory], source: Path, first: int = 0
) -> list[NDArray[np.float64]]:
    """Return predicted rewards for each episode.

    Args:
        model: predicts the rewards.
        episodes: in the order of the file.
        source: the file, for error messages.
        first: index of the first of these episodes in the file.

    Raises:
        DataError: an episode has other spaces, or holds NaN or infinity.
    """
    rewards = []
    for number, episode in enumerate(episodes, first):
        with about_episode(number, source):
            rewards.append(model.step_rewards(episode))
    return rewards


def changed_json(path: Path, change: Callable[[Any], None]) -> str:
    """Return the modified content of a JSON file, as text for the copy.

    Args:
        path: the original file.
        change: modifies the parsed content in place.

    Raises:
        DataError: the file is damaged, or lacks an entry to modify.
    """
    with refusing_damage(f"{path} cannot be read", AttributeError):
        content = json.loads(path.read_text())
        change(content)
        return json.dumps(content, indent=2)


def numbers_of(array: Any) -> NDArray[Any]:
    """Convert an Arrow array of numbers, or of equally long lists of numbers, to numpy.

    Raises:
        ValueError: the lists differ in length, or do not hold numbers.
    """
    shape = [len(array)]
    while array.type.num_fields:  # lists
        array = array.flatten()
        shape.append(len(array) // max(1, math.prod(shape)))
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False).reshape(shape)
    if numbers.dtype.kind not in "iufb":
        raise ValueError(f"expected numbers, got {numbers.dtype}")
    return numbers
