"""What readers of other programs' folders share."""

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
    """What gives steps rewards, such as a reward predictor."""

    @property
    def inputs(self) -> frozenset[str]:
        """Which of ``INPUTS`` it reads of steps."""

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Of the steps."""

    @property
    def action_space(self) -> spaces.Space[Any]:
        """Of the steps."""

    def step_rewards(self, steps: Steps) -> NDArray[np.float64]:
        """Return the reward of each step. Raises :class:`DataError` for steps of other spaces."""


@contextlib.contextmanager
def copied(source: Path, target: Path) -> Iterator[Path]:
    """Copy a folder, to be changed, which takes the name ``target`` at the end, or goes again.

    Raises:
        ConfigError: something has taken the name meanwhile.
        StorageError: it cannot be written.
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
    """Name the episode, counted from 0, in a :class:`DataError` of the block."""
    try:
        yield
    except DataError as error:
        raise DataError(f"episode {number} of {source}: {error}") from error


def predicted(
    model: StepRewards, episodes: Iterable[Trajectory], source: Path, first: int = 0
) -> list[NDArray[np.float64]]:
    """Return other rewards of each episode.

    Args:
        model: gives them.
        episodes: in the order of the file.
        source: where they are from, to be named.
        first: number of the first of them there.

    Raises:
        DataError: an episode is of other spaces, or holds what is no number.
    """
    rewards = []
    for number, episode in enumerate(episodes, first):
        with about_episode(number, source):
            rewards.append(model.step_rewards(episode))
    return rewards


def changed_json(path: Path, change: Callable[[Any], None]) -> str:
    """Return what a file of JSON is to say in the copy.

    Args:
        path: the file as it is.
        change: is given its content to change it.

    Raises:
        DataError: it is damaged, or lacks what is to be changed.
    """
    with refusing_damage(f"{path} cannot be read", AttributeError):
        content = json.loads(path.read_text())
        change(content)
        return json.dumps(content, indent=2)


def numbers_of(array: Any) -> NDArray[Any]:
    """Return an Arrow array of numbers, or of lists of them of one length, as one of numpy.

    Raises:
        ValueError: the lists are not.
    """
    shape = [len(array)]
    while array.type.num_fields:  # it is of lists
        array = array.flatten()
        shape.append(len(array) // max(1, math.prod(shape)))
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False).reshape(shape)
    if numbers.dtype.kind not in "iufb":
        raise ValueError(f"expected numbers, got {numbers.dtype}")
    return numbers
