"""Functions that save and load demonstration files.

A file is an ``.npz`` archive of plain arrays in the format of Stable Baselines 2 (``generate_expert_traj``),
so files from Stable Baselines 2 can also be loaded. The arrays named in :data:`KEYS` contain complete
episodes, concatenated. Images are stored as PNG files in a folder next to the archive, and ``obs`` contains
their relative paths. Unlike Stable Baselines 2, this module also writes the optional arrays
:data:`LAST` and :data:`ENDED`.
"""

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.data.demonstrations.episodes import Demonstrations
from teacher.data.images import are_images, read_images, write_images
from teacher.data.steps import fits_float32
from teacher.errors import DataError, one_line
from teacher.files import DAMAGED_ARCHIVE, opened_archive, saved

KEYS = ("obs", "actions", "rewards", "episode_returns", "episode_starts")
"""Names of the required arrays in a file."""
LAST = "final_obs"
"""Name of the optional array with the observation after each episode's last step."""
ENDED = "terminated"
"""Name of the optional array that is True for episodes terminated by the environment, not a time limit."""


def save_demonstrations(path: str | Path, demonstrations: Demonstrations, *, new: bool = False) -> None:
    """Write a demonstration file atomically. Images go into a new folder ``<name>-images`` next to it.

    Args:
        new: if True, create the file exclusively: raise ConfigError if it already exists, even if another
            process creates it during this call.

    Raises:
        ConfigError: the image folder exists, or the file exists and ``new`` is True.
        DataError: the demonstrations are invalid, so :func:`load_demonstrations` would reject them.
        StorageError: the file or folder cannot be written.
    """
    path = Path(path)
    arrays = {key: getattr(demonstrations, key) for key in KEYS}
    arrays |= {key: array for key in (LAST, ENDED) if (array := getattr(demonstrations, key)) is not None}
    try:
        _checked(arrays)
    except DataError as error:
        raise DataError(f"{path} was not written, because the demonstrations are invalid: {error}") from error
    with contextlib.ExitStack() as undo:
        if are_images(demonstrations.obs):
            folder = path.with_name(f"{path.stem}-images")
            seen = [key for key in ("obs", LAST) if key in arrays]
            names = write_images(folder, np.concatenate([arrays[key] for key in seen]))
            undo.callback(shutil.rmtree, folder)
            paths = np.array([f"{folder.name}/{name}" for name in names])
            arrays |= dict(zip(seen, np.split(paths, [len(demonstrations)]), strict=False))
        with saved(path, f"the demonstrations {path}", new=new) as file:
            np.savez(file, **arrays)
        undo.pop_all()


def load_demonstrations(
    source: str | Path | Mapping[str, NDArray[Any]], traj_limitation: int | None = None
) -> Demonstrations:
    """Load and check demonstrations. Images are loaded as ``uint8`` arrays.

    Args:
        source: path of a file from :func:`save_demonstrations` or Stable Baselines 2, or a dict of arrays
            with the names in :data:`KEYS`.
        traj_limitation: number of episodes to load from the start of the file; None loads all.

    Raises:
        DataError: the file or an image is missing or damaged; an array is pickled, contains NaN, or doesn't
            match the others; an image path leads outside the file's folder; or there are fewer than
            ``traj_limitation`` episodes.
    """
    source = source if isinstance(source, Mapping) else Path(source)
    name, arrays = ("the dictionary", source) if isinstance(source, Mapping) else (source, _read(source))
    try:
        for key in ("obs", LAST):
            if not isinstance(source, Mapping) and key in arrays and arrays[key].dtype.kind == "U":
                arrays = {**arrays, key: read_images(source.parent, arrays[key].ravel().tolist())}
        demonstrations = _checked(arrays)
    except DataError as error:
        raise DataError(f"{name} does not contain valid demonstrations: {error}") from error
    return demonstrations if traj_limitation is None else demonstrations.limited(traj_limitation)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, opened_archive(file) as archive:
            return {key: archive[key] for key in (*KEYS, LAST, ENDED) if key in archive}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGED_ARCHIVE as error:
        raise DataError(
            f"{path} is not a readable demonstrations file ({one_line(error)}); expected an .npz file of "
            "plain arrays without pickled objects, which could run arbitrary code"
        ) from error


def _require_numbers(key: str, array: NDArray[Any]) -> None:
    if array.dtype.kind not in "fiub":
        raise DataError(f"{key} must be an array of numbers, not of type {array.dtype}")


def _require_finite(key: str, array: NDArray[Any], starts: NDArray[np.bool_]) -> None:
    rows = np.argwhere(~fits_float32(array))[:, 0]
    if rows.size:
        row, firsts, place = int(rows[0]), np.flatnonzero(starts), f"episode {rows[0]}"
        if key not in ("episode_returns", LAST) and starts[0]:
            episode = int(np.searchsorted(firsts, row, side="right")) - 1
            place = f"step {row - firsts[episode]} of episode {episode}"
        raise DataError(f"{key} contains NaN, infinity or a number beyond 3.4e38 in row {row} ({place})")


def _checked(arrays: Mapping[str, Any]) -> Demonstrations:
    """Check the arrays and return them as demonstrations. Error messages don't name the file."""
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise DataError(f"missing arrays: {', '.join(missing)}; required: {', '.join(KEYS)}")
    obs, actions, *columns = (np.atleast_1d(arrays[key]) for key in KEYS)
    if obs.dtype.kind in "US":
        raise DataError(
            "obs contains image paths, not images; pass the path of the .npz file, or an array of images of "
            "shape (steps, *shape)"
        )
    for key, array in zip(KEYS, (obs, actions, *columns), strict=True):
        _require_numbers(key, array)
    # Stable Baselines 2 writes the columns of a vector environment as (n, 1).
    rewards, returns, starts = (column.reshape(-1) for column in columns)
    lengths = {
        "obs": len(obs),
        "actions": len(actions),
        "rewards": len(rewards),
        "episode_starts": len(starts),
    }
    if len(set(lengths.values())) > 1:
        raise DataError(f"{', '.join(lengths)} must have the same number of rows; got {lengths}")
    if len(obs) == 0:
        raise DataError("the arrays are empty; expected at least one episode")
    starts = starts.astype(bool)
    for key, array in zip(KEYS, (obs, actions, rewards, returns), strict=False):
        _require_finite(key, array, starts)
    if not starts[0] or starts.sum() != len(returns):
        raise DataError(
            f"episode_starts must begin with True and mark {len(returns)} episodes, one per entry of "
            f"episode_returns, but it begins with {bool(starts[0])} and marks {starts.sum()}"
        )
    last = None if arrays.get(LAST) is None else np.asarray(arrays[LAST])
    if last is not None:
        shape = (len(returns), *obs.shape[1:])
        if last.shape != shape or last.dtype != obs.dtype:
            raise DataError(
                f"{LAST} must have type {obs.dtype} and shape {shape}, not {last.dtype} and {last.shape}"
            )
        _require_numbers(LAST, last)
        _require_finite(LAST, last, starts)
    ended = None if arrays.get(ENDED) is None else np.asarray(arrays[ENDED])
    if ended is not None and (ended.shape != returns.shape or ended.dtype != np.bool_):
        raise DataError(
            f"{ENDED} must have type bool and shape {returns.shape}, not {ended.dtype} and {ended.shape}"
        )
    return Demonstrations(
        obs, actions, rewards.astype(np.float64), returns.astype(np.float64), starts, last, ended
    )
