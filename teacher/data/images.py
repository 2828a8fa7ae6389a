"""Lossless storage of image observations, one PNG file per image.

Grayscale, RGB and RGBA images, ``(H, W)`` or ``(H, W, 1 | 3 | 4)``, are stored unchanged. An image of any
other shape, such as a frame stack ``(frames, H, W)``, is reshaped to one grayscale image. The original shape
is stored in a text chunk of the PNG file. Files without that chunk, such as ones from Stable Baselines 2, are
read as ``(H, W, channels)``.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from teacher.errors import DataError, StorageError, one_line
from teacher.files import atomic_folder, require_new

_SHAPE_KEY = "shape"
_CHANNELS = (1, 3, 4)
_DIMENSIONS = (2, 4)  # minimum and maximum number; a stack of color images has 4
_MODES = ("L", "RGB", "RGBA")


def are_images(observations: NDArray[Any]) -> bool:
    """Return True if :func:`write_images` can store these observations of shape ``(n, *shape)``."""
    low, high = _DIMENSIONS
    return observations.dtype == np.uint8 and low < observations.ndim <= high + 1


def write_images(folder: Path, images: NDArray[np.uint8]) -> list[str]:
    """Write an array of images, of shape ``(n, *shape)``, to a new folder and return the file names.

    If an error occurs, no folder is left behind.

    Raises:
        ConfigError: the folder already exists.
        StorageError: the folder cannot be written.
    """
    require_new(folder)
    digits = len(str(len(images)))
    names = [f"{number:0{digits}}.png" for number in range(len(images))]
    about = PngInfo()
    about.add_text(_SHAPE_KEY, json.dumps(images.shape[1:]))
    try:
        with atomic_folder(folder) as part:
            for name, image in zip(names, images, strict=True):
                Image.fromarray(_plane(image)).save(part / name, pnginfo=about)
    except OSError as error:
        raise StorageError(f"cannot write images to {folder}: {error.strerror or error}") from error
    return names


def read_images(folder: Path, names: Sequence[str]) -> NDArray[np.uint8]:
    """Read images from paths relative to ``folder`` and return an array of shape ``(n, *shape)``.

    Raises:
        DataError: a path leads outside the folder, an image is missing or damaged, or their shapes differ.
    """
    root = folder.resolve()
    images: NDArray[np.uint8] | None = None
    for index, name in enumerate(names):
        image = _read(root, name)
        if images is None:
            images = np.empty((len(names), *image.shape), np.uint8)
        if image.shape != images.shape[1:]:
            raise DataError(
                f"all images must have the same shape, but {name!r} has shape {image.shape} and earlier "
                f"images have shape {images.shape[1:]}"
            )
        images[index] = image
    if images is None:
        raise DataError("there are no images; expected at least one")
    return images


def _plane(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reshape the image to a layout that PNG supports: ``(H, W)``, ``(H, W, 3)`` or ``(H, W, 4)``."""
    if image.ndim == 3 and image.shape[-1] in _CHANNELS:
        return image[..., 0] if image.shape[-1] == 1 else image
    return np.ascontiguousarray(image.reshape(-1, image.shape[-1]))


def _read(root: Path, name: str) -> NDArray[np.uint8]:
    try:
        path = (root / name).resolve()
        if Path(name).is_absolute() or not path.is_relative_to(root):
            raise DataError(f"the image path {name!r} leads outside {root}; use a relative path inside it")
        with Image.open(path, formats=("PNG", "JPEG")) as file:
            shape = file.info.get(_SHAPE_KEY)
            image = np.asarray(file if file.mode in _MODES else file.convert("RGB"))
        if shape is None:
            return image[..., None] if image.ndim == 2 else image
        return image.reshape(_parsed(shape, image.size))
    except FileNotFoundError as error:
        raise DataError(f"the image {name!r} is missing") from error
    except UnidentifiedImageError as error:
        raise DataError(f"the image {name!r} is damaged or not a PNG or JPEG file") from error
    # Pillow raises these for damaged images. A path with a NUL or an invalid shape raises ValueError.
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(f"the image {name!r} cannot be read: {one_line(error)}") from error


def _parsed(text: Any, size: int) -> tuple[int, ...]:
    """Parse an image's stored shape."""
    shape = json.loads(str(text))
    low, high = _DIMENSIONS
    fits = (
        isinstance(shape, list) and low <= len(shape) <= high and all(type(n) is int and n > 0 for n in shape)
    )
    if not fits or math.prod(shape) != size:
        raise ValueError(f"the stored shape {str(text)[:40]} does not match the {size} values in the image")
    return tuple(shape)
