"""Reader of trajectories from the ``imitation`` library: dataset folders and old ``.npz`` files.

A folder, saved with Hugging Face's ``datasets``, contains Arrow tables with one row per trajectory: ``obs``
(one more than ``acts``), ``acts``, ``rews`` if there are rewards, ``terminal``, and ``infos``, JSON text
written by jsonpickle. Of the infos, only the last step's ``TimeLimit.truncated`` is read. The old ``.npz``
files have pickled infos, which are ignored.
"""

import json
from collections.abc import Iterator, Sequence
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
from teacher.files import opened_archive, refusing_damage
from teacher.reward.predictor import RewardPredictor

_STATE, _INFO = "state.json", "dataset_info.json"
_TIME_LIMIT = "TimeLimit.truncated"
_PURPOSE = "a folder of trajectories from imitation"


def wrote(path: Path) -> bool:
    """Return True if the path is a folder saved by Hugging Face's ``datasets``, which imitation uses."""
    return (path / _STATE).is_file() and (path / _INFO).is_file()


def read(folder: Path) -> Recording:
    """Read the episodes in a folder; ``terminated`` is None for episodes that ended for an unknown reason."""
    episodes: list[Trajectory] = []
    for path in _data_files(folder):
        episodes += _episodes(_table(path), folder, len(episodes))
    return Recording(episodes, source=str(folder))


def read_archive(path: Path) -> Recording:
    """Read the episodes in an old ``.npz`` file; ``terminated`` is None, because the file doesn't record it.

    Raises:
        DataError: the file is damaged.
    """
    with refusing_damage(f"{path} is damaged"), path.open("rb") as file, opened_archive(file) as archive:
        cuts = np.asarray(archive["indices"])
        obs = np.split(archive["obs"], cuts + np.arange(len(cuts)) + 1)  # one more observation than steps
        acts = np.split(archive["acts"], cuts)
        rews = np.split(archive["rews"], cuts) if "rews" in archive.files else map(np.zeros, map(len, acts))
        episodes = []
        for number, (states, actions, rewards) in enumerate(zip(obs, acts, rews, strict=True)):
            with about_episode(number, path):
                given = np.asarray(rewards, np.float64)
                episodes.append(Trajectory.from_arrays(states, actions, given, None))
        return Recording(episodes, source=str(path))


def relabel(source: Path, target: Path, model: RewardPredictor) -> None:
    """Copy a trajectory folder, replacing its ``rews`` with the reward model's predictions."""
    info = changed_json(source / _INFO, lambda info: _declare_rewards(info["features"]))
    files, rewards, known = _data_files(source), [], 0
    for path in files:
        rewards.append(predicted(model, _episodes(_table(path), source, known), source, known))
        known += len(rewards[-1])
    with copied(source, target) as folder:
        for file, changed in zip(files, rewards, strict=True):
            _write(folder / file.name, _with_rewards(_table(file), changed, file))
        (folder / _INFO).write_text(info)


def _arrow() -> Any:
    require_extra("pyarrow.ipc", _PURPOSE, "parquet")
    return require_extra("pyarrow", _PURPOSE, "parquet")


def _data_files(folder: Path) -> list[Path]:
    with refusing_damage(f"{folder / _STATE} does not list data files"):
        names = [str(file["filename"]) for file in json.loads((folder / _STATE).read_text())["_data_files"]]
    if any(Path(name).name != name for name in names):
        raise DataError(f"{folder / _STATE} lists data files outside of {folder}")
    return [folder / name for name in names]


def _table(path: Path) -> Any:
    arrow = _arrow()
    with refusing_damage(f"{path} cannot be read", arrow.ArrowException):
        with path.open("rb") as file, arrow.ipc.open_stream(file) as stream:
            table = stream.read_all()
        table.validate(full=True)  # invalid offsets would crash the process
        missing = {"obs", "acts", "terminal"} - set(table.column_names)
    if missing:
        raise DataError(
            f"{path} is not from a trajectory dataset saved by the imitation library; missing: "
            f"{', '.join(sorted(missing))}"
        )
    return table


def _write(path: Path, table: Any) -> None:
    arrow = _arrow()
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


def _episodes(table: Any, folder: Path, first: int) -> Iterator[Trajectory]:
    """Yield a table's episodes; ``first`` is the index of the table's first episode in the folder."""
    names = table.column_names
    for row in range(table.num_rows):
        message = f"episode {first + row} of {folder} has values that are not arrays of numbers"
        with refusing_damage(message, AttributeError, _arrow().ArrowException):
            states, actions = numbers_of(table["obs"][row].values), numbers_of(table["acts"][row].values)
            rewards = numbers_of(table["rews"][row].values) if "rews" in names else np.zeros(len(actions))
            ended = bool(table["terminal"][row].as_py())
            timed_out = _timed_out(table["infos"][row].values) if "infos" in names else None
        terminated = None if ended and timed_out is None else ended and not timed_out
        with about_episode(first + row, folder):
            episode = Trajectory.from_arrays(states, actions, rewards.astype(np.float64), terminated)
        yield episode


def _timed_out(infos: Any) -> bool | None:
    try:
        return bool(json.loads(infos[-1].as_py())[_TIME_LIMIT])
    except (IndexError, ValueError, KeyError, TypeError):
        return None


def _with_rewards(table: Any, rewards: Sequence[NDArray[np.float64]], path: Path) -> Any:
    arrow = _arrow()
    column = arrow.array(rewards, arrow.list_(arrow.float64()))
    if "rews" in table.column_names:
        table = table.set_column(table.column_names.index("rews"), "rews", column)
    else:
        table = table.append_column("rews", column)
    metadata = dict(table.schema.metadata or {})
    if b"huggingface" in metadata:
        with refusing_damage(f"{path} does not describe its columns"):
            said = json.loads(metadata[b"huggingface"])
            _declare_rewards(said["info"]["features"])
            metadata[b"huggingface"] = json.dumps(said).encode()
    return table.replace_schema_metadata(metadata)


def _declare_rewards(features: dict[str, Any]) -> None:
    """Set the type of ``rews`` in the dataset's features to a list of float64.

    The list type is copied from ``infos``, because its name depends on the version of Hugging Face
    ``datasets``.
    """
    features["rews"] = {**features["infos"], "feature": {"dtype": "float64", "_type": "Value"}}
