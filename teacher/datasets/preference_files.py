"""Preference files for other programs: ``.npz`` or Parquet, both without pickle.

Both hold :attr:`PreferenceDataset.columns`, in order of decision, and a JSON description of their origin
(``docs/datasets.md``). Large files are never loaded into memory completely.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from teacher.data.columns import Column
from teacher.data.preferences import PreferenceDataset
from teacher.datasets import archives, parquet
from teacher.envs.families import same_environment
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError, one_line, pluralize
from teacher.files import DAMAGED_ARCHIVE, saved

Space = spaces.Space[Any]

_FORMAT = "rl-teacher preferences"
_VERSION = 1
_ENTRIES = ("version", "segment_length", "observation_space", "action_space", "preferences", "columns")
_COLUMNS = ("observations", "actions", "terminated", "complete", "values", "true_returns", "ids")
_BOUNDS = {"f": (-np.inf, np.inf), "b": (0, 1)}  # of a Box; bounds of integers depend on their size


@dataclass(frozen=True)
class _FileType:
    """Functions to write and read one file type: a description, and columns in the order of given rows."""

    write: Callable[[IO[bytes], str, Mapping[str, Column], NDArray[np.intp]], None]
    read_description: Callable[[IO[bytes]], str]
    read_columns: Callable[[IO[bytes], Mapping[str, Any]], dict[str, Column]]


_FILE_TYPES = {
    ".npz": _FileType(archives.write, archives.read_description, archives.read_columns),
    ".parquet": _FileType(parquet.write, parquet.read_description, parquet.read_columns),
}


def save_preferences(
    path: str | Path,
    dataset: PreferenceDataset,
    observation_space: Space,
    action_space: Space,
    *,
    clips: parquet.Clips | None = None,
    new: bool = False,
) -> None:
    """Write a dataset into a new or existing ``.npz`` or ``.parquet`` file, atomically.

    Args:
        path: the file.
        dataset: the preferences.
        observation_space: of one environment.
        action_space: of one environment.
        clips: returns the clips of both segments of a preference, to include in a ``.parquet`` file.
        new: never replace a file, even one that was just written by another process.

    Raises:
        ConfigError: the file's name has another suffix, or ``.npz`` with clips; pyarrow, needed for
            Parquet, is not installed; or with ``new``, the file exists.
        DataError: there are no preferences, or they do not have these spaces.
        StorageError: the file cannot be written.
    """
    path = Path(path)
    write = _file_type(path).write
    if clips is not None:
        require_room_for_clips(path)
        write = partial(parquet.write, clips=clips)
    about = json.dumps(_description(dataset, observation_space, action_space))
    with saved(path, f"the preferences {path}", new=new) as file:
        write(file, about, dataset.columns, dataset.by_decision)


def require_room_for_clips(path: Path) -> None:
    """Raise :class:`ConfigError` for a file type that can't hold clips."""
    if path.suffix != ".parquet":
        raise ConfigError(f"expected a .parquet file for clips, got {path}")


def load_preferences(
    path: str | Path,
    *,
    env_id: str | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
) -> PreferenceDataset:
    """Load a dataset of preferences.

    Args:
        path: a file of :func:`save_preferences`.
        env_id: refuse preferences from another environment; see
            :func:`~teacher.envs.families.same_environment`.
        observation_space: refuse preferences with another observation space.
        action_space: refuse preferences with another action space.

    Raises:
        ConfigError: the file's name has another suffix, or pyarrow is not installed.
        DataError: the file is missing, damaged, of a newer version, from another environment, or unusable.
    """
    path = Path(path)
    with _opened(path) as (file, about):
        columns = _file_type(path).read_columns(file, {name: about["columns"][name] for name in _COLUMNS})
        _check_columns(columns, about)
    wanted = {
        "observation_space": observation_space and describe_space(observation_space),
        "action_space": action_space and describe_space(action_space),
    }
    for name, value in wanted.items():
        if value is not None and about[name] != value:
            raise DataError(
                f"{path} is from another environment: its {name} is {about[name]}, expected {value}"
            )
    require_environment(path, about.get("env_id"), env_id)
    return PreferenceDataset.of_columns(about.get("env_id"), columns)


def require_environment(path: Path, found: Any, expected: str | None) -> None:
    """Raise :class:`DataError` if a file of preferences or a predictor is from another environment."""
    if found is not None and not isinstance(found, str):
        raise DataError(f"{path} is damaged: expected an env_id, got {one_line(found)}")
    if not same_environment(found, expected):
        raise DataError(
            f"{path} is from another environment: its env_id is {found}, expected {expected}; choose another "
            "file, or to use it anyway, load it in Python, set its env_id to None and save it again"
        )


def saved_length(path: str | Path) -> int:
    """Return the number of steps per segment in a file of preferences.

    Raises:
        ConfigError, DataError: as :func:`load_preferences`.
    """
    with _opened(Path(path)) as (_, about):
        return int(about["segment_length"])


def saved_spaces(path: str | Path) -> tuple[Space, Space]:
    """Return the observation and action space of a file of preferences.

    Raises:
        ConfigError, DataError: as :func:`load_preferences`.
    """
    with _opened(Path(path)) as (_, about):
        return space_of(about["observation_space"]), space_of(about["action_space"])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], dict[str, Any]]]:
    """Open a file and read its description; raise one-line errors that name the file."""
    with contextlib.suppress(OSError):  # opening the file reports it
        if not path.exists():
            raise DataError(
                f"{path} does not exist; expected a file of preferences from teach export or save_prefs()"
            )
    file_type = _file_type(path)
    try:
        with path.open("rb") as file:
            yield file, _checked_description(file_type.read_description(file))
    except DataError as error:
        raise DataError(f"{path} cannot be read as preferences: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or one_line(error)}") from error
    except DAMAGED_ARCHIVE as error:
        raise DataError(f"{path} is damaged, or not a file of preferences: {one_line(error)}") from error


def _file_type(path: Path) -> _FileType:
    if path.suffix not in _FILE_TYPES:
        raise ConfigError(f"expected a file of preferences named *{' or *'.join(_FILE_TYPES)}, got {path}")
    return _FILE_TYPES[path.suffix]


def _description(dataset: PreferenceDataset, observation_space: Space, action_space: Space) -> dict[str, Any]:
    """Return the origin of the preferences, and the layout of their arrays."""
    rows = {name: column.rows for name, column in dataset.columns.items()}
    for name, space in (("observations", observation_space), ("actions", action_space)):
        if rows[name].shape[3:] != (space.shape or ()):
            raise DataError(
                f"expected {name} of {one_line(space)}, got shape {rows[name].shape[3:]}; pass the spaces of "
                f"{dataset.env_id}"
            )
    if len(dataset) == 0:
        raise DataError("the dataset is empty now; wait for the next label")
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "env_id": dataset.env_id,
        "segment_length": dataset.segment_length,
        "observation_space": describe_space(observation_space),
        "action_space": describe_space(action_space),
        "preferences": len(dataset),
        "columns": {
            name: {"dtype": array.dtype.str, "shape": list(array.shape[1:])} for name, array in rows.items()
        },
    }


def describe_space(space: Space) -> dict[str, Any]:
    """Return the parts of a space that determine how its values are read, as JSON values.

    Raises:
        EnvironmentUnsuitableError: the kind of space is not supported.
    """
    match space:
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.Box():
            return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype)}
    raise EnvironmentUnsuitableError(
        f"expected a Box, Discrete or MultiDiscrete space, got {one_line(space)}; wrap the environment"
    )


def space_of(about: Mapping[str, Any]) -> Space:
    """Make the space described by :func:`describe_space`; a Box gets the bounds of its number type.

    Raises:
        DataError: the description is not valid.
    """
    try:
        if about["kind"] == "Discrete":
            return spaces.Discrete(int(about["n"]), start=int(about["start"]))
        if about["kind"] == "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(about["nvec"]), start=np.array(about["start"]))
        if about["kind"] == "Box":
            dtype = np.dtype(about["dtype"])
            low, high = _BOUNDS.get(dtype.kind) or (np.iinfo(dtype).min, np.iinfo(dtype).max)
            return spaces.Box(low, high, tuple(about["shape"]), dtype.type)
        raise ValueError(f"a space of kind {about['kind']}")
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise DataError(f"expected the description of a space, got {one_line(error)}") from error


def _checked_description(text: str) -> dict[str, Any]:
    about = json.loads(text)
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise DataError("it is another kind of file")
    require_entries(about, ("version",), "its description")
    require_version(about["version"], _VERSION)  # entries missing in a newer version are not damage
    require_entries(about, _ENTRIES, "its description")
    require_entries(about["columns"], _COLUMNS, "the columns of its description")
    for name in _COLUMNS:
        require_entries(about["columns"][name], ("dtype", "shape"), f"the description of {name}")
    return about


def require_entries(about: Any, names: Sequence[str], what: str) -> None:
    """Raise :class:`DataError` unless ``about``, called ``what``, is an object with these entries."""
    found = about if isinstance(about, dict) else {}
    if missing := [name for name in names if name not in found]:
        raise DataError(f"expected {', '.join(names)} in {what}, got no {missing[0]}; export the file again")


def require_version(found: Any, known: int) -> None:
    """Raise :class:`DataError` for an invalid or newer version of a file format."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DataError(f"expected version 1 to {known}, got {one_line(repr(found))}; export the file again")
    if found > known:
        raise DataError(
            f"it was written by a newer RL-Teacher: it has version {found}, this one reads up to {known}; "
            "update RL-Teacher"
        )


def _check_columns(columns: Mapping[str, Column], about: Mapping[str, Any]) -> None:
    """Raise :class:`DataError` unless the arrays fit each other and their description."""
    count, length = int(about["preferences"]), int(about["segment_length"])
    shapes = {
        "observations": (count, 2, length + 1),
        "actions": (count, 2, length),
        "terminated": (count, 2),
        "complete": (count,),
        "values": (count,),
        "true_returns": (count, 2),
        "ids": (count, 2),
    }
    for name, shape in shapes.items():
        found, said = columns[name].rows, about["columns"][name]
        if found.shape[: len(shape)] != shape or list(found.shape[1:]) != said["shape"]:
            raise DataError(
                f"expected {name} of {pluralize(count, 'pair')} of {pluralize(length, 'step')}, {shape}, got "
                f"{found.shape}: segments must have the same length"
            )
        if found.dtype != np.dtype(said["dtype"]):
            raise DataError(f"expected {name} of {said['dtype']}, got {found.dtype}")
    for name, of_a_step in (("observations", "observation_space"), ("actions", "action_space")):
        kept, described = columns[name].rows.shape[3:], space_of(about[of_a_step]).shape or ()
        if kept != described:
            raise DataError(f"expected {name} of shape {described}, as in its {of_a_step}, got {kept}")
    values = columns["values"].rows
    if count == 0:
        raise DataError("it is empty; save it again once there are labels")
    if not ((values >= 0) & (values <= 1)).all():  # False for NaN
        raise DataError(f"expected values from 0 to 1, got {values.min()} to {values.max()}")
    if len(np.unique(columns["ids"].rows, axis=0)) != count:
        raise DataError("expected unique UUIDs, got two preferences with the same one")
