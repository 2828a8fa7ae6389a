"""Preference files for other programs: ``.npz`` or Parquet, both without pickle.

Both formats contain :attr:`PreferenceDataset.columns` in the order of the decisions, and a JSON description;
``docs/datasets.md`` documents the formats. Large files are never loaded into memory as a whole.
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
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError, one_line, pluralize, short_repr
from teacher.files import DAMAGED_ARCHIVE, saved

Space = spaces.Space[Any]

_FORMAT = "rl-teacher preferences"
_VERSION = 2  # the first one whose preferences may have weights; others are written as version 1
_ENTRIES = ("version", "segment_length", "observation_space", "action_space", "preferences", "columns")
_COLUMNS = ("observations", "actions", "terminated", "complete", "values", "true_returns", "ids")
_WEIGHTED = ("weights", "questions")
_BOUNDS = {"f": (-np.inf, np.inf), "b": (0, 1)}  # of a Box by dtype kind; integer bounds depend on their size


@dataclass(frozen=True)
class _FileType:
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
    """Save preferences to an ``.npz`` or ``.parquet`` file, atomically.

    Args:
        path: file to write; its suffix selects the format.
        observation_space: observation space of a single environment, not of a vector environment.
        clips: function that returns both clips of a preference as MP4 data, to include them in a
            ``.parquet`` file; None for no clips.

    Raises:
        ConfigError: the suffix is wrong, the format can't contain clips, pyarrow is needed but not installed,
            or ``new`` is True and the file exists.
        DataError: the dataset is empty or doesn't match the spaces.
        StorageError: the file can't be written.
    """
    path = Path(path)
    write = _file_type(path).write
    if clips is not None:
        require_room_for_clips(path)
        write = partial(parquet.write, clips=clips)
    about = _description(dataset, observation_space, action_space)
    columns = {name: dataset.columns[name] for name in about["columns"]}
    with saved(path, f"the preferences {path}", new=new) as file:
        write(file, json.dumps(about), columns, dataset.by_decision)


def require_room_for_clips(path: Path) -> None:
    """Raise :class:`ConfigError` unless ``path`` ends in ``.parquet``; other formats can't contain clips."""
    if path.suffix != ".parquet":
        raise ConfigError(f"{path} can't contain clips; to include clips, use a .parquet file")


def load_preferences(
    path: str | Path,
    *,
    env_id: str | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
) -> PreferenceDataset:
    """Load preferences that :func:`save_preferences` saved.

    Args:
        observation_space: expected observation space; None accepts any.
        action_space: expected action space; None accepts any.
        env_id: expected environment ID; None accepts any. Equivalent environments are accepted too (see
            :func:`~teacher.envs.families.same_environment`).

    Raises:
        ConfigError: the suffix is neither ``.npz`` nor ``.parquet``, or pyarrow is needed but not installed.
        DataError: the file is missing, damaged, empty, in a newer file format, or from a different
            environment.
    """
    path = Path(path)
    with _opened(path) as (file, about):
        names = _columns(about["version"])
        columns = _file_type(path).read_columns(file, {name: about["columns"][name] for name in names})
        _check_columns(columns, about)
    require_environment(path, about, observation_space, action_space, env_id)
    return PreferenceDataset.of_columns(about.get("env_id"), columns)


def require_environment(
    path: Path,
    about: Mapping[str, Any],
    observation_space: Space | None,
    action_space: Space | None,
    expected: str | None,
) -> None:
    """Check that a preference or predictor file, described by ``about``, is from the expected environment."""
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if space is not None and describe_space(space) != about[name]:
            raise DataError(
                f"{path} is from a different environment: {name} is {about[name]}, not "
                f"{describe_space(space)}"
            )
    found = about.get("env_id")
    if found is not None and not isinstance(found, str):
        raise DataError(f"{path} is damaged: {one_line(found)} is not a valid env_id")
    if not same_environment(found, expected):
        raise DataError(
            f"{path} is from a different environment: env_id is {found}, not {expected}; choose a different "
            "file, or, to use this one anyway, load it in Python, set env_id to None and save it again"
        )


def saved_length(path: str | Path) -> int:
    """Return the number of steps per segment in a preference file, without loading the rest."""
    with _opened(Path(path)) as (_, about):
        return int(about["segment_length"])


def saved_spaces(path: str | Path) -> tuple[Space, Space]:
    """Return the observation and action spaces stored in a preference file, without loading the rest.

    Raises:
        ConfigError, DataError: the file can't be read, as in :func:`load_preferences`.
    """
    with _opened(Path(path)) as (_, about):
        return space_of(about["observation_space"]), space_of(about["action_space"])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], dict[str, Any]]]:
    """Open a preference file, and yield the file object and the file's description.

    Errors raised in the ``with`` block become :class:`DataError` with the file's path in the message.
    """
    with contextlib.suppress(OSError):  # opening the file below reports the error
        if not path.exists():
            raise DataError(f"{path} does not exist; use a preference file from teach export or save_prefs()")
    file_type = _file_type(path)
    try:
        with path.open("rb") as file:
            yield file, _checked_description(file_type.read_description(file))
    except DataError as error:
        raise DataError(f"{path} cannot be read as preferences: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or one_line(error)}") from error
    except DAMAGED_ARCHIVE as error:
        raise DataError(f"{path} is damaged, or not a preference file: {one_line(error)}") from error


def _file_type(path: Path) -> _FileType:
    if path.suffix not in _FILE_TYPES:
        raise ConfigError(f"a preference file must be named *{' or *'.join(_FILE_TYPES)}, not {path}")
    return _FILE_TYPES[path.suffix]


def _description(dataset: PreferenceDataset, observation_space: Space, action_space: Space) -> dict[str, Any]:
    version = 1 if dataset.one_each else _VERSION
    rows = {name: dataset.columns[name].rows for name in _columns(version)}
    for name, space in (("observations", observation_space), ("actions", action_space)):
        if rows[name].shape[3:] != (space.shape or ()):
            raise DataError(
                f"the {name} have shape {rows[name].shape[3:]}, which does not match {one_line(space)}; "
                f"pass the spaces of {dataset.env_id}"
            )
    if len(dataset) == 0:
        raise DataError("the dataset has no preferences yet; wait for the first label")
    return {
        "format": _FORMAT,
        "version": version,
        "env_id": dataset.env_id,
        "segment_length": dataset.segment_length,
        "observation_space": describe_space(observation_space),
        "action_space": describe_space(action_space),
        "preferences": len(dataset),
        "columns": {
            name: {"dtype": array.dtype.str, "shape": list(array.shape[1:])} for name, array in rows.items()
        },
    }


def _columns(version: int) -> tuple[str, ...]:
    return _COLUMNS if version == 1 else (*_COLUMNS, *_WEIGHTED)


def describe_space(space: Space) -> dict[str, Any]:
    """Return a space's kind, shape and dtype as a JSON object, without a Box's bounds.

    Raises:
        EnvironmentUnsuitableError: the space is not a Box, Discrete or MultiDiscrete.
    """
    match space:
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.Box():
            return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype)}
    raise EnvironmentUnsuitableError(
        f"the space {one_line(space)} is not supported; wrap the environment so that its spaces are Box, "
        "Discrete or MultiDiscrete"
    )


def space_of(about: Mapping[str, Any]) -> Space:
    """Make a space from the output of :func:`describe_space`.

    A Box's bounds span the full range of its dtype, because the original bounds are not stored.
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
        raise ValueError(f"unknown kind of space {about['kind']}")
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise DataError(f"invalid description of a space: {one_line(error)}") from error


def _checked_description(text: str) -> dict[str, Any]:
    about = json.loads(text)
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise DataError("the file is not a preference file")
    require_entries(about, ("version",), "the file's description")
    require_version(about["version"], _VERSION)  # checked first: a newer version may lack some entries
    require_entries(about, _ENTRIES, "the file's description")
    columns = _columns(about["version"])
    require_entries(about["columns"], columns, "the description of the columns")
    for name in columns:
        require_entries(about["columns"][name], ("dtype", "shape"), f"the description of {name}")
    return about


def require_entries(about: Any, names: Sequence[str], what: str) -> None:
    """Check that a JSON value is an object with the required keys."""
    found = about if isinstance(about, dict) else {}
    if missing := [name for name in names if name not in found]:
        raise DataError(f"{missing[0]} is missing from {what}; export the file again")


def require_version(found: Any, known: int) -> None:
    """Check a file's format version; ``known`` is the newest version that can be read."""
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DataError(
            f"the format version must be 1 to {known}, not {short_repr(found)}; export the file again"
        )
    if found > known:
        raise DataError(
            f"the file has format version {found}, but this RL-Teacher reads only up to version {known}; "
            "update RL-Teacher"
        )


def _check_columns(columns: Mapping[str, Column], about: Mapping[str, Any]) -> None:
    """Check the arrays' values, and that their shapes and dtypes match each other and the description."""
    count, length = int(about["preferences"]), int(about["segment_length"])
    shapes = {
        "observations": (count, 2, length + 1),
        "actions": (count, 2, length),
        "terminated": (count, 2),
        "complete": (count,),
        "values": (count,),
        "true_returns": (count, 2),
        "ids": (count, 2),
        "weights": (count,),
        "questions": (count, 2),
    }
    for name in columns:
        shape = shapes[name]
        found, said = columns[name].rows, about["columns"][name]
        if found.shape[: len(shape)] != shape or list(found.shape[1:]) != said["shape"]:
            raise DataError(
                f"{name} must have shape {shape} ({pluralize(count, 'pair')} of {length}-step segments), not "
                f"{found.shape}; all segments must have the same length"
            )
        if found.dtype != np.dtype(said["dtype"]):
            raise DataError(f"the type of {name} must be {said['dtype']}, not {found.dtype}")
    for name, of_a_step in (("observations", "observation_space"), ("actions", "action_space")):
        kept, described = columns[name].rows.shape[3:], space_of(about[of_a_step]).shape or ()
        if kept != described:
            raise DataError(f"{name} have shape {kept} per step, but the {of_a_step} has shape {described}")
    values = columns["values"].rows
    if count == 0:
        raise DataError("the file has no preferences; save it again once there are labels")
    if not ((values >= 0) & (values <= 1)).all():  # False for NaN
        raise DataError(f"preferences must be between 0 and 1, not {values.min()} to {values.max()}")
    if "weights" in columns and not (columns["weights"].rows > 0).all():
        raise DataError(f"weights must be positive, not {columns['weights'].rows.min()}")
    if len(np.unique(columns["ids"].rows, axis=0)) != count:
        raise DataError("two preferences have the same UUID")
