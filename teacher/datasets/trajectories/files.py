"""Reading and relabeling of trajectory files, with automatic format detection."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from teacher.data.demonstrations import demonstrated_episodes, load_demonstrations, save_demonstrations
from teacher.data.steps import StepsBatch
from teacher.datasets.preference_files import space_of
from teacher.datasets.trajectories import imitation, minari
from teacher.datasets.trajectories.recording import Recording
from teacher.errors import ConfigError, DataError
from teacher.files import DAMAGED_ARCHIVE, opened_archive, require_new
from teacher.reward.predictor import RewardPredictor


@dataclass(frozen=True)
class _Format:
    wrote: Callable[[Path], bool]
    read: Callable[[Path], Recording]
    relabel: Callable[[Path, Path, RewardPredictor], None]


def load_trajectories(path: str | Path) -> Recording:
    """Read the episodes in a file or folder from RL-Teacher, Stable Baselines 2, imitation or Minari.

    Raises:
        ConfigError: a package that is needed to read the format is not installed.
        DataError: the format is unknown, the file is damaged, or its spaces are neither Box nor Discrete.
    """
    path = Path(path)
    return _format_of(path).read(path)


def relabel(predictor: RewardPredictor, source: str | Path, target: str | Path) -> None:
    """Copy a file or folder of trajectories, replacing the rewards with the predictor's.

    Args:
        source: file or folder to copy, in any format that :func:`load_trajectories` reads.
        target: file or folder to create, in the same format.

    Raises:
        ConfigError: the target exists, a package that is needed to read the source is not installed, the
            source lacks an input of the predictor, or its format can't be written without pickle.
        DataError: the source can't be read, or its steps don't match the predictor's spaces.
        StorageError: the copy can't be written.
    """
    source, target = Path(source), Path(target)
    require_new(target)
    _format_of(source).relabel(source, target, predictor)


def _read_demonstrations(path: Path) -> Recording:
    demonstrations = load_demonstrations(path)
    spaces = (
        space_of({"kind": "Box", "shape": array.shape[1:], "dtype": str(array.dtype)})
        for array in (demonstrations.obs, demonstrations.actions)
    )
    return Recording(list(demonstrated_episodes(demonstrations, *spaces)), source=str(path))


def _relabel_demonstrations(source: Path, target: Path, model: RewardPredictor) -> None:
    old = load_demonstrations(source)
    spaces = model.observation_space, model.action_space
    try:
        obs, actions = (
            array.reshape(len(old), *(space.shape or ()))
            for array, space in zip((old.obs, old.actions), spaces, strict=True)
        )
    except ValueError as error:
        raise DataError(
            f"the observations and actions in {source} have shapes {old.obs.shape[1:]} and "
            f"{old.actions.shape[1:]}, which do not match the predictor's spaces, {spaces[0]} and {spaces[1]}"
        ) from error
    after = old.next_obs()
    if after is None and "next_state" in model.inputs:
        raise ConfigError(
            f"{source} lacks the episodes' final observations, which this predictor needs; record the "
            "demonstrations again, or fit a predictor with --reward.inputs state"
        )
    ends = old.terminations()
    if ends is None and "terminated" in model.inputs:
        raise ConfigError(
            f"{source} does not record which episodes the environment terminated, which this predictor "
            "needs; record the demonstrations again, or fit a predictor with --reward.inputs state"
        )
    steps = StepsBatch(obs, actions, None if after is None else after.reshape(obs.shape), ends)
    rewards = model.step_rewards(steps)
    returns = np.add.reduceat(rewards, np.flatnonzero(old.episode_starts))
    save_demonstrations(target, replace(old, rewards=rewards, episode_returns=returns), new=True)


def _refuse_old_imitation(source: Path, target: Path, _: RewardPredictor) -> None:
    raise ConfigError(
        f"{source} has imitation's old format, which can be written only with pickle; run teach import "
        f"{source} FILE.npz, and relabel FILE.npz"
    )


def _has(names: set[str], path: Path) -> bool:
    """Return True if a path is a readable ``.npz`` file that contains arrays with these names."""
    try:
        with path.open("rb") as file, opened_archive(file) as archive:
            return names <= set(archive.files)
    except (OSError, *DAMAGED_ARCHIVE):
        return False


_FORMATS = (
    _Format(minari.wrote, minari.read, minari.relabel),
    _Format(imitation.wrote, imitation.read, imitation.relabel),
    _Format(partial(_has, {"episode_starts"}), _read_demonstrations, _relabel_demonstrations),
    _Format(partial(_has, {"obs", "acts", "indices"}), imitation.read_archive, _refuse_old_imitation),
)


def _format_of(path: Path) -> _Format:
    if not path.exists():
        raise DataError(f"{path} does not exist; pass a file or folder of trajectories")
    for candidate in _FORMATS:
        if candidate.wrote(path):
            return candidate
    raise DataError(
        f"{path} contains no readable trajectories; use a demonstration file (.npz), a folder or .npz file "
        "from imitation, or a folder from Minari"
    )
