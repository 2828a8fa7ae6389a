"""Factories for a predictor's feature reader and reward networks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor

from teacher.errors import ConfigError, one_line, short_repr
from teacher.reward.features import Features, Reader
from teacher.reward.images import ImageEnsemble, Images, is_image_space
from teacher.reward.modules import MakeNetwork, OwnEnsemble
from teacher.reward.network import RewardEnsemble, RewardNetwork
from teacher.settings.options import RewardConfig
from teacher.settings.unused import reject_unused


@dataclass(frozen=True)
class Architecture:
    """Kind of built-in reward model.

    Attributes:
        features: ``plain``, or ``even`` if squares and logarithms of features are inputs too.
        full_size: True to skip the downsampling of large images, as version 0.1.0 did.
    """

    model: Literal["linear", "network"]
    features: Literal["plain", "even"]
    full_size: bool = False

    @property
    def is_linear(self) -> bool:
        """Return True for linear models."""
        return self.model == "linear"


def make_reader(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], config: RewardConfig
) -> Reader:
    """Return the reader that converts an environment's steps to images or flat feature vectors."""
    if is_image_space(observation_space):
        return Images(observation_space, config.inputs)
    return Features(observation_space, action_space, config.inputs)


def make_ensemble(
    read: Reader,
    config: RewardConfig,
    architecture: Architecture,
    generator: torch.Generator,
    network: MakeNetwork | None,
) -> RewardNetwork:
    """Return an untrained ensemble of reward networks.

    The architecture is the user's ``network`` if given, else a CNN for images, else an MLP or a linear model.
    """
    if network is not None:
        shape = read.shape if isinstance(read, Images) else (read.size,)
        return OwnEnsemble(network, shape, config.num_members, generator)
    if isinstance(read, Images):
        return ImageEnsemble(read.shape, config, generator, full_size=architecture.full_size)
    even = architecture.features == "even"
    hidden = 0 if architecture.is_linear else config.hidden
    return RewardEnsemble(config.num_members, read.size, hidden, generator, config.dropout, even)


def tensors_like(expected: Mapping[str, Tensor], found: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert a saved state dict to tensors; check that names, shapes and dtypes match the network's.

    Args:
        found: the saved state dict, with tensors or arrays as values.
    """
    if others := expected.keys() ^ found.keys():
        name = min(others)
        raise ValueError(f"{'missing' if name in expected else 'unexpected'} network tensor {name}")
    tensors = {name: torch.as_tensor(value) for name, value in found.items()}
    for name, like in expected.items():
        got = tensors[name]
        if (got.shape, got.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"network tensor {name} has shape {tuple(got.shape)} and dtype {got.dtype}, not "
                f"{tuple(like.shape)} and {like.dtype}"
            )
    return tensors


def reject_unused_of_network(
    config: RewardConfig,
    observation_space: spaces.Space[Any],
    *,
    own_network: bool = False,
    prefix: str = "reward.",
) -> None:
    """Raise :class:`ConfigError` if a non-default setting has no effect on the kind of network in use.

    Args:
        observation_space: observation space of a single environment, which determines the kind of network.
    """
    if own_network:
        mode = "custom network"
    else:
        mode = "image observations" if is_image_space(observation_space) else "vector observations"
    reject_unused(config, mode, prefix)


def working_device(device: str, name: str = "device") -> torch.device:
    """Return the torch device with this name, after testing that a tensor can be created on it.

    Args:
        name: option or argument that the device comes from, for the error message.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _refusal(device, name, "not a valid torch device") from error
    try:
        torch.zeros(1, device=found).item()  # the "meta" device fails only here
    except Exception as error:  # drivers raise many types of errors
        raise _refusal(device, name, one_line(error).partition(". ")[0]) from error
    return found


def devices_here() -> list[str]:
    """Return the names of this machine's torch devices, such as ``cpu`` and ``cuda:0``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def _refusal(device: object, name: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{name}: can't use {short_repr(device)}: {reason}; use a device available on this machine "
        f"({', '.join(devices_here())}), or install a torch build that supports your device"
    )
