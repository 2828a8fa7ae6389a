"""Demonstration files.

A file is an ``.npz`` of plain arrays in the format of Stable Baselines 2 (``generate_expert_traj``): whole
episodes, concatenated, under the names in :data:`KEYS`. Its files can be loaded. Images are PNG files in a
folder next to the file, and ``obs`` holds their relative paths. Files of this program also hold :data:`LAST`
and :data:`ENDED`.
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
"""The required arrays of a file."""
LAST = "final_obs"
"""Optional array of final observations; without it, the result of each last step is unknown."""
ENDED = "terminated"
"""Optional array: True where the environment ended the episode; without it, unknown."""


def save_demonstrations(path: str | Path, demonstrations: Demonstrations, *, new: bool = False) -> None:
    """Write the file atomically, and images into a new folder ``<name>-images`` next to it.

    Args:
        path: the file.
        demonstrations: its content.
        new: never replace a file, even one that was just written by another process.

    Raises:
        ConfigError: the folder exists already, or with ``new``, the file does.
        DataError: :func:`load_demonstrations` would refuse the file.
        StorageError: it cannot be written.
    """
    path = Path(path)
    arrays = {key: getattr(demonstrations, key) for key in KEYS}
    arrays |= {key: array for key in (LAST, ENDED) if (array := getattr(demonstrations, key)) is not None}
    try:
        _checked(arrays)
    except DataError as error:
        raise DataError(f"{path} was not written, because it could not be read back: {error}") from error
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
    """Read and check demonstrations. Images are kept in memory, one byte per number.

    Args:
        source: a file of :func:`save_demonstrations` or of Stable Baselines 2, or its arrays by name.
        traj_limitation: take only the first ``traj_limitation`` episodes.

    Raises:
        DataError: the file or an image is missing, damaged or pickled; its arrays do not fit each other or
            hold NaN; the path of an image leads out of the file's folder; or there are too few episodes.
    """
    source = source if isinstance(source, Mapping) else Path(source)
    name, arrays = ("the dictionary", source) if isinstance(source, Mapping) else (source, _read(source))
    try:
        for key in ("obs", LAST):
            if not isinstance(source, Mapping) and key in arrays and arrays[key].dtype.kind == "U":
                arrays = {**arrays, key: read_images(source.parent, arrays[key].ravel().tolist())}
        demonstrations = _checked(arrays)
    except DataError as error:
        raise DataError(f"{name} holds no demonstrations: {error}") from error
    return demonstrations if traj_limitation is None else demonstrations.limited(traj_limitation)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file, opened_archive(file) as archive:
            return {key: archive[key] for key in (*KEYS, LAST, ENDED) if key in archive}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except DAMAGED_ARCHIVE as error:
        raise DataError(
            f"{path} is not a readable file of demonstrations ({one_line(error)}); expected an .npz of "
            "plain arrays, because a pickle could run any code"
        ) from error


def _require_numbers(key: str, array: NDArray[Any]) -> None:
    if array.dtype.kind not in "fiub":
        raise DataError(f"expected numbers in {key}, got {array.dtype}")


def _require_finite(key: str, array: NDArray[Any], starts: NDArray[np.bool_]) -> None:
    rows = np.argwhere(~fits_float32(array))[:, 0]
    if rows.size:
        row, firsts, place = int(rows[0]), np.flatnonzero(starts), f"that of episode {rows[0]}"
        if key not in ("episode_returns", LAST) and starts[0]:
            episode = int(np.searchsorted(firsts, row, side="right")) - 1
            place = f"step {row - firsts[episode]} of episode {episode}"
        raise DataError(f"{key} holds NaN, infinity or a number beyond 3.4e38 in row {row}, {place}")


def _checked(arrays: Mapping[str, Any]) -> Demonstrations:
    """Return arrays in the expected form, or raise :class:`DataError` without the file's name."""
    missing = [key for key in KEYS if key not in arrays]
    if missing:
        raise DataError(f"expected the arrays {', '.join(KEYS)}, but {', '.join(missing)} is missing")
    obs, actions, *columns = (np.atleast_1d(arrays[key]) for key in KEYS)
    if obs.dtype.kind in "US":
        raise DataError("obs holds image paths; expected a file next to them, or the images, (steps, *shape)")
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
        raise DataError(f"expected the same number of rows in each array, got {lengths}")
    if len(obs) == 0:
        raise DataError("expected at least one episode, got no steps")
    starts = starts.astype(bool)
    for key, array in zip(KEYS, (obs, actions, rewards, returns), strict=False):
        _require_finite(key, array, starts)
    if not starts[0] or starts.sum() != len(returns):
        raise DataError(
            f"expected episode_starts to start with True and to mark {len(returns)} episodes, one per "
            f"entry of episode_returns, got {starts.sum()} with {bool(starts[0])} first"
        )
    last = None if arrays.get(LAST) is None else np.asarray(arrays[LAST])
    if last is not None:
        shape = (len(returns), *obs.shape[1:])
        if last.shape != shape or last.dtype != obs.dtype:
            raise DataError(f"expected {LAST} as {obs.dtype} {shape}, got {last.dtype} {last.shape}")
        _require_numbers(LAST, last)
        _require_finite(LAST, last, starts)
    ended = None if arrays.get(ENDED) is None else np.asarray(arrays[ENDED])
    if ended is not None and (ended.shape != returns.shape or ended.dtype != np.bool_):
        raise DataError(f"expected {ENDED} as bool {returns.shape}, got {ended.dtype} {ended.shape}")
    return Demonstrations(
        obs, actions, rewards.astype(np.float64), returns.astype(np.float64), starts, last, ended
    )
