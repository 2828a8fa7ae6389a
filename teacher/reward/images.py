"""Convolutional reward models for image observations (Christiano et al. 2017, section A.2).

Images are kept as uint8 and converted to float only within a minibatch, to save memory.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeGuard

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from teacher.data.preferences import PreferenceDataset
from teacher.data.steps import Steps
from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError
from teacher.reward.modules import ROWS_AT_ONCE, ModuleEnsemble
from teacher.reward.network import split_rows
from teacher.settings.options import RewardConfig

CONVOLUTIONS = ((7, 3), (5, 2), (3, 1), (3, 1))
"""Kernel size and stride of each convolutional layer."""
FILTERS = 16
UNITS = 64
SMALLEST_SIDE = 43
"""Minimum image height and width, in pixels, for the convolutions; smaller images are upscaled."""
PAPER_SIDE = 84
"""Image height and width in the paper, in pixels; images at least twice as large are downsampled."""


def is_image_space(space: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Return True if observations are images, as :func:`agents.pixels.is_image_space` does."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


def with_absorbing(config: RewardConfig, observation_space: spaces.Space[Any]) -> RewardConfig:
    """Return the settings with the input ``absorbing`` added, unless it is there or observations are images.

    It tells steps after an episode's end from the one that led to it.
    """
    names = (config.inputs or "state,action").split(",")
    if "absorbing" in names or is_image_space(observation_space):
        return config
    return replace(config, inputs=",".join([*names, "absorbing"]))


def earns_0_after_end(config: RewardConfig) -> bool:
    """Return True if predicted rewards are 0 after an absorbed episode's end, so that it can terminate there.

    The input ``terminated`` would be True only in episodes that terminate, which labeled ones don't.
    """
    names = (config.inputs or "").split(",")
    return "absorbing" in names and "terminated" not in names


class Images:
    """Reader that converts steps to channels-first images for :class:`ImageEnsemble`.

    The channel axis is the first one if it is shorter than both others, else the last one. If both
    ``state`` and ``next_state`` are inputs, the next state's channels are appended to the state's channels.

    Args:
        space: observation space for which :func:`is_image_space` is True.
        inputs: ``state``, ``next_state``, or both separated by a comma; None means ``state``.

    Attributes:
        shape: ``(channels, height, width)``. ``channels`` counts the channels of all stacked frames and, if
            both are inputs, of state and next state.
        channel_axis: axis of the channels in an observation with three or four dimensions, -3 or -1.

    Raises:
        ConfigError: ``inputs`` contains any other name.
        EnvironmentUnsuitableError: the images' height, width or number of channels is 0.
    """

    def __init__(self, space: spaces.Box, inputs: str | None = None) -> None:
        self.inputs = frozenset((inputs or "state").split(","))
        if not self.inputs <= {"state", "next_state"}:
            raise ConfigError(
                f"--reward.inputs must be state, next_state or both for image observations, not {inputs!r}"
            )
        if 0 in space.shape:
            raise EnvironmentUnsuitableError(
                f"image observations of shape {space.shape} have no pixels; fix the observation space"
            )
        self._space_shape = space.shape
        *_, first, second, third = (0, *space.shape)
        self.channel_axis = -3 if first < min(second, third) else -1
        channels, *sides = self._arranged(np.empty(space.shape, np.uint8)).shape
        self.shape: tuple[int, ...] = (channels * len(self.inputs), *sides)
        self.bytes_per_step = math.prod(self.shape)
        self.columns: Mapping[str, slice] = {}
        self.doubt = ""

    def __call__(self, steps: Steps) -> Tensor:
        """Convert steps to images, uint8 ``(*batch, channels, height, width)``."""
        read = []
        if "state" in self.inputs:
            read.append(self._channels(steps.observations))
        if "next_state" in self.inputs:
            read.append(self._channels(steps.next_observations))
        return torch.from_numpy(np.concatenate(read, axis=-3))

    def center_on(self, dataset: PreferenceDataset) -> None:
        """Return None because pixel values are never centered."""

    def state_dict(self) -> dict[str, NDArray[np.float64]]:
        """Return an empty dict because pixel values are never centered."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing because pixel values are never centered."""

    def _channels(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        images = np.asarray(images)
        dimensions = len(self._space_shape)
        if images.dtype != np.uint8 or images.shape[-dimensions:] != self._space_shape:
            raise DataError(
                f"observations must be uint8 images of shape {self._space_shape}, not {images.dtype} arrays "
                f"of shape {images.shape[-dimensions:]}; use data from the predictor's environment"
            )
        return self._arranged(images)

    def _arranged(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Move the channel axis first, and fold the axis of stacked frames into it."""
        if len(self._space_shape) == 2:
            return np.expand_dims(images, -3)
        images = np.moveaxis(images, self.channel_axis, -3)
        stacked = len(self._space_shape) == 4
        if not stacked:
            return images
        return images.reshape(*images.shape[:-4], math.prod(images.shape[-4:-2]), *images.shape[-2:])


class ImageEnsemble(ModuleEnsemble):
    """Ensemble of convolutional reward networks with stacked parameters.

    Members are evaluated one after another, because a single network of grouped convolutions would take twice
    as long on a CPU. Batch normalization in training uses each member's own minibatch.

    Args:
        shape: ``(channels, height, width)`` of an image.

    Attributes:
        averaged: factor by which height and width are downsampled; 1 if they are not.
    """

    LEARNING_RATE: ClassVar[float] = 1e-3  # with 3e-3, one of three members learned nothing

    def __init__(
        self,
        shape: Sequence[int],
        config: RewardConfig,
        generator: torch.Generator,
        *,
        full_size: bool = False,
    ) -> None:
        channels, *sides = shape
        self.averaged = 1 if full_size else min(max(sides) // PAPER_SIDE, min(sides) // SMALLEST_SIDE) or 1
        seen = [channels, *(-(-side // self.averaged) for side in sides)]
        super().__init__(lambda: _network(seen, config), config.num_members, generator, len(shape))

    def standardize(self, features: Tensor) -> Tensor:
        """Downsample images ``(*batch, channels, height, width)`` by :attr:`averaged`; keep them uint8."""
        if self.averaged == 1:
            return features
        rows = features.reshape(-1, *features.shape[-3:])
        averaged = torch.cat([self._average(part) for part in split_rows(rows, ROWS_AT_ONCE)])
        return averaged.view(*features.shape[:-2], *averaged.shape[-2:])

    def _average(self, images: Tensor) -> Tensor:
        """Downsample images by average pooling.

        Partial pooling windows at the edges are averaged without padding, over the pixels they contain.
        """
        numbers = images.to(torch.float32)
        means = nn.functional.avg_pool2d(numbers, self.averaged, ceil_mode=True, count_include_pad=False)
        return means.round().to(torch.uint8)

    def adapt(self, features: Iterable[Tensor]) -> None:
        """Do nothing because pixel values always range from 0 to 255."""

    def numbers(self, inputs: Tensor) -> Tensor:
        """Convert uint8 images ``(n, channels, height, width)`` to floats from 0 to 1."""
        # On a CPU, a gradient step takes half the time with the channels_last memory format.
        return inputs.to(torch.float32, memory_format=torch.channels_last).div_(255)


def _network(shape: Sequence[int], config: RewardConfig) -> nn.Sequential:
    channels, *sides = shape
    scale = -(-SMALLEST_SIDE // min(sides))
    layers: list[nn.Module] = [nn.Upsample(scale_factor=scale)] if scale > 1 else []
    sides = [scale * side for side in sides]
    for kernel, stride in CONVOLUTIONS:
        layers.append(nn.Conv2d(channels, FILTERS, kernel, stride))
        if not config.no_image_batch_norm:
            layers.append(nn.BatchNorm2d(FILTERS))
        layers += [nn.LeakyReLU(0.01), nn.Dropout(config.image_dropout)]
        channels, sides = FILTERS, [(side - kernel) // stride + 1 for side in sides]
    flat = FILTERS * math.prod(sides)
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(flat, UNITS), nn.LeakyReLU(0.01), nn.Linear(UNITS, 1)
    )
