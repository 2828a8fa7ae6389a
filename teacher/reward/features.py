"""Observations and actions as the flat numbers that a reward model reads."""

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from teacher.errors import EnvironmentUnsuitableError


class Features:
    """Turns batches of raw observations and executed actions into float32 vectors.

    Boxes are flattened, discrete values become one-hot vectors.

    Raises:
        EnvironmentUnsuitableError: a space is neither Box nor Discrete.
    """

    def __init__(self, observation_space: spaces.Space[object], action_space: spaces.Space[object]) -> None:
        self._spaces = (observation_space, action_space)
        self.size = _size(observation_space) + _size(action_space)

    def __call__(self, observations: Tensor, actions: Tensor) -> Tensor:
        """``(*batch, *observation_shape)`` and ``(*batch, *action_shape)`` to ``(*batch, size)``."""
        observation_space, action_space = self._spaces
        return torch.cat([_flatten(observation_space, observations), _flatten(action_space, actions)], dim=-1)


def _size(space: spaces.Space[object]) -> int:
    match space:
        case spaces.Discrete():
            return int(space.n)
        case spaces.Box():
            return int(torch.Size(space.shape).numel())
    raise EnvironmentUnsuitableError(
        f"expected a Box or Discrete space for the reward predictor, got {space}; wrap the environment"
    )


def _flatten(space: spaces.Space[object], values: Tensor) -> Tensor:
    if isinstance(space, spaces.Discrete):
        return functional.one_hot(values.long() - int(space.start), int(space.n)).float()
    batch = values.shape[: values.ndim - len(space.shape or ())]
    return values.reshape(*batch, -1).float()
