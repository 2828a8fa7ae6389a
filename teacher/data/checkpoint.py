"""Checkpoint files: a run's entire state in one ``.npz`` file, written atomically, without pickle.

A state is a nested structure of dicts and lists whose leaves are arrays, tensors and JSON scalars. Arrays are
stored as entries of the archive. Everything else is stored in one JSON entry, in which ``{"@array": key}``
refers to an array.
"""

import contextlib
import errno
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from teacher.errors import DataError, StorageError, describe_exception, one_line
from teacher.files import DAMAGED_ARCHIVE, atomic_write, opened_archive

CHECKPOINT_NAME = "checkpoint.npz"
_ARRAY = "@array"
_STRUCTURE = "structure"
_VERSION = 1
_FULL = (errno.ENOSPC, errno.EDQUOT)

State = dict[str, Any]


def save_state(path: Path, state: State, *, new: bool = False) -> None:
    """Write ``state`` to a file atomically, so that a crash leaves either the old or the new file.

    Args:
        new: if True, create the file exclusively: raise ConfigError if it already exists, even if another
            process creates it during this call.

    Raises:
        ConfigError: the file exists and ``new`` is True.
        StorageError: the disk is full or the folder is not writable; the old file remains intact.
    """
    try:
        with atomic_write(path, new=new) as file:
            _write(file, state)
    except OSError as error:
        remedy = "free up space" if error.errno in _FULL else "fix the problem"
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; {remedy} and try again"
        ) from error


def load_state(
    path: Path, kind: str = "checkpoint", expected: str = "a checkpoint.npz", *, with_arrays: bool = True
) -> State:
    """Read a state from a file written by :func:`save_state`; tensors are returned as NumPy arrays.

    Args:
        kind: type of the file, such as "predictor", for error messages.
        expected: description of a valid file, appended to error messages.
        with_arrays: if False, return None in place of each array; this makes reading large files fast.

    Raises:
        DataError: the file is missing, damaged, of a different type, or of an unsupported format version.
    """
    try:
        with path.open("rb") as file:
            return _read(file, str(path), kind, expected, with_arrays=with_arrays)
    except (OSError, AttributeError, RecursionError, *DAMAGED_ARCHIVE) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(f"{path} is not a readable {kind}: {reason}; expected {expected}") from error


@contextlib.contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Convert errors in the ``with`` block, which restores objects from ``path``, to DataErrors."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DataError(
            f"{path} is not a checkpoint of this run: {describe_exception(error)}; restore the original file"
        ) from error


def dump_state(state: State) -> bytes:
    """Serialize a state dict to bytes, to send it to another process in the same run."""
    buffer = io.BytesIO()
    _write(buffer, state)
    return buffer.getvalue()


def parse_state(data: bytes) -> State:
    """Deserialize a state from bytes returned by :func:`dump_state`."""
    return _read(io.BytesIO(data), "the state sent by rank 0")


def _write(file: IO[bytes], state: State) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    structure = json.dumps({"version": _VERSION, "state": _pack(state, "", arrays)})
    np.savez(file, **{_STRUCTURE: np.array(structure)}, **arrays)  # type: ignore[arg-type]


def _read(
    file: IO[bytes],
    name: str,
    kind: str = "checkpoint",
    expected: str = "a checkpoint.npz",
    *,
    with_arrays: bool = True,
) -> State:
    with opened_archive(file) as archive:
        if _STRUCTURE not in archive:
            raise DataError(f"{name} is an .npz file but not a {kind}; expected {expected}")
        content = json.loads(str(archive[_STRUCTURE]))
        if content["version"] != _VERSION:
            raise DataError(
                f"{name} has format version {content['version']}, but this version of RL-Teacher only reads "
                f"format {_VERSION}; use the version that wrote the file"
            )
        state: State = _unpack(content["state"], archive if with_arrays else None)
        return state


def _pack(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    if hasattr(value, "detach"):  # a tensor; avoids importing torch
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {_ARRAY: path}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): _pack(item, f"{path}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item, f"{path}/{index}", arrays) for index, item in enumerate(value)]
    return value


def _unpack(value: Any, archive: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return None if archive is None else archive[value[_ARRAY]]
        return {key: _unpack(item, archive) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, archive) for item in value]
    return value
