"""Reader of Minari datasets in HDF5, Arrow and Parquet; the ``minari`` package isn't needed.

A dataset's folder contains the episodes, and ``data/metadata.json`` with the spaces and the environment. The
episodes are either groups ``episode_0``, ``episode_1``, ... in ``main_data.hdf5``, or one folder each that
contains a table. A table has an extra row at the end, for the final observation.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.datasets.trajectories.recording import (
    Recording,
    about_episode,
    changed_json,
    copied,
    numbers_of,
    predicted,
)
from teacher.envs.trajectory import Trajectory
from teacher.errors import DataError
from teacher.extras import require_extra
from teacher.files import refusing_damage
from teacher.reward.predictor import RewardPredictor

_OF_THE_ORIGINAL = (
    "author", "author_email", "algorithm_name", "code_permalink", "ref_min_score", "ref_max_score",
    "num_episodes_average_score",
)  # fmt: skip
_METADATA = Path("data", "metadata.json")
_HDF5 = "hdf5"
_NAMES = ("observations", "actions", "rewards", "terminations")
_STATISTICS = ("sum", "mean", "std", "max", "min")


def wrote(path: Path) -> bool:
    """Return True if the path is a Minari dataset folder."""
    return (path / _METADATA).is_file()


def read(folder: Path) -> Recording:
    """Read the episodes of a Minari dataset."""
    about = _metadata(folder)
    return Recording(list(_episodes(folder, about)), _env_id(about), str(folder))


def relabel(source: Path, target: Path, model: RewardPredictor) -> None:
    """Copy a dataset, replacing its rewards with the reward model's predictions.

    The copy's dataset ID, description and reward statistics are updated.
    """
    about = _metadata(source)
    rewards = predicted(model, _episodes(source, about), source)
    texts = {_METADATA: changed_json(source / _METADATA, lambda said: _rename(said, target.name))}
    if about["data_format"] != _HDF5:
        for episode, changed in enumerate(rewards):
            path = Path("data", str(episode), _METADATA.name)
            texts[path] = changed_json(source / path, methodcaller("update", _statistics(changed)))
    with copied(source, target) as folder:
        if about["data_format"] == _HDF5:
            _rewrite_file(folder, rewards)
        else:
            for episode, changed in enumerate(rewards):
                _rewrite_table(folder / "data" / str(episode), about["data_format"], changed)
        for path, text in texts.items():
            (folder / path).write_text(text)


def _rename(about: dict[str, Any], name: str) -> None:
    """Name the copy, and say that its rewards are predicted and whose episodes they are of.

    Entries about the original rewards are removed, and so are those that would pass the copy off as its
    author's own.
    """
    source = str(about["dataset_id"])
    about["dataset_id"] = "/".join([*source.split("/")[:-1], name])
    removed = {key: about.pop(key, None) for key in _OF_THE_ORIGINAL}
    authors = removed["author"]
    names = ", ".join(map(str, authors)) if isinstance(authors, list) else authors
    by = f" by {names}" if names else ""
    collected = f", collected with {removed['algorithm_name']}" if removed["algorithm_name"] else ""
    about["reward_source"] = "predicted"
    about["description"] = (
        "The rewards were predicted by a reward model (RL-Teacher, teach relabel); they are not the "
        f"environment's. Observations and actions are those of {source}{by}{collected}. "
        f"{about.get('description') or ''}"
    ).rstrip()


def _metadata(folder: Path) -> dict[str, Any]:
    path = folder / _METADATA
    with refusing_damage(f"{path} does not describe a Minari dataset"):
        about = json.loads(path.read_text())
        spaces = [json.loads(about[f"{name}_space"]) for name in ("observation", "action")]
        kinds = [str(space["type"]) for space in spaces]
        about = {"data_format": _HDF5, **about, "total_episodes": int(about["total_episodes"])}
        _env_id(about)
    if not set(kinds) <= {"Box", "Discrete"}:
        raise DataError(
            f"{folder} has {' and '.join(kinds)} spaces, but only Box and Discrete are supported; "
            "docs/datasets.md shows how to read the dataset with the minari package and flatten its spaces"
        )
    return about


def _env_id(about: Mapping[str, Any]) -> Any:
    return dict(json.loads(about.get("env_spec") or "{}")).get("id")


def _episodes(folder: Path, about: Mapping[str, Any]) -> Iterator[Trajectory]:
    read_arrays = _hdf5_arrays if about["data_format"] == _HDF5 else _table_arrays
    for number, arrays in enumerate(read_arrays(folder, about)):
        states, actions, rewards, terminations = arrays
        if any(array.ndim == 0 or array.dtype.kind not in "iufb" for array in arrays):
            raise DataError(
                f"episode {number} of {folder} has values that are not arrays of numbers; to read encoded "
                "images, use the minari package and convert each episode to a teacher.Trajectory"
            )
        with about_episode(number, folder):
            ended = bool(terminations[-1:].any())
            episode = Trajectory.from_arrays(states, actions, rewards.astype(np.float64), ended)
        yield episode


def _hdf5_arrays(folder: Path, about: Mapping[str, Any]) -> Iterator[list[NDArray[Any]]]:
    with _opened(folder, "r") as file:
        for episode in range(about["total_episodes"]):
            group = file[f"episode_{episode}"]
            yield [np.asarray(group[name]) for name in _NAMES]


@contextlib.contextmanager
def _opened(folder: Path, mode: str) -> Iterator[Any]:
    path = folder / "data" / "main_data.hdf5"
    h5py = require_extra("h5py", "a Minari dataset in HDF5", "minari")
    with refusing_damage(f"{path} is damaged"), h5py.File(path, mode) as file:
        yield file


def _table_arrays(folder: Path, about: Mapping[str, Any]) -> Iterator[list[NDArray[Any]]]:
    arrow = require_extra("pyarrow", "a Minari dataset in Arrow", "parquet")
    for episode in range(about["total_episodes"]):
        path = folder / "data" / str(episode)
        with refusing_damage(f"{path} is damaged", AttributeError, arrow.ArrowException):
            table = _read_table(path, about["data_format"])
            table.validate(full=True)  # invalid offsets would crash the process
            columns = {name: table[name] for name in table.column_names}  # all of them, as a copy keeps all
            states, *others = (numbers_of(columns[name].combine_chunks()) for name in _NAMES)
        yield [states, *(column[:-1] for column in others)]


def _read_table(folder: Path, data_format: str) -> Any:
    datasets = require_extra("pyarrow.dataset", "a Minari dataset in Arrow", "parquet")
    paths = [str(path) for path in sorted(folder.glob(f"*.{data_format}"))]
    return datasets.dataset(paths, format=data_format).to_table()


def _rewrite_file(folder: Path, rewards: Sequence[NDArray[np.float64]]) -> None:
    with _opened(folder, "r+") as file:
        for episode, changed in enumerate(rewards):
            group = file[f"episode_{episode}"]
            group["rewards"][...] = changed
            group.attrs.update(_statistics(changed))


def _rewrite_table(folder: Path, data_format: str, rewards: NDArray[np.float64]) -> None:
    datasets = require_extra("pyarrow.dataset", "a Minari dataset in Arrow", "parquet")
    table = _read_table(folder, data_format)
    column = np.append(rewards, 0.0)  # for the row of the final observation
    table = table.set_column(table.column_names.index("rewards"), "rewards", [column])
    (batch,) = table.combine_chunks().to_batches()
    for path in folder.glob(f"*.{data_format}"):
        path.unlink()
    datasets.write_dataset(batch, folder, format=data_format, existing_data_behavior="overwrite_or_ignore")


def _statistics(rewards: NDArray[np.float64]) -> dict[str, float]:
    if not len(rewards):  # an empty array has no maximum
        return {}
    return {f"rewards_{name}": float(getattr(rewards, name)()) for name in _STATISTICS}
