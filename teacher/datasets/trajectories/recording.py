"""Episodes read from trajectory files, their conversion to demonstrations, and copies of folders."""

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.data.demonstrations import Demonstrations
from teacher.data.steps import readable_part, require_finite
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError, StorageError
from teacher.files import atomic_folder, refusing_damage
from teacher.reward.predictor import RewardPredictor


@contextlib.contextmanager
def copied(source: Path, target: Path) -> Iterator[Path]:
    """Yield the path of a temporary copy of a folder, for the ``with`` block to modify.

    When the block ends, the copy is renamed to ``target``; if the block raises an exception, it is deleted.
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
    """Return the predicted rewards of each episode, as one array per episode."""
    rewards = []
    for number, episode in enumerate(episodes, first):
        with about_episode(number, source):
            rewards.append(model.step_rewards(episode))
    return rewards


def changed_json(path: Path, change: Callable[[Any], None]) -> str:
    """Read a JSON file and return its modified content as text; the file itself is unchanged."""
    with refusing_damage(f"{path} cannot be read", AttributeError):
        content = json.loads(path.read_text())
        change(content)
        return json.dumps(content, indent=2)


def numbers_of(array: Any) -> NDArray[Any]:
    """Convert an Arrow array of numbers, or of nested lists of equal length, to a NumPy array."""
    shape = [len(array)]
    while array.type.num_fields:  # lists
        array = array.flatten()
        shape.append(len(array) // max(1, math.prod(shape)))
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False).reshape(shape)
    if numbers.dtype.kind not in "iufb":
        raise ValueError(f"the values must be numbers, not {numbers.dtype}")
    return numbers


@dataclass(frozen=True, eq=False)
class Recording:
    """Recorded episodes and where they come from.

    Attributes:
        episodes: episodes in file order; rewards are 0 if the file has none.
        source: file or folder that the episodes were read from, for error messages.
    """

    episodes: Sequence[Trajectory]
    env_id: str | None = None
    source: str = "the recording"


def as_demonstrations(recording: Recording) -> Demonstrations:
    """Convert recorded episodes to demonstrations for behavior cloning.

    An episode's last step is dropped if it led to a NaN or infinite observation.

    Raises:
        DataError: there are no episodes, the episodes' observations or actions have different shapes, or any
            other step contains NaN or infinite values.
    """
    episodes: list[Trajectory] = []
    for number, episode in enumerate(recording.episodes):
        with about_episode(number, recording.source):
            require_finite(episode)
            readable = readable_part(_in_rows(episode))
            if len(readable):
                _require_alike(readable, (episodes or [readable])[0])
                episodes.append(readable)
    if not episodes:
        raise DataError(f"{recording.source} has no episode with at least one step")
    return Demonstrations.of(episodes)


def _in_rows(episode: Trajectory) -> Trajectory:
    """Add a trailing axis of length 1 to scalar observations and actions; leave others unchanged."""
    observations, actions = (
        array[:, None] if array.ndim == 1 else array for array in (episode.all_observations, episode.actions)
    )
    return Trajectory.from_arrays(observations, actions, episode.true_rewards, episode.terminated)


def _require_alike(episode: Trajectory, first: Trajectory) -> None:
    for name in ("observations", "actions"):
        found, expected = getattr(episode, name).shape[1:], getattr(first, name).shape[1:]
        if found != expected:
            raise DataError(f"the {name} have shape {found}, but the first episode's have shape {expected}")
