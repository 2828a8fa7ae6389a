"""Reader of human labels from the Uni-RLHF platform and its datasets (Yuan et al. 2024).

A label compares two segments of fixed length in one large table of transitions, such as a D4RL dataset, and
refers to each segment by the index of its first row. Two formats can be read:

- The platform exports a ``.csv`` file with the columns ``start_indices_1``, ``start_indices_2`` and ``label``
  (0 for left, 1 for equal, 2 for right), and a ``.json`` file with the settings.
- The published datasets have three files: ``indices_1_*``, ``indices_2_*`` and ``human_label_*`` with 0 for
  the first segment, 1 for the second and -1 for equal. Scripted labels are in ``fake_label_*``, which has two
  columns. These files are published as pickles, which must be converted to ``.npy`` files, because
  pickles are never loaded.
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
    """Labels for ``n`` pairs of segments in a table of transitions.

    Attributes:
        env_id: environment or dataset name given in the label files, such as ``hopper-medium-v2``.
        starts: row index of the start of each pair's first and second segment, shape ``(n, 2)``.
        values: probability that the first segment is better, shape ``(n,)``.
    """

    env_id: str
    length: int
    starts: NDArray[np.int64]
    values: NDArray[np.float64]


def is_crowd_labels(path: str | Path) -> bool:
    """Return True if the path is a folder with Uni-RLHF label files."""
    path = Path(path)
    return path.is_dir() and bool([*path.glob("indices_1*"), *path.glob("*.csv")])


def load_crowd_labels(folder: str | Path) -> CrowdLabels:
    """Read the Uni-RLHF labels in a folder."""
    folder = Path(folder)
    tables = sorted(folder.glob("*.csv"))
    with refusing_damage(f"{folder} contains no readable Uni-RLHF labels"):
        labels = _of_table(folder, tables[0]) if tables else _of_files(folder)
    if len(labels.starts) == 0:
        raise DataError(f"{folder} contains no Uni-RLHF labels")
    return labels


def _of_table(folder: Path, path: Path) -> CrowdLabels:
    (described,) = folder.glob("*.json")
    about = json.loads(described.read_text())
    if about["feedback_type"] != "comparative":
        raise DataError(
            f"{folder} contains {about['feedback_type']} feedback; only comparative feedback can be read, "
            "because the files don't say what the numbers of other labels mean"
        )
    with path.open(newline="", encoding="utf-8-sig") as file:
        delimiter = max(",;\t", key=file.readline().count)  # spreadsheets save with others
        file.seek(0)
        rows = list(csv.DictReader(file, delimiter=delimiter))
    starts = np.array([[int(row["start_indices_1"]), int(row["start_indices_2"])] for row in rows], np.int64)
    values = [_TABLE_VALUES[_parse_label(row["label"])] for row in rows]
    return CrowdLabels(
        str(about["environment_name"]), int(about["query_length"]), starts.reshape(-1, 2), np.array(values)
    )


def _parse_label(text: str) -> int:
    """Parse a label, either a plain number or the platform's nested format ``{'1': {'0': 2}}``."""
    if text.strip().lstrip("-").isdigit():
        return int(text)
    return int(json.loads(text.replace("'", '"'))["1"]["0"])


def _of_files(folder: Path) -> CrowdLabels:
    paths = [_only(folder, stem) for stem in ("indices_1", "indices_2", "*_label")]
    first, second, answers = map(_array, paths)
    named = _LENGTH.search(paths[0].name)
    if named is None:
        raise DataError(
            f"the file name {paths[0].name} does not contain _env_ENV_num_N_len_STEPS_; keep the original "
            "file names"
        )
    if answers.ndim == 2:  # from a scripted teacher, with a preference for each segment
        values = answers[:, 0].astype(np.float64)
    else:
        values = np.array([_FILE_VALUES[int(answer)] for answer in answers.ravel()])
    starts = np.stack([first.ravel(), second.ravel()], axis=1)
    if len(starts) != len(values):
        raise DataError(
            f"{folder} has {pluralize(len(values), 'label')} for {pluralize(len(starts), 'pair')}; it must "
            "have one label per pair"
        )
    return CrowdLabels(named["env_id"], int(named["length"]), starts.astype(np.int64), values)


def _array(path: Path) -> NDArray[Any]:
    with path.open("rb") as file:
        return npy.read_array(file, allow_pickle=False)


def _only(folder: Path, stem: str) -> Path:
    found = sorted(folder.glob(f"{stem}_*.npy"))
    if not found and (pickled := sorted(folder.glob(f"{stem}_*.pkl"))):
        raise DataError(
            f"{pickled[0]} is a pickle, and loading a pickle can run arbitrary code; docs/datasets.md shows "
            "how to convert a file that you trust"
        )
    if len(found) != 1:
        raise DataError(f"{folder} must contain exactly one file {stem}_*.npy, not {len(found)}")
    return found[0]


def crowd_preferences(labels: CrowdLabels, table: str | Path, env_id: str | None = None) -> PreferenceDataset:
    """Convert Uni-RLHF labels to preferences between segments.

    Args:
        table: file with the labeled transitions: an ``.npz`` file with the arrays that
            ``d4rl.qlearning_dataset`` returns, or a D4RL HDF5 file.
        env_id: environment ID for the preferences; None to use the labels' ``env_id``.
    """
    columns = _table(Path(table))
    rows = len(columns["rewards"])
    if (last := int(labels.starts.max()) + labels.length) > rows or labels.starts.min() < 0:
        raise DataError(
            f"the labels refer to {last} transitions, but {table} has only {rows}; use the D4RL dataset for "
            f"{labels.env_id}"
        )
    name = env_id or labels.env_id
    dataset = PreferenceDataset()
    for number, (starts, value) in enumerate(zip(labels.starts.tolist(), labels.values, strict=True)):
        for start in starts:
            _require_finite(columns, slice(start, start + labels.length), number, table)
        if not 0 <= value <= 1:  # False for NaN
            raise DataError(f"label {number} of {labels.env_id} must be between 0 and 1, not {value}")
        first, second = (_segment(columns, name, start, labels.length) for start in starts)
        uuid = uuid5(NAMESPACE_URL, f"uni-rlhf/{labels.env_id}/{number}")
        dataset.upsert([Preference(uuid, first, second, float(value))])
    return dataset


def _require_finite(columns: Mapping[str, NDArray[Any]], rows: slice, number: int, table: str | Path) -> None:
    last = slice(rows.stop - 1, rows.stop)  # the other steps' next observations are also observations
    for name, part in (("observations", rows), ("actions", rows), ("rewards", rows), (_AFTER, last)):
        numbers = columns[name][part] if name in columns else np.empty(0)
        bad = np.argwhere(~fits_float32(numbers))
        if bad.size:
            raise DataError(
                f"label {number} refers to row {part.start + bad[0, 0]} of {table}, whose {name} contain "
                f"{numbers[tuple(bad[0])]}; fix the table, or remove the label"
            )


def _segment(columns: Mapping[str, NDArray[Any]], env_id: str, start: int, length: int) -> Segment:
    steps = slice(start, start + length)
    actions = columns["actions"][steps]
    after = columns[_AFTER][start + length - 1] if _AFTER in columns else None
    return Segment(
        EpisodeRecipe(env_id, {}, 0, actions),  # can't be replayed, because the tables contain no seeds
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
            f"{path} must contain {', '.join(_NAMES[:3])} with the same number of rows, not "
            f"{', '.join(columns)} with {sorted(lengths)} rows"
        )
    return columns


def _d4rl(path: Path) -> dict[str, NDArray[Any]]:
    """Read a D4RL HDF5 file like ``d4rl.qlearning_dataset``, but without casting float64 to float32.

    Only rewards are cast to float32. The last step of the file and of each timed-out episode is left out,
    because its next observation is not in the file: the next row, if any, belongs to the next episode.
    """
    h5py = require_extra("h5py", f"the table {path}", "minari")
    with h5py.File(path, "r") as file:
        if "timeouts" not in file:
            raise DataError(
                f"{path} has no 'timeouts', which mark the steps that ended at a time limit; save the arrays "
                "of d4rl.qlearning_dataset with numpy.savez, and use that file instead"
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
