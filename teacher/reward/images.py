"""Reward models that look at images: the convolutional network of Christiano et al. (2017), section A.2.

Images stay bytes until they are in a minibatch.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeGuard

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from teacher.errors import ConfigError, DataError, EnvironmentUnsuitableError
from teacher.options import RewardConfig
from teacher.reward.network import RewardNetwork, signed_weights
from teacher.segments import Steps

CONVOLUTIONS = ((7, 3), (5, 2), (3, 1), (3, 1))
"""Width of the kernel and stride of each layer."""
FILTERS = 16
UNITS = 64
SMALLEST_SIDE = 43
"""Pixels from which :data:`CONVOLUTIONS` make one; smaller images are enlarged by a whole factor."""
_IMAGES_AT_ONCE = 256  # where nothing has to be kept for gradients


def is_image_space(space: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether observations are images, to be looked at with a convolutional network.

    They are bytes in two dimensions (grey), three (with channels) or four (a stack of such images).
    """
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and 2 <= len(space.shape) <= 4


class Images:
    """What an :class:`ImageEnsemble` reads of steps: the image before the step, its channels in front.

    Channels are on the first axis of an image where that is shorter than both others, else on the last.

    Args:
        space: see :func:`is_image_space`.
        inputs: ``state`` or None, which is the same.

    Attributes:
        shape: channels (those of all images of a stack), height and width.

    Raises:
        ConfigError: something else is to be read.
        EnvironmentUnsuitableError: the images have no pixels.
    """

    inputs = frozenset({"state"})

    def __init__(self, space: spaces.Box, inputs: str | None = None) -> None:
        if inputs not in (None, "state"):
            raise ConfigError(f"--reward.inputs: expected state where that is an image; got {inputs!r}")
        if 0 in space.shape:
            raise EnvironmentUnsuitableError(f"expected images with pixels, got the shape {space.shape}")
        self._space_shape = space.shape
        *_, first, second, third = (0, *space.shape)
        self._channel_axis = -3 if first < min(second, third) else -1
        self.shape: tuple[int, ...] = self._arranged(np.empty(space.shape, np.uint8)).shape
        self.bytes_per_step = math.prod(self.shape)

    def __call__(self, steps: Steps) -> Tensor:
        """``(*batch, *shape)`` of uint8; see :class:`Reader`."""
        images = np.asarray(steps.observations)
        dimensions = len(self._space_shape)
        if images.dtype != np.uint8 or images.shape[-dimensions:] != self._space_shape:
            raise DataError(
                f"expected images of shape {self._space_shape} and uint8, got {images.shape[-dimensions:]} "
                f"and {images.dtype}; use data of the environment"
            )
        return torch.from_numpy(np.array(self._arranged(images), order="C"))

    def _arranged(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """``(*batch, *shape)``."""
        if len(self._space_shape) == 2:
            return np.expand_dims(images, -3)
        images = np.moveaxis(images, self._channel_axis, -3)
        stacked = len(self._space_shape) == 4
        return images.reshape(*images.shape[:-4], -1, *images.shape[-2:]) if stacked else images


class ImageEnsemble(RewardNetwork):
    """``members`` convolutional networks, their parameters side by side.

    They are evaluated one after the other: as one network of grouped convolutions they would take twice the
    time on a CPU. In training each normalises by its own minibatch.

    Args:
        shape: of an image, ``(channels, height, width)``.
        config: members, dropout and batch normalisation.
        generator: draws the initial parameters, differently for each member, and what is dropped.
    """

    LEARNING_RATE: ClassVar[float] = 1e-3  # with three times as much, one member of three learned nothing

    def __init__(self, shape: Sequence[int], config: RewardConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._members = config.members
        self._generator = generator
        with _seeded(generator):
            networks = [_network(shape, config) for _ in range(config.members)]
        parameters, statistics = stack_module_state(networks)
        self._names = {_key(name): name for name in (*parameters, *statistics)}
        self.weights = nn.ParameterDict(
            {_key(name): nn.Parameter(value) for name, value in parameters.items()}
        )
        for name, value in statistics.items():
            self.register_buffer(_key(name), value)
        # One network without numbers, which takes on each member's; not a part, so not in the state.
        self._structure = (networks[0].to("meta"),)
        self.train(mode=False)

    def train(self, mode: bool = True) -> Self:
        """Turn dropout on, and normalise by the minibatch; ``False`` turns them off."""
        self._structure[0].train(mode)
        return super().train(mode)

    def learned(self) -> Sequence[Tensor]:
        """The parameters, and the statistics of batch normalisation."""
        return [*self.parameters(), *self.buffers()]

    def standardise(self, features: Tensor) -> Tensor:
        """The bytes, as they are."""
        return features

    def adapt(self, features: Iterable[Tensor]) -> None:
        """Nothing: the values of all images lie in the same bounds."""

    @torch.no_grad()
    def flatten(self) -> None:
        """Give every image the same reward, 0."""
        for parameter in list(self.weights.values())[-2:]:  # of the last layer
            parameter.zero_()

    def forward(self, inputs: Tensor) -> Tensor:
        """Raw reward of each image by each member.

        Args:
            inputs: ``(*batch, channels, height, width)``, bytes.

        Returns:
            ``(members, *batch)``.
        """
        images = inputs.reshape(-1, *inputs.shape[-3:])
        rewards = [self._rewards(member, images) for member in range(self._members)]
        return torch.stack(rewards).view(-1, *inputs.shape[:-3])

    def logits(self, inputs: Tensor, step_weights: Tensor) -> Tensor:
        """See :meth:`RewardNetwork.logits`."""
        with _seeded(self._generator) if self.training else contextlib.nullcontext():
            rewards = [self._rewards(member, own.flatten(0, 2)) for member, own in enumerate(inputs)]
        signed = signed_weights(step_weights, inputs.shape[:4])
        return (torch.stack(rewards).view(inputs.shape[:4]) * signed).sum(dim=(2, 3))

    def _rewards(self, member: int, images: Tensor) -> Tensor:
        """``(n, channels, height, width)`` bytes to ``(n,)`` rewards by one member."""
        state = {name: self._tensor(key)[member] for key, name in self._names.items()}
        parts = (images,) if torch.is_grad_enabled() else torch.split(images, _IMAGES_AT_ONCE)
        # With the channels last in memory, a gradient step takes half the time on a CPU.
        numbers = (part.to(torch.float32, memory_format=torch.channels_last).div_(255) for part in parts)
        rewards = [functional_call(self._structure[0], state, (part,)) for part in numbers]
        return torch.cat(rewards).squeeze(-1)

    def _tensor(self, key: str) -> Tensor:
        return self.weights[key] if key in self.weights else self.get_buffer(key)


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


def _key(name: str) -> str:
    return name.replace(".", "_")


@contextlib.contextmanager
def _seeded(generator: torch.Generator) -> Iterator[None]:
    """Let a generator decide what torch's modules, which draw from a global one, draw inside."""
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        yield
