"""Human labels in the formats of the Uni-RLHF platform and its datasets (Yuan et al. 2024).

Labels refer to segments of ``len`` steps in one large table of transitions, such as D4RL's, by their first
rows. Two formats can be read. The platform exports a table (``.csv``) with the columns ``start_indices_1``,
``start_indices_2`` and ``label``, which is 0 for left, 1 for equal and 2 for right, and a ``.json`` next to
it. The published datasets have three files, ``indices_1_*``, ``indices_2_*`` and ``human_label_*`` (or
``fake_label_*``, with two columns), whose labels are 0 for the first, 1 for the second and -1 for equal.
These are published as pickles, which are never loaded here; they must be converted to ``.npy`` files.
"""

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from teacher.data.preferences import Preference, PreferenceDataset
from teacher.data.segments import Segment
from teacher.data.steps import fits_float32
from teacher.envs.recipe import EpisodeRecipe
from teacher.errors import DataError, pluralize
from teacher.extras import require_extra
from teacher.files import opened_archive, refusing_damage

_TABLE_VALUES = {0: 1.0, 1: 0.5, 2: 0.0}
_FILE_VALUES = {0: 1.0, 1: 0.0, -1: 0.5}
_LENGTH = re.compile(r"_env_(?P<env_id>.+)_num_\d+_len_(?P<length>\d+)_")
_AFTER = "next_observations"
_NAMES = ("observations", "actions", "rewards", _AFTER, "terminals")


@dataclass(frozen=True, eq=False)
class CrowdLabels:
    """Labels for pairs of segments in a table of transitions.

    Attributes:
        env_id: name in the labels, such as ``hopper-medium-v2``.
        length: steps per segment.
        starts: ``(n, 2)``, first rows of the first and the second segment.
        values: ``(n,)``, probability that the first is better.
    """

    env_id: str
    length: int
    starts: NDArray[np.int64]
    values: NDArray[np.float64]


def is_crowd_labels(path: str | Path) -> bool:
    """Return True for a folder of Uni-RLHF labels."""
    path = Path(path)
    return path.is_dir() and bool([*path.glob("indices_1*"), *path.glob("*.csv")])


def load_crowd_labels(folder: str | Path) -> CrowdLabels:
    """Read the labels in a folder.

    Raises:
        DataError: there are no labels, several sets, pickled ones, or ones that do not fit each other.
    """
    folder = Path(folder)
    tables = sorted(folder.glob("*.csv"))
    with refusing_damage(f"{folder} holds no Uni-RLHF labels"):
        labels = _of_table(folder, tables[0]) if tables else _of_files(folder)
    if len(labels.starts) == 0:
        raise DataError(f"{folder} holds no labels")
    return labels


def _of_table(folder: Path, path: Path) -> CrowdLabels:
    (described,) = folder.glob("*.json")
    about = json.loads(described.read_text())
    if about["feedback_type"] != "comparative":
        raise DataError(f"{folder} holds {about['feedback_type']} feedback; expected comparative")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    starts = np.array([[int(row["start_indices_1"]), int(row["start_indices_2"])] for row in rows], np.int64)
    values = [_TABLE_VALUES[_first_answer(row["label"])] for row in rows]
    return CrowdLabels(
        str(about["environment_name"]), int(about["query_length"]), starts.reshape(-1, 2), np.array(values)
    )


def _first_answer(text: str) -> int:
    """Read a number, or the platform's format for the first comparison: ``{'1': {'0': 2}}``."""
    if text.strip().lstrip("-").isdigit():
        return int(text)
    return int(json.loads(text.replace("'", '"'))["1"]["0"])


def _of_files(folder: Path) -> CrowdLabels:
    paths = [_only(folder, stem) for stem in ("indices_1", "indices_2", "*_label")]
    first, second, answers = map(_array, paths)
    named = _LENGTH.search(paths[0].name)
    if named is None:
        raise DataError(
            f"{paths[0].name} does not contain _env_ENV_num_N_len_STEPS_; keep the original file names"
        )
    if answers.ndim == 2:  # from a scripted teacher: preference for each segment
        values = answers[:, 0].astype(np.float64)
    else:
        values = np.array([_FILE_VALUES[int(answer)] for answer in answers.ravel()])
    starts = np.stack([first.ravel(), second.ravel()], axis=1)
    if len(starts) != len(values):
        raise DataError(f"expected a label for each of {pluralize(len(starts), 'pair')}, got {len(values)}")
    return CrowdLabels(named["env_id"], int(named["length"]), starts.astype(np.int64), values)


def _array(path: Path) -> NDArray[Any]:
    with path.open("rb") as file:
        return npy.read_array(file, allow_pickle=False)


def _only(folder: Path, stem: str) -> Path:
    found = sorted(folder.glob(f"{stem}_*.npy"))
    if not found and (pickled := sorted(folder.glob(f"{stem}_*.pkl"))):
        raise DataError(
            f"{pickled[0]} is a pickle, and loading it could run any code; docs/datasets.md shows how "
            "to convert it if you trust it"
        )
    if len(found) != 1:
        raise DataError(f"expected one {stem}_*.npy in {folder}, got {len(found)}")
    return found[0]


def crowd_preferences(labels: CrowdLabels, table: str | Path, env_id: str | None = None) -> PreferenceDataset:
    """Return the labels as preferences between segments of the table.

    Args:
        labels: from :func:`load_crowd_labels`.
        table: the labeled transitions: an ``.npz`` from ``d4rl.qlearning_dataset``, or an HDF5 file of D4RL.
        env_id: environment to record instead of the one in the labels.

    Raises:
        ConfigError: h5py is not installed.
        DataError: the table is damaged, or shorter than the labels require.
    """
    columns = _table(Path(table))
    rows = len(columns["rewards"])
    if (last := int(labels.starts.max()) + labels.length) > rows or labels.starts.min() < 0:
        raise DataError(
            f"expected at least {last} transitions in {table}, which the labels refer to, got {rows}; "
            f"use the table of {labels.env_id}"
        )
    name = env_id or labels.env_id
    dataset = PreferenceDataset()
    for number, (starts, value) in enumerate(zip(labels.starts.tolist(), labels.values, strict=True)):
        for start in starts:
            _require_finite(columns, slice(start, start + labels.length), number, table)
        if not 0 <= value <= 1:  # False for NaN
            raise DataError(f"label {number} of {labels.env_id}: expected a number from 0 to 1, got {value}")
        first, second = (_segment(columns, name, start, labels.length) for start in starts)
        uuid = uuid5(NAMESPACE_URL, f"uni-rlhf/{labels.env_id}/{number}")
        dataset.upsert([Preference(uuid, first, second, float(value))])
    return dataset


def _require_finite(columns: Mapping[str, NDArray[Any]], rows: slice, number: int, table: str | Path) -> None:
    """Raise :class:`DataError` for NaN or infinity in the rows of a labeled segment."""
    last = slice(rows.stop - 1, rows.stop)  # next observations of other steps are among the observations
    for name, part in (("observations", rows), ("actions", rows), ("rewards", rows), (_AFTER, last)):
        numbers = columns[name][part] if name in columns else np.empty(0)
        bad = np.argwhere(~fits_float32(numbers))
        if bad.size:
            raise DataError(
                f"{table} holds {numbers[tuple(bad[0])]} among the {name} of row {part.start + bad[0, 0]}, "
                f"which label {number} refers to; fix the table, or leave out the label"
            )


def _segment(columns: Mapping[str, NDArray[Any]], env_id: str, start: int, length: int) -> Segment:
    steps = slice(start, start + length)
    actions = columns["actions"][steps]
    after = columns[_AFTER][start + length - 1] if _AFTER in columns else None
    return Segment(
        EpisodeRecipe(env_id, {}, 0, actions),  # cannot be replayed: the tables hold no seeds
        0,
        columns["observations"][steps],
        actions,
        columns["rewards"][steps].astype(np.float64),
        after,
        bool(columns["terminals"][start + length - 1]),
    )


def _table(path: Path) -> dict[str, NDArray[Any]]:
    with refusing_damage(f"{path} is not a readable table of transitions"):
        if path.suffix == ".npz":
            with path.open("rb") as file, opened_archive(file) as archive:
                columns = {name: archive[name] for name in _NAMES if name in archive.files}
        else:
            columns = _d4rl(path)
    columns.setdefault("terminals", np.zeros(len(columns.get("rewards", ())), np.bool_))
    missing = [name for name in _NAMES[:3] if name not in columns]
    lengths = {len(column) for column in columns.values()}
    if missing or len(lengths) != 1:
        raise DataError(
            f"expected {', '.join(_NAMES[:3])} of one length in {path}, got {', '.join(columns)} of "
            f"{sorted(lengths)} rows"
        )
    return columns


def _d4rl(path: Path) -> dict[str, NDArray[Any]]:
    """Read an HDF5 file of D4RL as its ``qlearning_dataset`` does: without the steps at time limits.

    Their next observations are not in the file, where the next episode follows. Double precision is kept.
    """
    h5py = require_extra("h5py", f"the table {path}", "minari")
    with h5py.File(path, "r") as file:
        if "timeouts" not in file:
            raise DataError(
                f"{path} does not mark the steps that ended at a time limit; save the result of "
                "d4rl.qlearning_dataset with numpy.savez instead"
            )
        kept = ~np.asarray(file["timeouts"], np.bool_)[:-1]
        observations, actions = (_floats(file[name]) for name in ("observations", "actions"))
        columns: dict[str, NDArray[Any]] = {
            "observations": observations[:-1][kept],
            "next_observations": observations[1:][kept],
            "actions": actions[:-1][kept],
        }
        for name, kind in (("rewards", np.float32), ("terminals", np.bool_)):
            columns[name] = np.asarray(file[name], kind)[:-1][kept]
    return columns


def _floats(array: Any) -> NDArray[np.floating[Any]]:
    numbers = np.asarray(array)
    return numbers if numbers.dtype.kind == "f" else numbers.astype(np.float32)
