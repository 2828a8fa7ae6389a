"""Networks' tensors in safetensors files, without pickle."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teacher.extras import require_extra
from teacher.files import refusing_damage, saved

_PURPOSE = "a safetensors file"


def require_safetensors() -> None:
    """Raise :class:`ConfigError` unless safetensors is installed."""
    require_extra("safetensors", _PURPOSE, "hub")


def save_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], about: Mapping[str, str], *, new: bool
) -> None:
    """Write named tensors to a safetensors file, atomically.

    Raises:
        ConfigError: safetensors isn't installed, or ``new`` is True and the file exists.
        StorageError: the file can't be written.
    """
    library = require_extra("safetensors.numpy", _PURPOSE, "hub")
    contiguous = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    with saved(path, str(path), new=new) as file:
        file.write(library.save(contiguous, dict(about)))


def load_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read all tensors of a safetensors file.

    Raises:
        ConfigError: safetensors isn't installed.
        DataError: the file is missing or damaged.
    """
    library = require_extra("safetensors.numpy", _PURPOSE, "hub")
    damage = require_extra("safetensors", _PURPOSE, "hub").SafetensorError
    with refusing_damage(f"{path} is not a readable safetensors file", damage):
        tensors: dict[str, NDArray[Any]] = library.load_file(path)
        return tensors
