"""Helpers for reading and copying other programs' trajectory folders."""

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, StorageError
from teacher.files import atomic_folder, refusing_damage
from teacher.reward.predictor import RewardPredictor


@contextlib.contextmanager
def copied(source: Path, target: Path) -> Iterator[Path]:
    """Yield the path of a temporary copy of a folder, for the ``with`` block to modify.

    When the block ends, the copy is renamed to ``target``; if the block raises an exception, it is deleted.

    Raises:
        ConfigError: ``target`` exists.
        StorageError: the copy can't be written.
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
    """Add the episode's index and source to the message of a :class:`DataError` raised in the block."""
    try:
        yield
    except DataError as error:
        raise DataError(f"episode {number} of {source}: {error}") from error


def predicted(
    model: RewardPredictor, episodes: Iterable[Trajectory], source: Path, first: int = 0
) -> list[NDArray[np.float64]]:
    """Return the predicted rewards of each episode, as one array per episode.

    Raises:
        DataError: an episode doesn't match the model's spaces, or contains NaN or infinite values.
    """
    rewards = []
    for number, episode in enumerate(episodes, first):
        with about_episode(number, source):
            rewards.append(model.step_rewards(episode))
    return rewards


def changed_json(path: Path, change: Callable[[Any], None]) -> str:
    """Read a JSON file and return its modified content as text; the file itself is unchanged.

    Raises:
        DataError: the file is damaged, or lacks an entry that ``change`` needs.
    """
    with refusing_damage(f"{path} cannot be read", AttributeError):
        content = json.loads(path.read_text())
        change(content)
        return json.dumps(content, indent=2)


def numbers_of(array: Any) -> NDArray[Any]:
    """Convert an Arrow array of numbers, or of nested lists of equal length, to a NumPy array.

    Raises:
        ValueError: the lists have different lengths, or contain something other than numbers.
    """
    shape = [len(array)]
    while array.type.num_fields:  # lists
        array = array.flatten()
        shape.append(len(array) // max(1, math.prod(shape)))
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False).reshape(shape)
    if numbers.dtype.kind not in "iufb":
        raise ValueError(f"the values must be numbers, not {numbers.dtype}")
    return numbers
